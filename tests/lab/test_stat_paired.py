"""Student's paired interval, against scipy."""

import math

import numpy as np
import pytest
import statsmodels.api as sm
from scipy import stats

from uptrend.lab.statistics.paired import apart, likely_deviation, paired_interval, paired_p, spread_of, student_reach

RANDOM = np.random.default_rng(5)


@pytest.mark.parametrize("seeds", [2, 3, 5, 8, 16])
@pytest.mark.parametrize("alpha", [0.05, 0.025, 0.01])
def test_interval_and_p_are_scipys(seeds: int, alpha: float) -> None:
    arm, control = RANDOM.normal(0.6, 0.03, seeds), RANDOM.normal(0.55, 0.03, seeds)
    expected = stats.ttest_rel(arm, control)
    ends = expected.confidence_interval(1 - alpha)
    found = paired_interval(arm - control, alpha)
    assert (found.low, found.high) == pytest.approx((ends.low, ends.high), rel=1e-9)
    assert found.effect == pytest.approx(np.mean(arm - control))
    assert paired_p(spread_of(arm - control)) == pytest.approx(expected.pvalue, rel=1e-9)
    shifted = stats.ttest_1samp(arm - control, 0.05).pvalue
    assert paired_p(spread_of(arm - control), 0.05) == pytest.approx(shifted, rel=1e-9)


def test_one_seed_excludes_nothing() -> None:
    interval = paired_interval(np.array([0.3]))
    assert (interval.effect, interval.low, interval.high) == (0.3, -math.inf, math.inf)
    assert paired_p(spread_of(np.array([0.3]))) == 1.0
    assert student_reach(1, 0.05) == math.inf


def test_equal_differences_are_left_to_the_sign_flip_test() -> None:
    five, six = np.full(5, 0.1 + 0.2 - 0.25), np.full(6, 0.05)
    five[0] = 0.05  # equal but for rounding
    assert spread_of(five).deviation == 0.0
    assert paired_interval(five).low == -math.inf  # 2^-4 is above .05
    assert paired_interval(six).low == pytest.approx(0.05)  # 2^-5 is not
    assert paired_interval(six, alpha=0.025).low == -math.inf
    assert paired_p(spread_of(six)) == 2**-5
    assert paired_p(spread_of(np.zeros(6))) == 1.0


@pytest.mark.parametrize("seeds", [5, 8, 16])
def test_what_stands_apart_is_statsmodels_outlier_at_two_percent(seeds: int) -> None:
    found = 0
    for _ in range(400):
        differences = RANDOM.standard_t(3, seeds)
        tested = sm.OLS(differences, np.ones(seeds)).fit().outlier_test(method="bonf")
        expected = np.flatnonzero(np.asarray(tested)[:, 2] < 0.02).tolist()
        assert apart(differences) == expected
        found += bool(expected)
    assert found > 8
    assert apart(np.array([0.0, 0.0, 0.0, 9.0])) == []
    assert apart(np.zeros(8)) == []


@pytest.mark.parametrize("seeds", [2, 3, 5, 8, 20])
def test_the_likely_deviation_is_as_often_too_small_as_too_large(seeds: int) -> None:
    df = seeds - 1
    at_the_median = spread_of(RANDOM.normal(size=seeds))
    true = at_the_median.deviation / math.sqrt(stats.chi2.median(df) / df)
    assert likely_deviation(at_the_median) == pytest.approx(true, rel=0.02)
