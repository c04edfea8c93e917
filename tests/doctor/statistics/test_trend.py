"""The trend test's size and power, its interval, and its parts against independent computations."""

import numpy as np
import pytest
from size_and_power import noise, share_found

from uptrend.doctor.statistics.autocorrelation import effective_size, lag_one, polynomials, residuals
from uptrend.doctor.statistics.trend import measure_trend


# 300 curves: a true 5% lies below 8.8% with a probability of 99.9%; 20 points at .9 are known to reach 10%.
@pytest.mark.parametrize(
    ("points", "rho", "most"),
    [(20, 0.0, 0.088), (20, 0.6, 0.11), (20, 0.9, 0.16), (50, 0.3, 0.088), (100, 0.6, 0.10), (100, 0.9, 0.12),
     (200, 0.9, 0.10), (1000, 0.9, 0.10)],
)  # fmt: skip
def test_false_positives_hold_under_autocorrelation(points: int, rho: float, most: float) -> None:
    assert share_found(points, rho, 0.0, 300) <= most


@pytest.mark.parametrize(("points", "rise"), [(20, 4.0), (50, 2.0), (200, 1.0)])
def test_a_rise_is_found(points: int, rise: float) -> None:
    assert share_found(points, 0.0, rise, 200) > 0.85


def test_the_interval_holds_the_true_change() -> None:
    random = np.random.default_rng(1)
    held = 0
    for _ in range(300):
        trend = measure_trend(noise(random, 80, 0.5) + np.linspace(0, 2, 80))
        assert trend is not None
        low, high = trend.interval()
        held += low <= 2 <= high
    assert held / 300 > 0.92


def test_the_power_is_what_simulation_gives() -> None:
    random = np.random.default_rng(2)
    trends = [measure_trend(noise(random, 100, 0.0)) for _ in range(200)]
    said = np.mean([trend.power(1.0) for trend in trends if trend is not None])
    assert said == pytest.approx(share_found(100, 0.0, 1.0, 300), abs=0.12)


def test_long_curves_are_averaged_and_keep_their_change() -> None:
    trend = measure_trend(np.linspace(3.0, 5.0, 5000) + 0.1 * np.random.default_rng(0).standard_normal(5000))
    assert trend is not None
    assert trend.effect == pytest.approx(2.0, abs=0.05)
    assert trend.df == 12


def test_noiseless_curves() -> None:
    straight, constant = measure_trend(np.linspace(0, 1, 30)), measure_trend(np.full(30, 0.5))
    assert straight is not None
    assert constant is not None
    assert (straight.p, constant.effect, constant.p) == (0.0, pytest.approx(0.0, abs=1e-12), pytest.approx(1.0))
    assert measure_trend(np.array([1.0, 2.0, 3.0])) is None


def test_polynomials_are_orthonormal_and_rise() -> None:
    basis = polynomials(240, 13)
    assert basis.T @ basis == pytest.approx(np.eye(14), abs=1e-9)
    assert (basis[-1] > 0).all()


def test_residuals_are_those_of_a_fitted_line() -> None:
    values = np.random.default_rng(3).standard_normal(40)
    fitted = np.polyval(np.polyfit(np.arange(40), values, 1), np.arange(40))
    assert residuals(values, 1) == pytest.approx(values - fitted, abs=1e-10)


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.8])
def test_the_autocorrelation_is_nearly_unbiased_on_short_curves(rho: float) -> None:
    random = np.random.default_rng(4)
    curves = [noise(random, 40, rho) for _ in range(400)]
    raw = np.mean([np.corrcoef(curve[:-1], curve[1:])[0, 1] for curve in curves])
    ours = np.mean([lag_one(curve) for curve in curves])
    assert ours == pytest.approx(rho, abs=0.06)
    assert abs(ours - rho) < abs(raw - rho) + 0.03


def test_effective_size() -> None:
    assert effective_size(100, 0.0) == 100
    assert effective_size(100, 0.6) == pytest.approx(25.0)
