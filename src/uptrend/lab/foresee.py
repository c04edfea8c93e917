"""What seeds can show before they are run, and how many more would decide once they were."""

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri, stdtr

from uptrend.lab import criteria
from uptrend.lab.rules import alpha_of, has_own_criteria
from uptrend.records.hypothesis import Direction, Hypothesis
from uptrend.stats.comparison import Chances, chances, deviation_ratios, fewest
from uptrend.stats.intervals import student_reach

ENOUGH = 0.8
"""The chance of a verdict that is called enough."""
MEANS = 200
"""By how many means an own criterion is weighed, for each deviation."""
MOST_TASKS = 10
"""So many times the tasks that there are is the most that is asked for."""


@dataclass(frozen=True)
class Plan:
    """What an experiment can show, for a deviation between seeds that is supposed or was measured."""

    seeds: int
    """How many are planned."""
    deviation: float
    """Of the paired differences between seeds."""
    power: float
    """The chance that they validate the smallest effect that matters, where it is there."""
    seeds_for_80: int | None
    """How many validate it with a chance of 80%; none beyond 1,000."""


def foresee(h: Hypothesis, effect: float, deviation: float, seeds: int, control: float = math.nan) -> Chances:
    """The chances of the two verdicts where the true effect is this."""
    if has_own_criteria(h) and deviation > 0 and seeds > 1:
        return _by_criteria(h, effect, deviation, seeds, control)
    return chances(effect, deviation, seeds, h.smallest, alpha_of(h), h.direction is Direction.EITHER)


def plan(h: Hypothesis, deviation: float) -> Plan:
    """What the planned seeds can show where paired differences deviate by this much between seeds."""
    power = foresee(h, h.smallest, deviation, len(h.seeds)).validated
    needed = fewest(lambda seeds: foresee(h, h.smallest, deviation, seeds).validated >= ENOUGH)
    return Plan(len(h.seeds), deviation, power, needed)


def seeds_to_decide(h: Hypothesis, effect: float, deviation: float, control: float) -> int | None:
    """How many seeds would give a verdict with a chance of 80%, where effect and deviation are as they seem."""
    return fewest(lambda seeds: foresee(h, effect, deviation, seeds, control).decided >= ENOUGH)


def tasks_to_decide(h: Hypothesis, effect: float, deviation: float, seeds: int, tasks: int, rest: float) -> int | None:
    """How many held-out tasks would, with these seeds: `rest` is the variance that is a task's own.

    Of the variance between seeds rest/tasks is chance on these tasks and falls with their number; the seeds' own stays.
    """
    own = max(0.0, deviation**2 - rest / tasks)
    if has_own_criteria(h) or rest <= 0 or deviation == 0:
        return None

    def is_enough(count: int) -> bool:
        return foresee(h, effect, math.sqrt(own + rest / count), seeds).decided >= ENOUGH

    return fewest(is_enough, tasks, MOST_TASKS * tasks)


def _by_criteria(h: Hypothesis, effect: float, deviation: float, seeds: int, control: float) -> Chances:
    """The same for criteria of one's own: outcomes on a grid of means and deviations, each with its weight."""
    ratio, mass = deviation_ratios(seeds - 1)
    error = deviation * ratio[None, :] / math.sqrt(seeds)
    mean = effect + deviation / math.sqrt(seeds) * ndtri((np.arange(MEANS) + 0.5) / MEANS)[:, None]
    side = np.where((mean < 0) & (h.direction is Direction.EITHER), -1.0, 1.0)
    half = student_reach(seeds, alpha_of(h)) * deviation * ratio[None, :]
    sign = -1.0 if h.direction is Direction.DOWN else 1.0
    values = {"effect": side * mean + 0 * half, "low": side * mean - half, "high": side * mean + half}
    values |= {"control": np.full_like(half, control), "arm": control + sign * mean + 0 * half}
    values |= {"p": 2 * stdtr(seeds - 1, -np.abs(mean) / error), "smallest": np.full_like(half, h.smallest)}
    against = criteria.parse(h.invalidated_if).meets(values)
    for_it = criteria.parse(h.validated_if).meets(values) & ~against
    return Chances(*(float(np.mean(met, axis=0) @ mass) for met in (for_it, against)))
