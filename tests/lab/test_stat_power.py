"""Power, against scipy's noncentral t, statsmodels, and simulation."""

import math

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.power import TTestPower

from uptrend.lab.statistics.paired import student_reach
from uptrend.lab.statistics.power import chances, fewest, noncentral_above


@pytest.mark.parametrize("df", [1, 2, 4, 7, 15, 60, 400])
@pytest.mark.parametrize("shift", [0.0, 1.0, 3.0, 6.0])
def test_noncentral_t_is_scipys(df: int, shift: float) -> None:
    for critical in (-1.0, 0.5, 2.0, 4.0):
        assert noncentral_above(critical, df, shift) == pytest.approx(stats.nct.sf(critical, df, shift), abs=1e-6)


@pytest.mark.parametrize("seeds", [3, 5, 8, 16])
@pytest.mark.parametrize("deviation", [0.02, 0.05, 0.1])
def test_the_chance_to_validate_is_statsmodels(seeds: int, deviation: float) -> None:
    """With a smallest effect of 0 no effect is too small to count."""
    found = chances(0.05, deviation, seeds, smallest=0.0).validated
    expected = TTestPower().power(0.05 / deviation, seeds, 0.025, alternative="larger")
    assert found == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("either", [False, True])
@pytest.mark.parametrize("effect", [-0.05, 0.0, 0.02, 0.05, 0.08])
def test_both_chances_are_what_a_simulation_gives(effect: float, either: bool) -> None:
    seeds, deviation, smallest, experiments = 5, 0.03, 0.05, 100_000
    drawn = np.random.default_rng(9).normal(effect, deviation, (experiments, seeds))
    mean, half = drawn.mean(axis=1), student_reach(seeds, 0.05) * drawn.std(axis=1, ddof=1)
    mean = np.abs(mean) if either else mean
    invalidated = mean + half < smallest
    validated = (mean - half > 0) & ~invalidated
    found = chances(effect, deviation, seeds, smallest, either=either)
    assert found.validated == pytest.approx(validated.mean(), abs=0.006)
    assert found.invalidated == pytest.approx(invalidated.mean(), abs=0.006)
    assert found.decided == found.validated + found.invalidated


def test_without_deviation_the_sign_flip_test_sets_the_seeds() -> None:
    assert chances(0.05, 0.0, 5, 0.05).decided == 0.0
    assert chances(0.05, 0.0, 6, 0.05).validated == 1.0
    assert chances(-0.05, 0.0, 6, 0.05).invalidated == 1.0
    assert chances(-0.05, 0.0, 6, 0.05, either=True).validated == 1.0
    assert chances(0.05, 0.01, 1, 0.05).decided == 0.0


@pytest.mark.parametrize("threshold", [2, 3, 7, 8, 9, 100, 1000])
def test_the_fewest_that_are_enough(threshold: int) -> None:
    assert fewest(lambda count: count >= threshold) == threshold
    assert fewest(lambda count: count >= 1001) is None
    assert fewest(lambda count: count >= threshold, least=50, most=4000) == max(50, threshold)


def test_seeds_for_a_power_are_statsmodels() -> None:
    expected = TTestPower().solve_power(0.05 / 0.06, power=0.8, alpha=0.025, alternative="larger")
    assert fewest(lambda n: chances(0.05, 0.06, n, smallest=0.0).validated >= 0.8) == math.ceil(expected)
