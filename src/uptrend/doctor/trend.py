"""Trend of the training reward, its collapse, and the held-out change.

The trend is judged by the training reward alone: held-out scores do not enter it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import ndtr

from uptrend.present.formatting import change, interval, plural
from uptrend.records import RecordError, RunView, Trend, TrendKind
from uptrend.records.summary import correct_by_task
from uptrend.records.view import Floats
from uptrend.stats.comparison import PairedAnswers, pair_answers
from uptrend.stats.intervals import normal_interval, normal_reach
from uptrend.stats.trend import TrendTest, measure_trend, neighbor_noise

if TYPE_CHECKING:
    from uptrend.doctor.case import Case

REWARD_METRIC = "reward/mean"
# A trend, or a held-out fall, with a smaller p-value counts as real.
SIGNIFICANCE_LEVEL = 0.05
# Smallest effect that matters, in standard deviations between rollouts: ten percentage points where
# half of them succeed.
MIN_EFFECT = 0.2


@dataclass(frozen=True)
class Collapse:
    """Fall of the reward from which it did not recover."""

    best: float
    last: float
    index: int
    """First point from which on the reward stays nearer to its last level than to its best."""
    noise: float
    """Standard error of the fall."""


@dataclass(frozen=True)
class HeldoutChange:
    """Change of the held-out score from the first evaluation to the last."""

    first: float
    last: float
    scores: tuple[float, ...]
    steps: tuple[int, ...]
    """Step of each score."""
    interval: tuple[float, float] | None
    """95% interval of the change; None if neither counts nor several evaluations give one."""
    tasks: int
    """Number of tasks; 0 if it is not known."""
    paired: bool
    """True if the same tasks were compared one by one."""
    chance: float = 1.0
    """Probability of a change this large by chance: McNemar's exact test if paired."""

    @property
    def effect(self) -> float:
        return self.last - self.first

    @property
    def fell(self) -> bool:
        """True if it surely fell; each evaluation after the first was one more chance to look
        so.
        """
        is_shown = self.interval is None or self.interval[1] < 0
        corrected_chance = self.chance * (len(self.scores) - 1)
        return self.effect < 0 and is_shown and corrected_chance < SIGNIFICANCE_LEVEL

    def table(self) -> dict[str, Any]:
        """Return the change as it stands in a report."""
        keys = ("first", "last", "effect", "interval", "tasks", "paired")
        return {key: getattr(self, key) for key in keys}


@dataclass(frozen=True)
class Decision:
    """Trend of the reward and the change that decided it.

    The interval of a rising or falling trend's change leaves out 0.
    """

    kind: TrendKind
    reason: str
    """Beginning of the sentence on the trend."""
    change: str
    """Name of the change."""
    effect: float
    interval: tuple[float, float]


def judge_trend(case: "Case") -> Trend:
    """Return the trend of a run by its training reward alone."""
    heldout = case.heldout.table() if case.heldout is not None else {}
    if case.view.info.get("kind") == "replay":
        sentence = (
            "Its rewards are those of the run that it replays; held-out accuracy and the update are"
            " its own."
        )
        return Trend(TrendKind.TOO_SHORT, sentence, held_out=heldout)

    steps, values = case.curve(REWARD_METRIC)
    line = measure_trend(values)
    if line is None:
        sentence = f"{plural(len(values), 'point')} of reward can't show a trend."
        return Trend(TrendKind.TOO_SHORT, sentence, held_out=heldout)

    decision = _decide(case, values, line)
    return Trend(
        decision.kind,
        _describe(decision, values, int(steps[-1])),
        effect=decision.effect,
        interval=decision.interval,
        power=line.power(MIN_EFFECT * case.rollout_spread),
        held_out=heldout,
    )


