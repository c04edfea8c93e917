"""The distribution functions against scipy's."""

import pytest
from scipy import special, stats

from uptrend.doctor.statistics.distributions import (
    incomplete_beta,
    normal_cdf,
    normal_quantile,
    student_cdf,
    student_quantile,
)


@pytest.mark.parametrize("x", [-8.0, -2.5, -0.1, 0.0, 0.7, 3.0, 6.0])
def test_normal(x: float) -> None:
    assert normal_cdf(x) == pytest.approx(stats.norm.cdf(x), rel=1e-12)
    assert normal_quantile(stats.norm.cdf(min(x, 5))) == pytest.approx(min(x, 5), abs=1e-8)


@pytest.mark.parametrize("df", [1, 2, 3.5, 12, 100, 5000])
@pytest.mark.parametrize("x", [-30.0, -2.2, -0.01, 0.0, 0.5, 1.96, 12.0])
def test_student(x: float, df: float) -> None:
    assert student_cdf(x, df) == pytest.approx(stats.t.cdf(x, df), rel=1e-9, abs=1e-14)


@pytest.mark.parametrize("df", [1, 2, 12, 200])
@pytest.mark.parametrize("p", [0.0005, 0.025, 0.5, 0.95, 0.9999])
def test_student_quantile(p: float, df: int) -> None:
    assert student_quantile(p, df) == pytest.approx(stats.t.ppf(p, df), rel=1e-8, abs=1e-9)


@pytest.mark.parametrize(("a", "b", "x"), [(0.5, 0.5, 0.3), (6, 0.5, 0.99), (40, 3, 0.9), (2, 9, 0.0), (2, 9, 1.0)])
def test_incomplete_beta(a: float, b: float, x: float) -> None:
    assert incomplete_beta(a, b, x) == pytest.approx(special.betainc(a, b, x), rel=1e-11)


def test_a_quantile_needs_a_probability() -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        normal_quantile(1.0)
