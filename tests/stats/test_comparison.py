"""Tests of arms, and power, against scipy, statsmodels, enumeration and simulation."""

# ruff: noqa: I001 (names of one module side by side)

import itertools
import math

import numpy as np
import pytest
import statsmodels.api as sm
from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower

from uptrend.stats import comparison
from uptrend.stats.comparison import (
    benjamini_hochberg, chances, fewest, fewest_seeds, mcnemar, outliers, paired_p, sign_flip,
)  # fmt: skip
from uptrend.stats.intervals import likely_deviation, spread_of, student_interval, student_reach

RANDOM = np.random.default_rng(5)


@pytest.mark.parametrize("seeds", [2, 3, 5, 8, 16])
@pytest.mark.parametrize("alpha", [0.05, 0.025, 0.01])
def test_interval_and_p_are_scipys(seeds: int, alpha: float) -> None:
    arm, control = RANDOM.normal(0.6, 0.03, seeds), RANDOM.normal(0.55, 0.03, seeds)
    expected = stats.ttest_rel(arm, control)
    ends = expected.confidence_interval(1 - alpha)
    found = student_interval(arm - control, alpha)
    assert (found.low, found.high) == pytest.approx((ends.low, ends.high), rel=1e-9)
    assert found.effect == pytest.approx(np.mean(arm - control))
    assert paired_p(spread_of(arm - control)) == pytest.approx(expected.pvalue, rel=1e-9)
    shifted = stats.ttest_1samp(arm - control, 0.05).pvalue
    assert paired_p(spread_of(arm - control), 0.05) == pytest.approx(shifted, rel=1e-9)


def test_one_seed_excludes_nothing() -> None:
    interval = student_interval(np.array([0.3]))
    assert (interval.effect, interval.low, interval.high) == (0.3, -math.inf, math.inf)
    assert paired_p(spread_of(np.array([0.3]))) == 1.0
    assert student_reach(1, 0.05) == math.inf
    assert chances(0.05, 0.01, 1, 0.05).decided == 0.0


def test_equal_differences_are_left_to_the_sign_flip_test() -> None:
    five, six = np.full(5, 0.1 + 0.2 - 0.25), np.full(6, 0.05)
    five[0] = 0.05  # equal but for rounding
    assert spread_of(five).deviation == 0.0
    assert student_interval(five).low == -math.inf  # 2^-4 is above .05
    assert student_interval(six).low == pytest.approx(0.05)  # 2^-5 is not
    assert student_interval(six, alpha=0.025).low == -math.inf
    assert paired_p(spread_of(six)) == 2**-5
    assert paired_p(spread_of(np.zeros(6))) == 1.0
    assert chances(0.05, 0.0, 5, 0.05).decided == 0.0
    assert chances(0.05, 0.0, 6, 0.05).validated == 1.0
    assert chances(-0.05, 0.0, 6, 0.05).invalidated == 1.0
    assert chances(-0.05, 0.0, 6, 0.05, either=True).validated == 1.0
    assert chances(0.0, 0.0, 6, 0.0).decided == 0.0


@pytest.mark.parametrize("seeds", [5, 8, 16])
def test_what_stands_apart_is_statsmodels_outlier_at_two_percent(seeds: int) -> None:
    found = 0
    for _ in range(400):
        differences = RANDOM.standard_t(3, seeds)
        tested = sm.OLS(differences, np.ones(seeds)).fit().outlier_test(method="bonf")
        expected = np.flatnonzero(np.asarray(tested)[:, 2] < 0.02).tolist()
        assert outliers(differences) == expected
        found += bool(expected)
    assert found > 8
    assert outliers(np.array([0.0, 0.0, 0.0, 9.0])) == []
    assert outliers(np.zeros(8)) == []


