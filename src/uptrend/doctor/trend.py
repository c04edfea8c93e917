"""Trend of the training reward, a lasting fall of it, and the held-out change, which does not enter
the trend.
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
from uptrend.stats.comparison import pair_answers
from uptrend.stats.intervals import normal_interval, normal_reach
from uptrend.stats.trend import TrendTest, measure_trend, neighbor_noise

if TYPE_CHECKING:
    from uptrend.doctor.case import Case

REWARD_METRIC = "reward/mean"
# A trend with a smaller p-value is taken for one.
SIGNIFICANCE_LEVEL = 0.05
# Without a trend, fewer points than this say nothing.
MIN_TREND_POINTS = 20
# The smallest effect that matters, in deviations between rollouts: ten points where half of them
# succeed.
MIN_EFFECT = 0.2
# From this share of dead groups on, over the whole run, a drift of the reward is the mix of
# prompts.
ALL_DEAD = 0.97
# Tasks asked at both evaluations below which pairs say less than the counts of all tasks.
FEWEST_PAIRS = 10
CONSTANT = "Constant"
# All updates / the weights' length that teach nothing, KL of a policy that did move, and p-value of
# a sure rise.
UNMOVED = 1e-5
MOVED_KL = 1e-3
BEYOND_CHANCE = 1e-3
STILL = "weights/update/norm", "weights/norm", "gradient/norm/before", "kl/reference/mean"
# Points below which a fall can't be told from noise, and the least share of all gains that a
# collapse loses.
MIN_COLLAPSE_POINTS = 12
SHARE_LOST = 0.5


@dataclass(frozen=True)
class Collapse:
    """A fall of the reward that was not made good."""

    best: float
    last: float
    index: int
    """The first point that lies nearer to the last level than to the best, for good."""
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
    """The change's 95% interval; None where neither counts nor several evaluations give one."""
    tasks: int
    """Number of tasks; 0 where it is not known."""
    paired: bool
    """True where the same tasks were compared one by one."""
    chance: float = 1.0
    """Chance of so large a change without a cause: McNemar's exact test where paired."""

    @property
    def effect(self) -> float:
        return self.last - self.first

    @property
    def fell(self) -> bool:
        """True where it surely fell; each evaluation after the first was one more chance to look
        so.
        """
        is_shown = self.interval is None or self.interval[1] < 0
        return (
            self.effect < 0
            and is_shown
            and self.chance * (len(self.scores) - 1) < SIGNIFICANCE_LEVEL
        )


