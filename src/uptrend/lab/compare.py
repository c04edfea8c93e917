"""One arm against the control, seed by seed: every figure that a verdict rests on, and what more
seeds would show.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from uptrend.records import Comparison, Direction, Hypothesis, Interval, Measured, Status
from uptrend.records.metrics import is_first_step
from uptrend.records.view import Floats
from uptrend.stats import comparison, intervals
from uptrend.stats.comparison import Chances, fewest_seeds

# Chance of a verdict that seeds or tasks are asked for; the usual power of a planned study.
TARGET_POWER = 0.8
# Maximum of held-out tasks that are asked for, as a multiple of those that there are. Chosen: to
# evaluate more than ten times as many is no practical advice.
MAX_TASK_GROWTH = 10


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
        control = np.array([run.value for run in self.control], np.float64)
        treated = np.array([run.value for run in self.treated], np.float64)
        differences: Floats = self.sign * (treated - control)
        return differences

    @property
    def bounds(self) -> tuple[Floats, Floats]:
        """Lower and upper bound of each difference, infinite where a run never reached the value
        it should.
        """
        is_control_late = np.array([not run.reached for run in self.control])
        is_treated_late = np.array([not run.reached for run in self.treated])
        # A value that came later than every step is larger than was measured.
        can_grow = is_treated_late if self.sign > 0 else is_control_late
        can_fall = is_control_late if self.sign > 0 else is_treated_late
        lower = np.where(can_fall, -np.inf, self.differences)
        upper = np.where(can_grow, np.inf, self.differences)
        return lower, upper

    @property
    def table(self) -> Floats:
        """Differences by seed and task, for the tasks that all these runs have."""
        runs = (*self.control, *self.treated)
        tasks = list(runs[0].tasks) if runs else []
        for run in runs:
            tasks = [task for task in tasks if task in run.tasks]
        rows: list[list[float]] = []
        for run in runs:
            rows.append([run.tasks[task] for task in tasks])
        values = np.array(rows, dtype=np.float64)
        control, treated = values.reshape(2, len(self.seeds), len(tasks))
        table: Floats = self.sign * (treated - control)
        return table[:, np.isfinite(table).all(axis=0)]

    @property
    def by_family(self) -> tuple[Floats, Floats] | None:
        """Control and arm as seeds × tasksets, in the claimed direction; None where the tasks are
        of one taskset.
        """
        rows: list[list[float]] = []
        families: list[str] | None = None  # of the first run
        for run in (*self.control, *self.treated):
            means = _means_by_family(run)
            names = sorted(means)
            if families is None:
                families = names
            if len(names) < 2 or names != families:
                return None
            rows.append([means[name] for name in families])
        if not rows:
            return None
        table = self.sign * np.array(rows)
        return table[: len(self.seeds)], table[len(self.seeds) :]


def _means_by_family(run: Measured) -> dict[str, float]:
    """Return the mean over the tasks of each taskset."""
    values_by_family: dict[str, list[float]] = {}
    for task, value in run.tasks.items():
        family = run.families.get(task, "")
        values_by_family.setdefault(family, []).append(value)
    return {family: sum(values) / len(values) for family, values in values_by_family.items()}


def pair(hypothesis: Hypothesis, measured: Sequence[Measured], arm: str) -> Pairs:
    """Put one arm's runs beside the control's; seeds that the hypothesis does not name do not
    count.
    """
    control = {run.seed: run for run in measured if run.arm == hypothesis.control.name}
    treated = {run.seed: run for run in measured if run.arm == arm}
    seeds: list[int] = []
    broken: list[int] = []
    waiting: list[int] = []
    for seed in hypothesis.seeds:
        if seed not in control and seed not in treated:
            waiting.append(seed)
        elif seed not in control or seed not in treated:
            broken.append(seed)
        elif math.isfinite(control[seed].value + treated[seed].value):
            seeds.append(seed)
        else:
            broken.append(seed)
    return Pairs(
        arm=arm,
        sign=-1.0 if hypothesis.direction is Direction.DOWN else 1.0,
        seeds=tuple(seeds),
        control=tuple(control[seed] for seed in seeds),
        treated=tuple(treated[seed] for seed in seeds),
        broken=tuple(broken),
        waiting=tuple(waiting),
    )


def alpha_of(hypothesis: Hypothesis) -> float:
    """Return each arm's share of alpha.

    The arms share alpha (Bonferroni). An experiment that may stop early is judged twice, by the
    confidence sequence and by the final interval, each two-sided at this level. With 0.05, each
    errs upward with a probability of 0.025. For a directional claim only that side is an error: the
    two judgments together err with 0.05 at most. For a claim of either direction both sides are
    errors, 0.1 together, so each judgment gets half of the share.
    """
    share = hypothesis.alpha / len(hypothesis.treated)
    if hypothesis.direction is Direction.EITHER and hypothesis.stops_early:
        share /= 2
    return share


def least_seeds(hypothesis: Hypothesis) -> int:
    """Return the fewest paired seeds that decide: those with which the exact test can reach alpha.

    Student's interval excludes 0 with two seeds already, if they happen to agree: it takes their
    spread for normal, which two differences can't show. The sign-flip test supposes no more than
    symmetry. While its least p, that of differences that all point one way, is above alpha, nothing
    but that supposition decides.
    """
    if is_first_step(hypothesis.metric):
        # The sign test on the median is itself the verdict, and the arms share its alpha.
        return fewest_seeds(alpha_of(hypothesis))
    # The sign-flip test only stands beside the interval that decides, so the arms do not share its
    # alpha. `fewest_seeds` takes a two-sided test; a one-sided one at alpha needs as many seeds as
    # a two-sided one at 2 alpha.
    is_two_sided = hypothesis.direction is Direction.EITHER
    two_sided_alpha = hypothesis.alpha if is_two_sided else 2 * hypothesis.alpha
    return max(2, fewest_seeds(two_sided_alpha))


@dataclass(frozen=True)
class Plan:
    """Chances of an experiment, for a deviation between seeds that is supposed or was measured."""

    # chance that the planned seeds validate the smallest effect that matters, where it is there
    power: float
    seeds_for_80: int | None  # number that validates it with a chance of 80%; None beyond 1,000


def foresee(hypothesis: Hypothesis, effect: float, deviation: float, seeds: int) -> Chances:
    """Return the chances of the two verdicts where the true effect is this."""
    if seeds < least_seeds(hypothesis):
        return Chances(0.0, 0.0)
    return comparison.chances(
        effect,
        deviation,
        seeds,
        hypothesis.smallest,
        alpha_of(hypothesis),
        either=hypothesis.direction is Direction.EITHER,
    )


def plan(hypothesis: Hypothesis, deviation: float) -> Plan:
    """Return what the planned seeds can show where paired differences deviate by this much between
    seeds.
    """

    def power_with(seeds: int) -> float:
        return foresee(hypothesis, hypothesis.smallest, deviation, seeds).validated

    needed = comparison.fewest(lambda seeds: power_with(seeds) >= TARGET_POWER)
    return Plan(power_with(len(hypothesis.seeds)), needed)


def tasks_to_decide(
    hypothesis: Hypothesis,
    effect: float,
    deviation: float,
    seeds: int,
    tasks: int,
    task_variance: float,
) -> int | None:
    """Return the held-out tasks that decide with a chance of 80%, where `task_variance` is the
    variance that is a single task's.
    """
    if task_variance <= 0 or deviation == 0:
        return None
    # Of the variance between seeds, task_variance / tasks is chance on these tasks and falls with
    # their number.
    seed_variance = max(0.0, deviation**2 - task_variance / tasks)

    def is_enough(count: int) -> bool:
        deviation_with = math.sqrt(seed_variance + task_variance / count)
        return foresee(hypothesis, effect, deviation_with, seeds).decided >= TARGET_POWER

    return comparison.fewest(is_enough, tasks, MAX_TASK_GROWTH * tasks)


def interval_and_p(
    hypothesis: Hypothesis, pairs: Pairs, by_sequence: bool
) -> tuple[Interval, float]:
    """Return the interval that decides, and its p: by the confidence sequence, or at the end by
    Student's t.

    Steps to a value have no mean, since a run may never reach it. Their median is compared by the
    exact sign test, which holds once, after all seeds: an earlier look decides nothing.
    """
    alpha = alpha_of(hypothesis)
    if is_first_step(hypothesis.metric):
        lower, upper = pairs.bounds
        interval = intervals.median_interval(pairs.differences, alpha, lower, upper)
        if by_sequence:
            return Interval(interval.effect, -math.inf, math.inf), 1.0
        n_above = int((lower > 0).sum())
        n_below = int((upper < 0).sum())
        return interval, comparison.mcnemar(n_above, n_below)

    spread = intervals.spread_of(pairs.differences)
    if by_sequence:
        return intervals.sequence_interval(spread, alpha), comparison.sequence_p(spread)
    reach = intervals.student_reach(spread.seeds, alpha)
    return intervals.interval_of(spread, reach, alpha), comparison.paired_p(spread)


def towards(hypothesis: Hypothesis, interval: Interval) -> Interval:
    """Return the interval as the criteria see it: a claim of either direction is read on the side
    it fell to.

    There `low > 0` says that the interval excludes 0, and `high < smallest` that it lies within ±
    smallest.
    """
    if hypothesis.direction is Direction.EITHER and interval.effect < 0:
        return Interval(-interval.effect, -interval.high, -interval.low)
    return interval


def status_of(hypothesis: Hypothesis, pairs: Pairs, interval: Interval) -> Status:
    """Apply the criteria, invalidated first: an effect may be there and smaller than matters.

    Fewer seeds than `least_seeds` decide nothing.
    """
    if len(pairs.seeds) < least_seeds(hypothesis):
        return Status.INCONCLUSIVE
    claimed = towards(hypothesis, interval)
    if claimed.high < hypothesis.smallest:
        return Status.INVALIDATED
    return Status.VALIDATED if claimed.low > 0 else Status.INCONCLUSIVE


def _known_signs(pairs: Pairs) -> Floats:
    """Return the sign of each difference; 0 where its bounds have different signs, as where a run
    never reached the value.
    """
    lower_signs, upper_signs = np.sign(pairs.bounds)
    return np.where(lower_signs == upper_signs, lower_signs, 0.0)


def compare(hypothesis: Hypothesis, pairs: Pairs, by_sequence: bool) -> Comparison:
    """Compare an arm with the control on their common seeds; `judge` adds the sentence."""
    alpha = alpha_of(hypothesis)
    spread = intervals.spread_of(pairs.differences)
    deviation = intervals.likely_deviation(spread)
    is_ranked = is_first_step(hypothesis.metric)
    interval, p = interval_and_p(hypothesis, pairs, by_sequence)
    status = status_of(hypothesis, pairs, interval)

    control_values = np.array([[run.value] for run in pairs.control])
    arm_values = np.array([[run.value] for run in pairs.treated])
    if is_ranked:  # no means and no power, and the test sees signs alone
        control_mean = arm_mean = power = math.nan
        sign_flip = comparison.sign_flip(_known_signs(pairs))
    else:
        control_mean = float(control_values.mean())
        arm_mean = float(arm_values.mean())
        power = foresee(hypothesis, hypothesis.smallest, deviation, spread.seeds).validated
        sign_flip = comparison.sign_flip(pairs.differences)
    sign_flip_p = sign_flip.up
    if hypothesis.direction is Direction.EITHER:
        sign_flip_p = min(sign_flip.up, sign_flip.down)

    seeds_needed = None
    if status is Status.INCONCLUSIVE and spread.seeds > 1 and not is_ranked:
        seeds_needed = comparison.fewest(
            lambda seeds: foresee(hypothesis, spread.mean, deviation, seeds).decided >= TARGET_POWER
        )
        if seeds_needed is not None:
            # These should have been enough, and were not.
            seeds_needed = max(seeds_needed, spread.seeds + 1)

    # Scores by seed and taskset; a single column where there is one taskset.
    control_scores = pairs.sign * control_values
    arm_scores = pairs.sign * arm_values
    iqm = None
    families = pairs.by_family
    if families is not None:
        control_scores, arm_scores = families
        iqm = intervals.iqm_difference(arm_scores, control_scores, hypothesis.alpha)
    return Comparison(
        arm=pairs.arm,
        seeds=pairs.seeds,
        differences=tuple(float(difference) for difference in pairs.differences),
        control_mean=control_mean,
        arm_mean=arm_mean,
        interval=interval,
        level=1 - alpha,
        p=p,
        p_adjusted=None,
        sign_flip=sign_flip_p,
        sign_flip_both=sign_flip.both,
        sign_flip_least=2.0**-spread.seeds,
        improvement=intervals.chance_of_improvement(arm_scores, control_scores, hypothesis.alpha),
        tasks_too=intervals.crossed_interval(pairs.table, alpha),
        iqm=iqm,
        power=power,
        seeds_needed=seeds_needed,
        status=status,
        sentence="",
    )