def _describe(decision: Decision, values: Floats, last_step: int) -> str:
    points = f"{plural(len(values), 'point')} to step {last_step}"
    if decision.reason == CONSTANT_REASON:
        return f"{CONSTANT_REASON}: training reward {values[-1]:.3g} at each of {points}."
    quarter = max(1, len(values) // 4)
    first = values[:quarter].mean()
    last = values[-quarter:].mean()
    ends = interval(*decision.interval)
    return (
        f"{decision.reason}: training reward {first:.3g} in the first quarter and {last:.3g} in the"
        f" last, over {points} ({decision.change} {change(decision.effect)}, 95% interval {ends})."
    )


# Points below which a curve without a trend says nothing.
MIN_TREND_POINTS = 20
# A change is smaller than a bound at 5% if its 90% interval lies inside it: two one-sided tests.
EQUIVALENCE_LEVEL = 0.9


def _decide(case: "Case", values: Floats, line: TrendTest) -> Decision:
    def by_line(kind: TrendKind, reason: str) -> Decision:
        return Decision(kind, reason, "fitted change", line.effect, line.interval())

    artifact = _find_artifact(case, values, line.p)
    if artifact:
        return by_line(TrendKind.FLAT, artifact)

    collapse = case.collapse
    if collapse is not None:
        fall = collapse.last - collapse.best
        return Decision(
            TrendKind.FALLING,
            f"It fell from {collapse.best:.3g} and stayed down",
            "change from its best level",
            fall,
            normal_interval(fall, collapse.noise),
        )

    if line.p < SIGNIFICANCE_LEVEL and line.effect > 0:
        return by_line(TrendKind.LEARNING, "It is learning")
    if line.p < SIGNIFICANCE_LEVEL:
        return by_line(TrendKind.FALLING, "It is falling")
    if len(values) < MIN_TREND_POINTS:
        return by_line(TrendKind.TOO_SHORT, "Too short to tell")

    # A line fits a step badly: its residuals look like noise with a long memory, in which any trend
    # could hide. So all of the last quarter above all of the first, by more than rollouts differ,
    # is learning too.
    quarter = len(values) // 4
    first = values[:quarter]
    last = values[-quarter:]
    rise = float(last.mean() - first.mean())
    rise_interval = normal_interval(rise, neighbor_noise(values) * math.sqrt(2 / quarter))
    spread = case.rollout_spread
    if float(last.min() - first.max()) > spread > 0 and rise_interval[0] > 0:
        reason = "It rose at once and stayed there"
        return Decision(TrendKind.LEARNING, reason, "change between them", rise, rise_interval)

    # Flat only if the noise could not hide a change as large as the spread between rollouts.
    low, high = line.interval(EQUIVALENCE_LEVEL)
    if max(abs(low), abs(high)) < spread:
        return by_line(TrendKind.FLAT, "No trend")
    return by_line(TrendKind.TOO_SHORT, "Too short or too noisy to tell")


CONSTANT_REASON = "Constant"
# Points below which the exact values of a curve (all equal, all 0) may be chance.
MIN_EXACT_POINTS = 5
# Range of a curve that is constant up to rounding, as a share of its largest value.
MAX_CONSTANT_RANGE = 1e-9
# From this share of dead groups on, over the whole run and at its start, a drift of the reward is
# the mix of prompts.
DEAD_RUN_SHARE = 0.97
# All updates / the weights' norm that teach nothing.
MAX_IDLE_UPDATE = 1e-5
# KL, and p-value of a rise, that prove a move although every gradient was logged as 0: the norm was
# rounded away.
MOVED_KL = 1e-3
SURE_P_VALUE = 1e-3
# Last level / first level of the entropy, and of the gradient norm, of a policy that is frozen.
FROZEN_ENTROPY_RATIO = 0.01
FROZEN_GRADIENT_RATIO = 0.001
# Height of a frozen policy's reward, between the lowest and the highest of the run, from which on
# it is as good as solved.
SOLVED_HEIGHT = 0.7


def _find_artifact(case: "Case", values: Floats, p_value: float) -> str:
    """Return why a change, if there is one, is not the policy's; empty if it may be."""
    magnitude = max(1.0, float(np.abs(values).max()))
    is_constant = np.ptp(values) <= MAX_CONSTANT_RANGE * magnitude
    if is_constant and len(values) >= MIN_EXACT_POINTS:
        return CONSTANT_REASON

    dead = case.dead_groups
    if len(dead) >= MIN_EXACT_POINTS:
        dead_at_start = dead[: max(1, len(dead) // 4)]
        if min(float(dead.mean()), float(dead_at_start.mean())) >= DEAD_RUN_SHARE:
            return (
                "Nothing to learn from, because rewards in a group never differ; a drift is the mix"
                " of prompts"
            )

    update_norms = case.curve("weights/update/norm")[1]
    weight_norms = case.curve("weights/norm")[1]
    initial_norm = float(weight_norms[0]) if len(weight_norms) else 0.0
    is_idle = float(update_norms.sum()) <= MAX_IDLE_UPDATE * initial_norm
    if is_idle and len(update_norms) >= MIN_EXACT_POINTS:
        return (
            "The weights never changed, or hardly, so that a drift is chance or the mix of prompts"
        )

    gradient_norms = case.curve("gradient/norm/before")[1]
    kl = case.curve("kl/reference/mean")[1]
    has_moved = update_norms.any() or kl.max(initial=0.0) > MOVED_KL or p_value <= SURE_P_VALUE
    if len(gradient_norms) >= MIN_EXACT_POINTS and not gradient_norms.any() and not has_moved:
        return "The gradient is 0 at every step, so that a drift is chance or the mix of prompts"

    if _is_frozen(case, values):
        return "The policy froze into one answer below the best it had seen"
    return ""


def _is_frozen(case: "Case", values: Floats) -> bool:
    """Return True for one fixed answer below the best reward, which nothing moves any more."""
    entropy = case.summary("learner/entropy/mean")
    gradient = case.summary("gradient/norm/before")
    if entropy is None or gradient is None or len(values) < MIN_TREND_POINTS:
        return False
    second_half = values[len(values) // 2 :]
    return (
        entropy.last < FROZEN_ENTROPY_RATIO * entropy.first
        and gradient.last < FROZEN_GRADIENT_RATIO * gradient.first
        and measure_trend(second_half) is not None
        and case.scaled_reward(float(np.median(second_half))) < SOLVED_HEIGHT
    )


# Points below which a fall can't be told from noise.
MIN_COLLAPSE_POINTS = 12
# A level is the mean of a tenth of the points, and of this many at least.
MIN_LEVEL_POINTS = 3
# A collapse is larger than this many standard errors of a difference of levels, than this part of
# the spread between rollouts, and than this part of all that the run gained.
COLLAPSE_STANDARD_ERRORS = 5
COLLAPSE_SPREADS = 0.5
COLLAPSE_LOST_SHARE = 0.5
# Part of a reward by which the sums of equal rewards may differ.
ROUNDING_SHARE = 1e-9


def find_collapse(case: "Case") -> Collapse | None:
    """Return the collapse of a run's reward; None if it had none."""
    values = case.curve(REWARD_METRIC)[1]
    if len(values) < MIN_COLLAPSE_POINTS:
        return None

    width = max(MIN_LEVEL_POINTS, len(values) // 10)
    levels = np.convolve(values, np.ones(width) / width, "valid")
    peak = int(np.argmax(levels))
    best = float(levels[peak])
    last = float(values[-max(width, len(values) // 4) :].mean())
    fall = best - last
    noise = neighbor_noise(values) * np.sqrt(2 / width)
    least_fall = max(
        COLLAPSE_STANDARD_ERRORS * noise,
        COLLAPSE_SPREADS * case.rollout_spread,
        COLLAPSE_LOST_SHARE * (best - float(levels.min())),
        ROUNDING_SHARE * float(np.abs(values).max()),
    )
    if fall <= least_fall:
        return None

    # It must have lasted for a level's width, and not be on its way up again.
    middle = (best + last) / 2
    has_recovered = bool((levels[-width:] > middle).any())
    if len(levels) - peak < width or has_recovered:
        return None
    last_high_level = int(np.flatnonzero(levels > middle)[-1])
    # A level stands for the point in the middle of its window.
    return Collapse(best, last, last_high_level + width // 2 + 1, float(noise))


# Evaluations whose scatter about their line gives an error of the change.
MIN_SCATTERED_SCORES = 6
# Tasks in both evaluations below which pairs say less than the counts of all tasks.
MIN_PAIRED_TASKS = 10


def heldout_change(view: RunView) -> HeldoutChange | None:
    """Return the change of the accuracy, else of the reward; None with fewer than two
    evaluations.
    """
    evaluations: list[Mapping[str, Any]] = []
    scores: list[float] = []
    for evaluation in view.evals:
        for key in ("accuracy", "reward"):
            score = evaluation.get(key)
            if isinstance(score, int | float) and np.isfinite(score):
                evaluations.append(evaluation)
                scores.append(float(score))
                break
    if len(scores) < 2:
        return None

    steps = tuple(int(evaluation.get("step", 0)) for evaluation in evaluations)
    effect = scores[-1] - scores[0]
    pairs = _pair_evaluations(view, steps[0], steps[-1])
    if pairs is not None:
        bounds: tuple[float, float] | None = pairs.interval
        chance = pairs.p
    else:
        bounds = _interval_of_counts(evaluations[0], evaluations[-1], effect)
        if bounds is None and len(scores) >= MIN_SCATTERED_SCORES:
            scatter = neighbor_noise(np.array(scores))
            bounds = normal_interval(effect, scatter * math.sqrt(2))
        chance = 1.0 if bounds is None else _chance_of(effect, bounds)
    return HeldoutChange(
        scores[0],
        scores[-1],
        tuple(scores),
        steps,
        bounds,
        tasks=int(evaluations[-1].get("tasks") or 0),
        paired=pairs is not None,
        chance=chance,
    )


def _pair_evaluations(view: RunView, first: int, last: int) -> PairedAnswers | None:
    """Compare two evaluations task by task; None if the tasks of one were not kept."""
    try:
        before = correct_by_task(view.read_heldout(first))
        after = correct_by_task(view.read_heldout(last))
    except (OSError, KeyError, RecordError):  # one torn file must not cost the whole report
        return None
    pairs = pair_answers(before, after)
    return pairs if pairs.tasks >= MIN_PAIRED_TASKS else None


def _interval_of_counts(
    first: Mapping[str, Any], last: Mapping[str, Any], effect: float
) -> tuple[float, float] | None:
    variance = 0.0
    for evaluation in (first, last):
        accuracy = evaluation.get("accuracy")
        tasks = evaluation.get("tasks")
        if not isinstance(accuracy, int | float) or not isinstance(tasks, int) or tasks < 1:
            return None
        # One more task of each kind, so that 0 of 20 has an error too.
        rate = (accuracy * tasks + 1) / (tasks + 2)
        variance += rate * (1 - rate) / tasks
    return normal_interval(effect, math.sqrt(variance))


def _chance_of(effect: float, bounds: tuple[float, float]) -> float:
    """Return the two-sided p-value of an effect with this normal 95% interval."""
    error = (bounds[1] - bounds[0]) / (2 * normal_reach())
    return 2 * float(ndtr(-abs(effect) / max(error, 1e-12)))


def trend_until(view: RunView, metric: str, step: int, after: int = -1) -> TrendTest | None:
    """Return a metric's trend over the steps after `after`, up to and including `step`."""
    steps, values = view.curve(metric)
    return measure_trend(values[(steps > after) & (steps <= step)])