def find_collapse(case: "Case") -> Collapse | None:
    """Return the collapse of a run's reward; None where it had none."""
    values = case.curve(REWARD_METRIC)[1]
    if len(values) < MIN_COLLAPSE_POINTS:
        return None
    width = max(3, len(values) // 10)
    levels = np.convolve(values, np.ones(width) / width, "valid")
    peak = int(np.argmax(levels))
    best = float(levels[peak])
    last = float(values[-max(width, len(values) // 4) :].mean())
    fall = best - last
    middle = (best + last) / 2
    # Large against the noise of the levels, against the spread of rollouts, and against what the
    # run ever gained.
    noise = neighbor_noise(values) * np.sqrt(2 / width)
    least = max(5 * noise, 0.5 * case.rollout_spread, SHARE_LOST * (best - float(levels.min())))
    if len(levels) - peak < width or fall <= least or bool((levels[-width:] > middle).any()):
        return None
    return Collapse(
        best, last, int(np.flatnonzero(levels > middle)[-1]) + width // 2 + 1, float(noise)
    )


def heldout_change(view: RunView) -> HeldoutChange | None:
    """Return the change of the accuracy, else of the reward; None with fewer than two
    evaluations.
    """
    scored: list[tuple[Mapping[str, Any], float]] = []
    for entry in view.evals:
        values = [entry.get(key) for key in ("accuracy", "reward")]
        known = [
            float(value)
            for value in values
            if isinstance(value, int | float) and np.isfinite(value)
        ]
        scored += [(entry, known[0])] if known else []
    if len(scored) < 2:
        return None
    entries, scores = zip(*scored, strict=True)
    at = tuple(int(entry.get("step", 0)) for entry in entries)
    paired = _paired_change(view, at[0], at[-1])
    effect = scores[-1] - scores[0]
    found, chance = paired or (_interval_of_counts(entries[0], entries[-1], effect), None)
    if found is None and len(scores) >= 6:  # how evaluations scatter about their line
        found = normal_interval(effect, neighbor_noise(np.array(scores)) * math.sqrt(2))
    error = (found[1] - found[0]) / (2 * normal_reach()) if found else math.inf
    chance = 2 * float(ndtr(-abs(effect) / max(error, 1e-12))) if chance is None else chance
    tasks = int(entries[-1].get("tasks") or 0)
    return HeldoutChange(
        scores[0], scores[-1], scores, at, found, tasks, paired is not None, chance
    )


def judge_trend(case: "Case", collapse: Collapse | None, heldout: HeldoutChange | None) -> Trend:
    """Return the trend of a run by its training reward alone."""
    is_replay = case.view.info.get("kind") == "replay"
    steps, values = case.curve(REWARD_METRIC)
    line = None if is_replay else measure_trend(values)
    kind = TrendKind.TOO_SHORT
    sentence = f"{plural(len(values), 'point')} of reward can't show a trend."
    if is_replay:
        sentence = (
            "Its rewards are those of the run that it replays; held-out accuracy and the update are"
            " its own."
        )
    figures: Change | None = None
    if line is not None:
        kind, why, figures = _decide(case, values, line, collapse)
        points = f"{plural(len(values), 'point')} to step {steps[-1]}"
        quarter = len(values) // 4 or 1
        moved = (
            f"{values[:quarter].mean():.3g} in the first quarter and {values[-quarter:].mean():.3g}"
            " in the last"
        )
        shown = (
            f"{figures.name} {change(figures.effect)}, 95% interval {interval(*figures.interval)}"
        )
        sentence = f"{why}: training reward {moved}, over {points} ({shown})."
        if why == CONSTANT:
            sentence = f"{why}: training reward {values[-1]:.3g} at each of {points}."
    told = ("first", "last", "effect", "interval", "tasks", "paired")
    return Trend(
        kind=kind,
        sentence=sentence,
        effect=None if figures is None else figures.effect,
        interval=None if figures is None else figures.interval,
        power=None if line is None else line.power(MIN_EFFECT * case.rollout_spread),
        held_out={} if heldout is None else {key: getattr(heldout, key) for key in told},
    )


@dataclass(frozen=True)
class Change:
    """The change of the reward that a trend was decided by; where it rises or falls, the interval
    leaves out 0.
    """

    name: str
    effect: float
    interval: tuple[float, float]


def _decide(
    case: "Case", values: Floats, line: TrendTest, collapse: Collapse | None
) -> tuple[TrendKind, str, Change]:
    """Return the trend, why in words, and the change that decided it."""
    fitted = Change("fitted change", line.effect, line.interval())
    if artifact := _artifact(case, values, line.p):
        return TrendKind.FLAT, artifact, fitted
    if collapse is not None:
        fall = collapse.last - collapse.best
        fell = Change("change from its best level", fall, normal_interval(fall, collapse.noise))
        return TrendKind.FALLING, f"It fell from {collapse.best:.3g} and stayed down", fell
    if line.p < SIGNIFICANCE_LEVEL:
        kind, why = (
            (TrendKind.LEARNING, "It is learning")
            if line.effect > 0
            else (TrendKind.FALLING, "It is falling")
        )
        return kind, why, fitted
    if len(values) < MIN_TREND_POINTS:
        return TrendKind.TOO_SHORT, "Too short to tell", fitted
    # A line fits a step badly: its residuals look like noise with a long memory, in which any trend
    # could hide. So all of the last quarter above all of the first, by more than rollouts differ,
    # is learning too.
    quarter = len(values) // 4
    spread = case.rollout_spread
    first = values[:quarter]
    last = values[-quarter:]
    rise = float(last.mean() - first.mean())
    risen = Change(
        "change between them",
        rise,
        normal_interval(rise, neighbor_noise(values) * math.sqrt(2 / quarter)),
    )
    if float(last.min() - first.max()) > spread > 0 and risen.interval[0] > 0:
        return TrendKind.LEARNING, "It rose at once and stayed there", risen
    if max(abs(end) for end in line.interval(0.9)) < spread:
        return TrendKind.FLAT, "No trend", fitted
    # Noise in which even a change as large as the spread between rollouts could hide.
    return TrendKind.TOO_SHORT, "Too short or too noisy to tell", fitted


def _artifact(case: "Case", values: Floats, p: float) -> str:
    """Return why a change, if there is one, is not the policy's; empty where it may be."""
    if np.ptp(values) <= 1e-9 * max(1.0, float(np.abs(values).max())) and len(values) >= 5:
        return CONSTANT
    dead = case.dead_groups
    if (
        len(dead) >= 5
        and float(dead.mean()) >= ALL_DEAD
        and float(dead[: len(dead) // 4 or 1].mean()) >= ALL_DEAD
    ):
        return (
            "Nothing to learn from, because rewards in a group never differ; a drift is the mix of"
            " prompts"
        )
    update, norm, slope, kl = (case.curve(metric)[1] for metric in STILL)
    if len(update) >= 5 and float(update.sum()) <= UNMOVED * float(norm[0] if len(norm) else 0.0):
        return (
            "The weights never changed, or hardly, so that a drift is chance or the mix of prompts"
        )
    # Where updates, KL or a rise beyond all chance show a move, somebody rounded the norm away.
    is_still = not update.any() and float(kl.max(initial=0.0)) <= MOVED_KL and p > BEYOND_CHANCE
    if len(slope) >= 5 and not slope.any() and is_still:
        return "The gradient is 0 at every step, so that a drift is chance or the mix of prompts"
    entropy = case.summary("learner/entropy/mean")
    gradient = case.summary("gradient/norm/before")
    if entropy is None or gradient is None or len(values) < MIN_TREND_POINTS:
        return ""
    # One fixed answer, below the best that was seen, and nothing has moved since.
    half = values[len(values) // 2 :]
    is_fixed = entropy.last < 0.01 * entropy.first and gradient.last < 0.001 * gradient.first
    if (
        is_fixed
        and measure_trend(half) is not None
        and case.scaled_reward(float(np.median(half))) < 0.7
    ):
        return "The policy froze into one answer below the best it had seen"
    return ""


def _paired_change(
    view: RunView, first: int, last: int
) -> tuple[tuple[float, float], float] | None:
    """Return interval and p-value from the tasks that changed sides; None where an evaluation's
    were not kept.
    """
    try:
        before = correct_by_task(view.read_heldout(first))
        after = correct_by_task(view.read_heldout(last))
    except (OSError, KeyError, RecordError):  # one torn file must not cost the whole report
        return None
    pairs = pair_answers(before, after)
    return (pairs.interval, pairs.p) if pairs.tasks >= FEWEST_PAIRS else None


def _interval_of_counts(
    first: Mapping[str, Any], last: Mapping[str, Any], effect: float
) -> tuple[float, float] | None:
    variance = 0.0
    for entry in (first, last):
        accuracy = entry.get("accuracy")
        tasks = entry.get("tasks")
        if not isinstance(accuracy, int | float) or not isinstance(tasks, int) or tasks < 1:
            return None
        # One task more of each kind, so that 0 of 20 has an error too.
        rate = (accuracy * tasks + 1) / (tasks + 2)
        variance += rate * (1 - rate) / tasks
    return normal_interval(effect, math.sqrt(variance))


def trend_until(view: RunView, metric: str, step: int, after: int = -1) -> TrendTest | None:
    """Return a metric's trend up to a step, and after another: the steps that held-out scores are
    compared over.
    """
    steps, values = view.curve(metric)
    return measure_trend(values[(steps > after) & (steps <= step)])
