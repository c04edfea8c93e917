"""reward.hackable: the reward rises, and what it stands for does not."""

import math

import numpy as np

from uptrend.doctor.check import Outcome, finding
from uptrend.doctor.checks._parts import PartCurve, parts_of, surely_still
from uptrend.doctor.curves import LEVEL, REWARD, course, rollout_spread, trend_until
from uptrend.doctor.held_out import HeldOutChange, held_out_change
from uptrend.doctor.trend import trend_of
from uptrend.records import CannotTell, Confidence, Evidence, Finding, RunView, Severity, TrendKind
from uptrend.stats.trend import TrendTest as Line

ID = "reward.hackable"
FLOOR = 0.05
"""A component that never reaches this share of another, with the answer in neither's name, has not been earned."""
HALF = 0.5
"""The share of the training figure's rise that the held-out one can at most have moved by."""
EVALUATIONS = 4
"""Evaluations below which a fall may be one bad draw."""
STILL = 0.25
"""The share of training's rise that a held-out figure at the same level may lie below it."""
TOP = 0.95
"""A share from which on little is left to gain."""


def check(view: RunView) -> Outcome:
    """Compare what rose with what should have risen with it."""
    change, parts = held_out_change(view), parts_of(view)
    if trend_of(view).kind is not TrendKind.LEARNING:
        fallen = change and not view.has("reward/correct/share") and _by_fall(view, change)
        return [fallen] if fallen else []
    if change is None and len(parts) < 2 and not view.has("reward/correct/share"):
        return [CannotTell(ID, "neither held-out evaluations nor components of the reward were logged")]
    found = (change and _by_held_out(view, change)) or _by_parts(view, parts) or _by_correct(view)
    return [found] if found else []


def stands_still(view: RunView, metric: str, unit: float, change: HeldOutChange) -> bool:
    """Tell whether the held-out figure surely rose much less than a training figure did over the same steps.

    The two may have different scales, so that each is measured in its own deviation between rollouts.
    """
    rise = _sure_rise(view, metric, unit, change, 0)
    if rise <= 0 or change.interval is None:
        return False
    own = _deviation(change, unit)
    if change.interval[0] <= 0 and change.interval[1] / own < HALF * rise:
        return True
    # Later evaluations alone, too: a first one before the model knew the format would hide that nothing came after.
    # They are compared with what training gained after them: once a task is solved, both rest.
    skipped = len(change.scores) // 4
    later = change.scores[skipped:]
    if len(change.scores) < 8 or _has_arrived(view, metric, later, change):
        return False
    return float(np.ptp(later)) / own < HALF * _sure_rise(view, metric, unit, change, skipped)


def _has_arrived(view: RunView, metric: str, later: tuple[float, ...], change: HeldOutChange) -> bool:
    """Tell whether the held-out figure lies at training's own level, or at the top of a share."""
    line, level = trend_until(view, metric, change.at[-1]), course(view, metric)
    is_level = line is not None and level is not None and min(later) >= level.last - STILL * line.effect
    return is_level or (min(change.scores) >= 0 and TOP <= min(later) <= max(later) <= 1)


def _sure_rise(view: RunView, metric: str, unit: float, change: HeldOutChange, skipped: int) -> float:
    """Return the least that a training figure rose since an evaluation, in deviations; 0 where it may not have."""
    line = trend_until(view, metric, change.at[-1], change.at[skipped] if skipped else -1)
    if line is None or line.p > LEVEL or line.effect <= 0 or unit <= 0:
        return 0.0
    return line.interval()[0] / unit


def falls_alone(view: RunView, rise: Line | None, unit: float, change: HeldOutChange) -> bool:
    """Tell whether the held-out figure surely fell, at every later evaluation by much, while training did not."""
    if trend_of(view).kind is TrendKind.FALLING or rise is None or rise.effect < 0 or change.interval is None:
        return False
    is_lasting = len(change.scores) >= EVALUATIONS and change.first - max(change.scores[1:]) > HALF * _deviation(
        change, unit
    )
    return is_lasting and change.interval[1] < 0


