"""The trend test's size and power, its interval, and its parts against independent computations.

python tests/stats/test_trend_test.py [CURVES] prints the false positives and the power.
"""

# ruff: noqa: I001 (names of one module side by side)

import sys

import numpy as np
import pymannkendall
import pytest
from scipy import stats
from scipy.signal import lfilter
from statsmodels.api import OLS, add_constant

from uptrend.records.view import Floats
from uptrend.stats.trend import (
    end, lag_one, measure_trend, neighbor_noise, points_for, polynomials, power_of_rise, rank_correlation, residuals,
    robust_spread, shift_at, start,
)  # fmt: skip


def noise(random: np.random.Generator, points: int, rho: float) -> Floats:
    """Return AR(1) noise of deviation 1."""
    raw = lfilter([1.0], [1.0, -rho], random.standard_normal(points + 200))[200:]
    return np.asarray(raw * np.sqrt(1 - rho**2))


def share_found(points: int, rho: float, rise: float, curves: int, seed: int = 0) -> float:
    """Return the share of curves in which a trend is found at the 5% level."""
    random = np.random.default_rng([seed, points, int(100 * rho)])
    ramp = np.linspace(0, rise, points)
    found = [measure_trend(noise(random, points, rho) + ramp) for _ in range(curves)]
    return float(np.mean([trend is not None and trend.p < 0.05 for trend in found]))


# 300 curves: a true 5% lies below 8.8% with a probability of 99.9%; 20 points at .9 are known to
# reach 10%.
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


def test_long_and_noiseless_curves() -> None:
    noisy = np.linspace(3.0, 5.0, 5000) + 0.1 * np.random.default_rng(0).standard_normal(5000)
    long, straight, constant = (
        measure_trend(curve) for curve in (noisy, np.linspace(0, 1, 30), np.full(30, 0.5))
    )
    assert long
    assert straight
    assert constant
    assert (long.effect, long.df) == (pytest.approx(2.0, abs=0.05), 12)
    assert (straight.p, straight.power(0.1)) == (0.0, 1.0)
    assert (constant.effect, constant.p) == (0.0, 1.0)
    assert measure_trend(np.array([1.0, 2.0, 3.0])) is None


def test_polynomials_are_orthonormal_and_residuals_are_those_of_a_fitted_line() -> None:
    basis = polynomials(240, 13)
    assert basis.T @ basis == pytest.approx(np.eye(14), abs=1e-9)
    assert (basis[-1] > 0).all()
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


def test_the_effect_is_the_change_along_the_least_squares_line() -> None:
    values = np.random.default_rng(5).standard_normal(90)
    slope = OLS(values, add_constant(np.arange(90))).fit().params[1]
    trend = measure_trend(values)
    assert trend is not None
    assert trend.effect == pytest.approx(89 * slope)


def test_it_agrees_with_mann_and_kendall_on_independent_points_and_holds_where_theirs_does_not() -> (
    None
):
    random = np.random.default_rng(6)
    rising = [noise(random, 60, 0.0) + np.linspace(0, 1.6, 60) for _ in range(100)]
    flat = [noise(random, 60, 0.6) for _ in range(100)]
    ours, theirs = (
        [np.array([found(curve) < 0.05 for curve in curves]) for curves in (rising, flat)]
        for found in (
            lambda curve: measure_trend(curve).p,
            lambda curve: pymannkendall.original_test(curve).p,
        )
    )
    assert (ours[0] == theirs[0]).mean() > 0.8
    assert theirs[1].mean() > 0.2 > 0.12 > ours[1].mean()


@pytest.mark.parametrize("alpha", [0.05, 0.025])
def test_power_of_a_rise_is_what_the_least_squares_slope_has(alpha: float) -> None:
    time = np.linspace(-0.5, 0.5, 100)
    slopes = (np.random.default_rng(0).standard_normal((4000, 100)) + time) @ time / (time @ time)
    found = (slopes * np.sqrt(time @ time) > stats.norm.ppf(1 - alpha)).mean()
    assert power_of_rise(1.0, 1.0, 100, alpha) == pytest.approx(found, abs=0.03)
    assert power_of_rise(0.1, 0.0, 10, alpha) == 1.0
    needed = points_for(0.1, 0.13, 0.8, alpha)
    assert (
        power_of_rise(0.1, 0.13, needed, alpha) >= 0.8 > power_of_rise(0.1, 0.13, needed - 1, alpha)
    )


def test_shifts_are_measured_in_noise_that_trends_do_not_inflate() -> None:
    values = 0.1 * np.random.default_rng(0).standard_normal(100)
    assert abs(shift_at(values, 50).z) < 4
    values[60:] -= 1
    shift = shift_at(values, 60)
    assert shift.z < -20
    assert shift.change == pytest.approx(-1, abs=0.1)
    rising = np.random.default_rng(0).standard_normal(2000) + np.linspace(0, 50, 2000)
    assert neighbor_noise(rising) == pytest.approx(1, abs=0.05)


def test_spread_levels_and_rank_correlation() -> None:
    values = np.random.default_rng(0).standard_normal(4000)
    values[:40] = 1000
    assert robust_spread(values) == pytest.approx(1, abs=0.05)
    assert robust_spread(np.zeros(0)) == 0
    assert (start(np.arange(8.0)), end(np.arange(8.0))) == (1.0, 6.0)
    a, b = np.round(np.random.default_rng(1).standard_normal((2, 50)), 1)  # with ties
    assert rank_correlation(a, a + b) == pytest.approx(stats.spearmanr(a, a + b).statistic)
    assert rank_correlation(a, np.ones(50)) == 0


if __name__ == "__main__":
    curves = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    for points, rise in {20: 4.0, 50: 2.0, 100: 1.4, 200: 1.0, 1000: 0.45}.items():
        false = [share_found(points, rho, 0.0, curves) for rho in (0, 0.3, 0.6, 0.9)]
        true = [share_found(points, rho, rise, curves) for rho in (0, 0.3)]
        print(f"{points} points: false {np.round(false, 3)}, power {np.round(true, 3)}", flush=True)
