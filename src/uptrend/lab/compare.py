"""One arm against the control, seed by seed: every figure that a verdict rests on, and what more
seeds would show.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from uptrend.records import Comparison, Direction, Hypothesis, Interval, Measured, Status
from uptrend.records.metrics import first_step
from uptrend.records.view import Floats
from uptrend.stats import comparison, intervals
from uptrend.stats.comparison import Chances, fewest_seeds

# Chance of a verdict that is called enough.
ENOUGH = 0.8
# Most held-out tasks that are asked for, as a multiple of those that there are.
MOST_TASKS = 10


@dataclass(frozen=True)
class Pairs:
    """An arm's runs beside the control's, by seed."""

    arm: str
    sign: float  # −1 where the claim says down, so that positive effects are as claimed
    seeds: tuple[int, ...]  # seeds that both have
    control: tuple[Measured, ...]
    treated: tuple[Measured, ...]
    # seeds that one of the two lacks, or whose figure is no number: left out
    broken: tuple[int, ...]
    waiting: tuple[int, ...]  # seeds that neither has: not run yet, or not any more

    @property
    def differences(self) -> Floats:
        """Arm less control by seed, in the claimed direction."""
        values = [
            after.value - before.value
            for before, after in zip(self.control, self.treated, strict=True)
        ]
        return self.sign * np.array(values, dtype=np.float64)

    @property
    def bounds(self) -> tuple[Floats, Floats]:
        """Least and greatest value of each difference, unbounded where a run never reached the
        value it should.
        """
        late, early = (
            np.array([not run.reached for run in side]) for side in (self.treated, self.control)
        )
        can_grow, can_fall = (late, early) if self.sign > 0 else (early, late)
        return np.where(can_fall, -np.inf, self.differences), np.where(
            can_grow, np.inf, self.differences
        )

    @property
    def table(self) -> Floats:
        """Differences by seed and task, for the tasks that all these runs have."""
        runs = (*self.control, *self.treated)
        tasks = (
            [task for task in runs[0].tasks if all(task in run.tasks for run in runs)]
            if runs
            else []
        )
        values = np.array([[run.tasks[task] for task in tasks] for run in runs], dtype=np.float64)
        before, after = values.reshape(2, len(self.seeds), len(tasks))
        table: Floats = self.sign * (after - before)
        return table[:, np.isfinite(table).all(axis=0)]

    @property
    def by_family(self) -> tuple[Floats, Floats] | None:
        """Control and arm as seeds × tasksets, in the claimed direction; None where the tasks are
        of one taskset.
        """
        means = list[dict[str, float]]()
        for run in (*self.control, *self.treated):
            of = dict[str, list[float]]()
            for task, value in run.tasks.items():
                of.setdefault(run.families.get(task, ""), []).append(value)
            means.append({family: sum(values) / len(values) for family, values in of.items()})
        families = sorted(means[0]) if means else []
        if len(families) < 2 or any(sorted(run) != families for run in means):
            return None
        table = self.sign * np.array([[run[name] for name in families] for run in means])
        return table[: len(self.seeds)], table[len(self.seeds) :]


def pair(h: Hypothesis, measured: Sequence[Measured], arm: str) -> Pairs:
    """Put one arm's runs beside the control's; seeds that the hypothesis does not name do not
    count.
    """
    control, treated = (
        {run.seed: run for run in measured if run.arm == name} for name in (h.control.name, arm)
    )
    waiting = tuple(seed for seed in h.seeds if seed not in control and seed not in treated)
    both = [seed for seed in h.seeds if seed in control and seed in treated]
    seeds = tuple(seed for seed in both if math.isfinite(control[seed].value + treated[seed].value))
    broken = tuple(seed for seed in h.seeds if seed not in (*seeds, *waiting))
    before, after = (tuple(side[seed] for seed in seeds) for side in (control, treated))
    return Pairs(
        arm, -1.0 if h.direction is Direction.DOWN else 1.0, seeds, before, after, broken, waiting
    )


def alpha_of(h: Hypothesis) -> float:
    """Return each arm's share of alpha.

    Shared among the arms (Bonferroni). A directional claim errs on one side only, so that the
    sequence and the final interval, each two-sided at this level, err together as often as it says.
    A claim of either direction errs on both, and where it may stop early each of the two gets half.
    """
    share = h.alpha / len(h.treated)
    return share / 2 if h.direction is Direction.EITHER and h.stops_early else share


def least_seeds(h: Hypothesis) -> int:
    """Return the fewest paired seeds that decide: those with which the exact test can reach alpha.

    Student's interval excludes 0 with two seeds already, if they happen to agree: it takes their
    spread for normal, which two differences can't show. The sign-flip test supposes no more than
    symmetry. While its least p, that of differences that all point one way, is above alpha, nothing
    but that supposition decides.
    """
    if first_step(h.metric):
        return fewest_seeds(alpha_of(h))  # the sign test on the median, two-sided
    one_sided = 1.0 if h.direction is Direction.EITHER else 2.0
    return max(2, fewest_seeds(one_sided * h.alpha))


@dataclass(frozen=True)
class Plan:
    """Chances of an experiment, for a deviation between seeds that is supposed or was measured."""

    # chance that the planned seeds validate the smallest effect that matters, where it is there
    power: float
    seeds_for_80: int | None  # number that validates it with a chance of 80%; None beyond 1,000


def foresee(h: Hypothesis, effect: float, deviation: float, seeds: int) -> Chances:
    """Return the chances of the two verdicts where the true effect is this."""
    if seeds < least_seeds(h):
        return Chances(0.0, 0.0)
    return comparison.chances(
        effect, deviation, seeds, h.smallest, alpha_of(h), h.direction is Direction.EITHER
    )


def plan(h: Hypothesis, deviation: float) -> Plan:
    """Return what the planned seeds can show where paired differences deviate by this much between
    seeds.
    """
    power = foresee(h, h.smallest, deviation, len(h.seeds)).validated
    needed = comparison.fewest(
        lambda seeds: foresee(h, h.smallest, deviation, seeds).validated >= ENOUGH
    )
    return Plan(power, needed)


def tasks_to_decide(
    h: Hypothesis, effect: float, deviation: float, seeds: int, tasks: int, rest: float
) -> int | None:
    """Return the held-out tasks that decide with a chance of 80%, if `rest` is the variance that is
    a task's own.
    """
    if rest <= 0 or deviation == 0:
        return None
    # Of the variance between seeds rest/tasks is chance on these tasks and falls with their number.
    own = max(0.0, deviation**2 - rest / tasks)

    def is_enough(count: int) -> bool:
        return foresee(h, effect, math.sqrt(own + rest / count), seeds).decided >= ENOUGH

    return comparison.fewest(is_enough, tasks, MOST_TASKS * tasks)


def interval_and_p(h: Hypothesis, pairs: Pairs, by_sequence: bool) -> tuple[Interval, float]:
    """Return the interval that decides, and its p: by the confidence sequence, or at the end by
    Student's t.

    Steps to a value have no mean, since a run may never reach it. Their median is compared by the
    exact sign test, which holds once, after all seeds: an earlier look decides nothing.
    """
    alpha = alpha_of(h)
    spread = intervals.spread_of(pairs.differences)
    if first_step(h.metric):
        low, high = pairs.bounds
        found = intervals.median_interval(pairs.differences, alpha, low, high)
        if by_sequence:
            return Interval(found.effect, -math.inf, math.inf), 1.0
        return found, comparison.mcnemar(int((low > 0).sum()), int((high < 0).sum()))
    if by_sequence:
        return intervals.sequence_interval(spread, alpha), comparison.sequence_p(spread)
    reach = intervals.student_reach(spread.seeds, alpha)
    return intervals.interval_of(spread, reach, alpha), comparison.paired_p(spread)


def towards(h: Hypothesis, interval: Interval) -> Interval:
    """Return the interval as the criteria see it: a claim of either direction is read on the side
    it fell to.

    There `low > 0` says that the interval excludes 0, and `high < smallest` that it lies within ±
    smallest.
    """
    if h.direction is Direction.EITHER and interval.effect < 0:
        return Interval(-interval.effect, -interval.high, -interval.low)
    return interval


def status_of(h: Hypothesis, pairs: Pairs, interval: Interval) -> Status:
    """Apply the criteria, invalidated first: an effect may be there and smaller than matters.

    Fewer seeds than `least_seeds` decide nothing.
    """
    if len(pairs.seeds) < least_seeds(h):
        return Status.INCONCLUSIVE
    claimed = towards(h, interval)
    if claimed.high < h.smallest:
        return Status.INVALIDATED
    return Status.VALIDATED if claimed.low > 0 else Status.INCONCLUSIVE


def compare(h: Hypothesis, pairs: Pairs, by_sequence: bool) -> Comparison:
    """Compare an arm with the control on their common seeds; `judge` adds the sentence."""
    spread = intervals.spread_of(pairs.differences)
    is_ranked = first_step(h.metric) is not None
    interval, p = interval_and_p(h, pairs, by_sequence)
    status = status_of(h, pairs, interval)
    sides = [np.array([[run.value] for run in side]) for side in (pairs.control, pairs.treated)]
    control, arm = (math.nan if is_ranked else float(side.mean()) for side in sides)
    low, high = pairs.bounds
    flipped = comparison.sign_flip(
        np.sign(low) * (np.sign(low) == np.sign(high)) if is_ranked else pairs.differences
    )
    families = pairs.by_family
    deviation = intervals.likely_deviation(spread)
    needed = None
    if status is Status.INCONCLUSIVE and spread.seeds > 1 and not is_ranked:
        needed = comparison.fewest(
            lambda n: foresee(h, spread.mean, deviation, n).decided >= ENOUGH
        )
    before, after = families or (pairs.sign * sides[0], pairs.sign * sides[1])
    return Comparison(
        arm=pairs.arm,
        seeds=pairs.seeds,
        differences=tuple(float(d) for d in pairs.differences),
        control_mean=control,
        arm_mean=arm,
        interval=interval,
        level=1 - alpha_of(h),
        p=p,
        p_adjusted=None,
        sign_flip=min(flipped.up, flipped.down) if h.direction is Direction.EITHER else flipped.up,
        sign_flip_both=flipped.both,
        sign_flip_least=2.0**-spread.seeds,
        improvement=intervals.chance_of_improvement(after, before, h.alpha),
        tasks_too=intervals.crossed_interval(pairs.table, alpha_of(h)),
        iqm=intervals.iqm_difference(after, before, h.alpha) if families else None,
        power=math.nan if is_ranked else foresee(h, h.smallest, deviation, spread.seeds).validated,
        # these should have been enough, and were not
        seeds_needed=needed and max(needed, spread.seeds + 1),
        status=status,
        sentence="",
    )
