"""What seeds can show, beforehand and afterwards."""

import math

import numpy as np
import pytest
from made_runs import claim
from scipy import stats
from statsmodels.stats.power import TTestPower

from uptrend.lab.foresee import foresee, seeds_to_decide, tasks_to_decide
from uptrend.lab.judge import plan
from uptrend.records import Direction


def test_a_plan_tells_power_and_the_seeds_for_80_percent() -> None:
    seen = plan(claim(seeds=5), deviation=0.06)
    expected = TTestPower().power(0.05 / 0.06, 5, 0.025, alternative="larger")
    assert (seen.seeds, seen.deviation) == (5, 0.06)
    assert seen.power == pytest.approx(expected, abs=0.01)  # less what an interval below the smallest effect takes
    assert seen.seeds_for_80 in (14, 15)
    enough, short = (plan(claim(seeds=seen.seeds_for_80 + more), 0.06).power for more in (0, -1))
    assert short < 0.8 <= enough


def test_a_hopeless_plan_says_so() -> None:
    assert plan(claim(seeds=5, smallest=0.001), deviation=0.2).seeds_for_80 is None


@pytest.mark.parametrize("direction", [Direction.UP, Direction.DOWN, Direction.EITHER])
@pytest.mark.parametrize("effect", [-0.03, 0.0, 0.05])
def test_the_grid_for_own_criteria_agrees_with_the_integral_for_the_usual_ones(
    direction: Direction, effect: float
) -> None:
    usual = claim(direction=direction)
    same = claim(direction=direction, validated_if="0 < low", invalidated_if="smallest > high")
    found, expected = (foresee(h, effect, 0.04, 6) for h in (same, usual))
    assert found.validated == pytest.approx(expected.validated, abs=0.01)
    assert found.invalidated == pytest.approx(expected.invalidated, abs=0.01)


def test_own_criteria_on_p_and_on_the_means() -> None:
    by_p = claim(validated_if="effect > 0 and p < 0.05", invalidated_if="high < smallest")
    assert foresee(by_p, 0.05, 0.05, 8).validated == pytest.approx(foresee(claim(), 0.05, 0.05, 8).validated, abs=0.01)
    above = stats.norm.sf(0.6, loc=0.59, scale=0.05 / math.sqrt(8))
    rises = claim(validated_if="arm > 0.6", invalidated_if="arm < 0.5")
    assert foresee(rises, 0.05, 0.05, 8, control=0.54).validated == pytest.approx(above, abs=0.01)
    falls = claim(validated_if="arm > 0.6", invalidated_if="arm < 0.5", direction=Direction.DOWN)
    assert foresee(falls, 0.05, 0.05, 8, control=0.64).validated == pytest.approx(above, abs=0.01)


def test_seeds_to_decide_are_fewer_the_clearer_it_is() -> None:
    needed = [seeds_to_decide(claim(), effect, 0.05, 0.5) for effect in (0.025, 0.05, 0.1, 0.2)]
    assert needed == sorted(needed, reverse=True, key=lambda n: n or 0)
    assert needed[-1] == 3
    drawn = np.random.default_rng(0).normal(0.1, 0.05, (20_000, needed[2] or 0))
    low = drawn.mean(axis=1) - _reach(drawn.shape[1]) * drawn.std(axis=1, ddof=1)
    assert (low > 0).mean() >= 0.79


def _reach(seeds: int) -> float:
    return float(stats.t.ppf(0.975, seeds - 1) / math.sqrt(seeds))


def test_tasks_help_as_far_as_the_noise_is_theirs() -> None:
    rest, tasks = 0.4, 100  # 6.3 points of deviation are the tasks' own
    all_theirs = tasks_to_decide(claim(), 0.05, math.sqrt(rest / tasks), 8, tasks, rest)
    assert all_theirs is not None
    assert foresee(claim(), 0.05, math.sqrt(rest / all_theirs), 8).decided >= 0.8
    assert foresee(claim(), 0.05, math.sqrt(rest / (all_theirs - 1)), 8).decided < 0.8
    assert tasks_to_decide(claim(), 0.05, 0.15, 8, tasks, rest) is None  # the seeds' own deviation is too much
    assert tasks_to_decide(claim(), 0.05, 0.0, 8, tasks, rest) is None
