"""The chance of improvement, against scipy, Hanley and McNeil, statsmodels, and simulation."""

import math

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.nonparametric import rank_compare_2indep

from uptrend.lab.statistics.improvement import chance_of_improvement

RANDOM = np.random.default_rng(8)


def test_the_chance_is_mann_and_whitneys_averaged_over_tasksets() -> None:
    arm, control = np.round(RANDOM.normal(0.6, 0.05, (8, 3)), 2), np.round(RANDOM.normal(0.56, 0.05, (8, 3)), 2)
    each = [stats.mannwhitneyu(a, c).statistic / 64 for a, c in zip(arm.T, control.T, strict=True)]
    assert chance_of_improvement(arm, control).effect == pytest.approx(np.mean(each))


@pytest.mark.parametrize("seeds", [3, 5, 8])
def test_its_ends_are_where_hanley_and_mcneils_error_ends(seeds: int) -> None:
    arm, control = np.linspace(0, 1, seeds)[:, None] + 0.2, np.linspace(0, 1, seeds)[:, None]
    found = chance_of_improvement(arm, control)
    for end in (found.low, found.high):
        q1, q2 = end / (2 - end), 2 * end**2 / (1 + end)
        variance = (end * (1 - end) + (seeds - 1) * (q1 - end**2 + q2 - end**2)) / seeds**2
        assert abs(found.effect - end) == pytest.approx(1.959964 * math.sqrt(variance), rel=1e-5)


def test_with_many_seeds_it_is_statsmodels() -> None:
    arm, control = RANDOM.exponential(1.4, 400), RANDOM.exponential(1.0, 400)
    theirs = rank_compare_2indep(arm, control).conf_int(alpha=0.05)
    found = chance_of_improvement(arm[:, None], control[:, None])
    assert (found.low, found.high) == pytest.approx(theirs, abs=0.004)


def test_where_every_run_beats_every_other_there_is_doubt_left() -> None:
    found = chance_of_improvement(np.array([[0.7], [0.8], [0.9]]), np.array([[0.1], [0.2], [0.3]]))
    assert found.effect == 1.0
    assert found.high == pytest.approx(1.0)
    assert 0.3 < found.low < 0.6


@pytest.mark.parametrize("seeds", [5, 8, 16])
@pytest.mark.parametrize("effect", [0.0, 1.0, 2.0])
def test_coverage(seeds: int, effect: float) -> None:
    true, random = stats.norm.cdf(effect / math.sqrt(2)), np.random.default_rng(seeds)
    found = [
        chance_of_improvement(random.normal(effect, 1, (seeds, 1)), random.normal(0, 1, (seeds, 1)))
        for _ in range(1200)
    ]
    assert 0.93 <= np.mean([one.low <= true <= one.high for one in found]) <= 0.98
