"""Whether the training reward rose: learning, flat, falling, or too short to tell.

Held-out figures stand beside the trend and do not enter it. Too short is said only where the run can't tell either
way: few points, or noise in which even a change as large as the spread between rollouts could hide.
"""

import weakref

import numpy as np

from uptrend.doctor.collapse import find_collapse
from uptrend.doctor.curves import LEVEL, REWARD, course, dead_groups, height, rollout_spread
from uptrend.doctor.held_out import held_out_change
from uptrend.records import RunView, Trend
from uptrend.records.finding import TrendKind
from uptrend.records.view import Floats
from uptrend.stats.formatting import change, interval, plural
from uptrend.stats.trend import TrendTest as Line
from uptrend.stats.trend import measure_trend

FEWEST_POINTS = 20
"""Without a trend, fewer points than this say nothing: a tenth of the steps of a short run."""
SMALLEST = 0.2
"""The smallest effect that matters, in deviations between rollouts: ten points where half of them succeed."""
CONSTANT = "Constant"
ALL_DEAD = 0.97
"""From this share of dead groups on, over the whole run, a drift of the reward is the mix of prompts."""


_last: tuple[weakref.ref[RunView], Trend] | None = None


def trend_of(view: RunView) -> Trend:
    """The trend on a run by its training reward alone; most checks ask for it, so that the last one is kept."""
    global _last
    if _last is None or _last[0]() is not view:
        _last = weakref.ref(view), _trend_of(view)
    return _last[1]


def _trend_of(view: RunView) -> Trend:
    if view.info.get("kind") == "replay":
        said = "Its rewards are those of the run that it replays; held-out accuracy and the update are its own."
        return _trend(view, TrendKind.TOO_SHORT, said, None)
    steps, values = view.curve(REWARD)
    line = measure_trend(values)
    if line is None:
        return _trend(view, TrendKind.TOO_SHORT, f"{plural(len(values), 'point')} of reward can't show a trend.", None)
    quarter = len(values) // 4 or 1
    moved = f"{values[:quarter].mean():.3g} in the first quarter and {values[-quarter:].mean():.3g} in the last"
    at = f"training reward {moved}, over {plural(len(values), 'point')} to step {steps[-1]}"
    trend, why = _decide(view, values, line)
    figures = f"fitted change {change(line.effect)}, 95% interval {interval(*line.interval())}"
    if why == CONSTANT:
        at, figures = (
            f"training reward {values[-1]:.3g}",
            f"at each of {plural(len(values), 'point')} to step {steps[-1]}",
        )
        return _trend(view, trend, f"{why}: {at} {figures}.", line)
    return _trend(view, trend, f"{why}: {at} ({figures}).", line)


def _decide(view: RunView, values: Floats, line: Line) -> tuple[TrendKind, str]:
    artifact = _artifact(view, values)
    if artifact:
        return TrendKind.FLAT, artifact
    collapse = find_collapse(view)
    if collapse is not None:
        return TrendKind.FALLING, f"It fell from {collapse.best:.3g} and stayed down"
    if line.p < LEVEL:
        return (TrendKind.LEARNING, "It is learning") if line.effect > 0 else (TrendKind.FALLING, "It is falling")
    if len(values) < FEWEST_POINTS:
        return TrendKind.TOO_SHORT, "Too short to tell"
    if _is_far_above(values, rollout_spread(view)):
        return TrendKind.LEARNING, "It rose at once and stayed there"
    reach = max(abs(end) for end in line.interval(0.9))
    if reach < rollout_spread(view):
        return TrendKind.FLAT, "No trend"
    return TrendKind.TOO_SHORT, "Too short or too noisy to tell"


def _is_far_above(values: Floats, spread: float) -> bool:
    """Whether all of the last quarter lies above all of the first by more than rollouts differ.

    A line fits a step badly, so that its residuals look like noise with a long memory, in which any trend could hide.
    """
    quarter = len(values) // 4
    return float(values[-quarter:].min() - values[:quarter].max()) > spread > 0


def _artifact(view: RunView, values: Floats) -> str:
    """Why a change, if there is one, is not the policy's; empty where it may be."""
    if np.ptp(values) <= 1e-9 * max(1.0, float(np.abs(values).max())) and len(values) >= 5:
        return CONSTANT
    dead = dead_groups(view)
    if len(dead) >= 5 and float(dead.mean()) >= ALL_DEAD and float(dead[: len(dead) // 4 or 1].mean()) >= ALL_DEAD:
        return "Groups had no spread to learn from, so that a drift is the mix of prompts"
    update = view.curve("weights/update/norm")[1]
    if len(update) >= 5 and not update.any():
        return "No weight ever changed, so that a drift is the mix of prompts"
    return _frozen(view, values)


def _frozen(view: RunView, values: Floats) -> str:
    """The policy became one fixed answer below the best that it had seen, and nothing has moved since."""
    entropy, gradient = course(view, "learner/entropy/mean"), course(view, "gradient/norm/before")
    if entropy is None or gradient is None or len(values) < FEWEST_POINTS:
        return ""
    half = values[len(values) // 2 :]
    is_fixed = entropy.last < 0.01 * entropy.first and gradient.last < 0.001 * gradient.first
    if is_fixed and measure_trend(half) is not None and height(view, float(np.median(half))) < 0.7:
        return "The policy froze into one answer below the best it had seen"
    return ""


def _trend(view: RunView, trend: TrendKind, sentence: str, line: Line | None) -> Trend:
    held_out = held_out_change(view)
    return Trend(
        kind=trend,
        sentence=sentence,
        effect=None if line is None else line.effect,
        interval=None if line is None else line.interval(),
        power=None if line is None else line.power(SMALLEST * rollout_spread(view)),
        held_out={} if held_out is None else held_out.as_table(),
    )