@pytest.mark.parametrize("seeds", [2, 3, 5, 8, 20])
def test_the_likely_deviation_is_as_often_too_small_as_too_large(seeds: int) -> None:
    df = seeds - 1
    at_the_median = spread_of(RANDOM.normal(size=seeds))
    true = at_the_median.deviation / math.sqrt(stats.chi2.median(df) / df)
    assert likely_deviation(at_the_median) == pytest.approx(true)


def test_mcnemar_is_the_exact_binomial_test() -> None:
    for only_a, only_b in itertools.product(range(12), repeat=2):
        n = only_a + only_b
        expected = stats.binomtest(only_a, n).pvalue if n else 1.0
        assert mcnemar(only_a, only_b) == pytest.approx(expected)
    assert mcnemar(700, 900) == pytest.approx(stats.binomtest(700, 1600).pvalue, rel=1e-9)


@pytest.mark.parametrize("seeds", [2, 3, 5, 8, 12])
def test_sign_flip_p_is_scipys(seeds: int) -> None:
    differences = RANDOM.normal(0.3, 1, seeds)
    found = sign_flip(differences)
    for side, ours in (("greater", found.up), ("less", found.down), ("two-sided", found.both)):
        theirs = stats.permutation_test(
            (differences,),
            np.sum,
            permutation_type="samples",
            alternative=side,
            n_resamples=2**seeds,
            vectorized=False,
        )
        assert ours == pytest.approx(theirs.pvalue), side


def test_sign_flip_by_hand() -> None:
    # 1, 2, -1: sums over the eight flips are ±4, ±2, ±2, 0, 0; seen is 2.
    found = sign_flip(np.array([1.0, 2.0, -1.0]))
    assert (found.up, found.down, found.both) == (3 / 8, 7 / 8, 6 / 8)
    for seeds in (5, 6, 8):  # the least that so many can give
        found = sign_flip(np.linspace(0.1, 0.2, seeds))
        assert (found.up, found.both) == (2**-seeds, 2 ** (1 - seeds))
    assert (
        sign_flip(np.array([0.1, 0.2, 0.3, 0.1 + 0.2, 0.3 - 1e-17])).up == 2**-5
    )  # ties but for rounding
    assert [fewest_seeds(alpha) for alpha in (0.5, 0.05, 0.025, 0.0625, 0.05 / 8)] == [
        2,
        6,
        7,
        5,
        9,
    ]


def test_many_seeds_are_drawn_and_near_the_enumeration(monkeypatch: pytest.MonkeyPatch) -> None:
    differences = RANDOM.normal(0.4, 1, 16)
    exact = sign_flip(differences)
    monkeypatch.setattr(comparison, "MAX_EXACT_SEEDS", 15)
    drawn = sign_flip(differences)
    assert drawn.up == pytest.approx(exact.up, abs=4 * np.sqrt(exact.up / comparison.DRAWN_FLIPS))
    assert drawn.up != exact.up
    assert sign_flip(differences) == drawn


@pytest.mark.parametrize("count", [1, 2, 8, 40])
def test_adjusted_p_is_statsmodels(count: int) -> None:
    ps = np.random.default_rng(count).random(count) ** 2
    ps[: count // 4] = ps[-1]  # ties
    assert benjamini_hochberg(ps.tolist()) == pytest.approx(multipletests(ps, method="fdr_bh")[1])
    assert benjamini_hochberg([]) == []


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


@pytest.mark.parametrize("threshold", [2, 3, 7, 8, 9, 100, 1000])
def test_the_fewest_that_are_enough(threshold: int) -> None:
    assert fewest(lambda count: count >= threshold) == threshold
    assert fewest(lambda count: count >= 1001) is None
    assert fewest(lambda count: count >= threshold, least=50, most=4000) == max(50, threshold)
    expected = TTestPower().solve_power(0.05 / 0.06, power=0.8, alpha=0.025, alternative="larger")
    assert fewest(lambda n: chances(0.05, 0.06, n, smallest=0.0).validated >= 0.8) == math.ceil(
        expected
    )