def _deviation(change: HeldOutChange, unit: float) -> float:
    """Between rollouts, of the held-out figure: a share has its own, anything else training's."""
    return math.sqrt(max(0.01, change.last * (1 - change.last))) if 0 <= change.last <= 1 else unit


def _by_fall(view: RunView, change: HeldOutChange) -> Finding | None:
    """The finding from a held-out figure that fell alone."""
    if not falls_alone(view, trend_until(view, REWARD, change.steps[1]), rollout_spread(view), change):
        return None
    text = (
        f"The held-out figure fell from {change.first:.3g} to {change.last:.3g} while the training reward did not: "
        "what the run learns holds for its own tasks alone, or for its reward alone."
    )
    shown = Evidence(f"Held out {change.effect:+.3g} by step {change.steps[1]}.", change.effect, "eval",
                     change.steps[1])  # fmt: skip
    return finding(view, ID, Severity.WARNING, Confidence.MEDIUM, text, [shown])


def _by_held_out(view: RunView, change: HeldOutChange) -> Finding | None:
    """The finding from held-out evaluations."""
    line = trend_until(view, REWARD, change.steps[1])
    is_still = line is not None and stands_still(view, REWARD, rollout_spread(view), change)
    if line is None or not is_still or view.has("reward/correct/share"):
        return None
    rise = line.effect
    low, high = change.interval or (change.effect, change.effect)
    return finding(
        view,
        ID,
        Severity.WARNING,
        Confidence.MEDIUM,
        f"The training reward rose by {rise:.3g} and the held-out figure {_rested(change)}: the reward may be had "
        "without the task.",
        [Evidence(f"Training reward {rise:+.3g} to that step.", rise, REWARD, change.steps[1]),
         Evidence(f"Held out {change.effect:+.3g} ({low:+.3g} to {high:+.3g}) between steps {change.steps[0]} and "
                  f"{change.steps[1]}, {len(change.scores)} evaluations.", change.effect, "eval", change.steps[1])],
    )  # fmt: skip


def _rested(change: HeldOutChange) -> str:
    """Say in words how the held-out figure did not follow: not at all, or not beyond its first evaluations."""
    if change.interval is None or change.interval[0] <= 0:
        return f"did not follow ({change.first:.3g} → {change.last:.3g})"
    later = change.scores[len(change.scores) // 4 :]
    return f"only at its first evaluations (then {min(later):.3g} to {max(later):.3g} in {len(later)} of them)"


def _by_parts(view: RunView, parts: list[PartCurve]) -> Finding | None:
    """Only components of format rise, or a component that is about the answer lies at its floor throughout."""
    risen = [p for p in parts if p.mean.rises]
    largest = max((abs(p.mean.last) for p in risen), default=0.0)
    floored = [p for p in parts if not p.is_format and float(abs(p.mean.values).max()) < FLOOR * largest]
    risen = [p for p in risen if p not in floored]
    still = floored or [p for p in parts if not p.is_format and surely_still(view, p)]
    if not risen or not still or any(p.is_answer for p in risen):
        return None
    if not floored and not all(p.is_format for p in risen):
        return None
    carrier, left = max(risen, key=lambda p: p.mean.last - p.mean.first), still[0]
    return finding(
        view,
        ID,
        Severity.WARNING,
        Confidence.MEDIUM,
        f"What rose is {carrier.name} ({carrier.mean.first:.3g} → {carrier.mean.last:.3g}), while {left.name} stayed "
        f"at {left.mean.last:.3g}: the reward may be had without the task.",
        [p.mean.evidence(f"{p.name}: {p.mean.first:.3g} → {p.mean.last:.3g}.") for p in (carrier, *still)],
    )


def _by_correct(view: RunView) -> Finding | None:
    """The share of right answers fell while the reward rose."""
    right = course(view, "reward/correct/share")
    if right is None or not right.falls:
        return None
    return finding(
        view,
        ID,
        Severity.WARNING,
        Confidence.HIGH,
        f"The reward rose while the share of right answers fell from {right.first:.0%} to {right.last:.0%}.",
        [right.evidence(f"Right answers {right.first:.3g} → {right.last:.3g}.")],
    )
