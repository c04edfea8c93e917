"""advantage.dead-groups-low and -high: groups whose rollouts all score alike teach nothing."""

import numpy as np

from uptrend.doctor.check import Outcome, finding
from uptrend.doctor.curves import REWARD, course, dead_groups, height, reward_range
from uptrend.doctor.trend import trend_of
from uptrend.records import CannotTell, Confidence, Evidence, Finding, RunView, Severity, TrendKind
from uptrend.records.view import Floats

LOW, HIGH = "advantage.dead-groups-low", "advantage.dead-groups-high"
MOST = 0.5
"""The share of dead groups from which most of a step is wasted."""
NOTED = 0.4
"""The share in some part of the run that is worth a note."""
NEARLY_ALL = 0.9
SMALL = 0.15
"""Spread within groups against the range of rewards seen, below which groups hardly differ."""
SHRUNK = 0.65
FEWEST = 5


def check(view: RunView) -> Outcome:
    """Judge the share of dead groups by parts of the run and by where the reward lies."""
    dead = dead_groups(view)
    if len(dead) == 0:
        return [*_narrowing(view)] or [CannotTell(id, "no share of dead groups was logged") for id in (LOW, HIGH)]
    if len(dead) < FEWEST:
        return [CannotTell(id, f"fewer than {FEWEST} steps") for id in (LOW, HIGH)]
    quarters = [float(part.mean()) for part in np.array_split(dead, 4)]
    if max(quarters) < NOTED:
        return [*_narrowing(view)]
    return [_found(view, dead, quarters)]


def _found(view: RunView, dead: Floats, quarters: list[float]) -> Finding:
    mean, worst = float(dead.mean()), int(np.argmax(quarters))
    where, confidence, how = _side(view, worst)
    severity = _severity(view, mean, quarters)
    sure = "" if confidence is not Confidence.LOW else "probably "
    lie = sure + {LOW: "at the bottom", HIGH: "at the top"}[where]
    return finding(
        view,
        where,
        severity,
        confidence,
        f"{mean:.0%} of groups had no spread in their rewards ({quarters[0]:.0%} in the first quarter, "
        f"{quarters[-1]:.0%} in the last), most of them {lie}: they have no gradient.",
        [Evidence(f"Dead groups by quarters: {', '.join(f'{q:.2f}' for q in quarters)}.", mean,
                  "advantage/dead/share"), how],
    )  # fmt: skip


def _severity(view: RunView, mean: float, quarters: list[float]) -> Severity:
    """A run that learns all the same is told, not warned; so is one that is dead because it has learned."""
    trend = trend_of(view).kind
    if trend is TrendKind.LEARNING or mean < MOST:
        return Severity.NOTE
    if trend is TrendKind.TOO_SHORT and min(mean, quarters[-1]) < 0.6:
        return Severity.NOTE
    return Severity.CRITICAL if mean >= NEARLY_ALL and trend is not TrendKind.TOO_SHORT else Severity.WARNING


def _side(view: RunView, quarter: int) -> tuple[str, Confidence, Evidence]:
    """Whether dead groups lie at the bottom or at the top, and how that is known."""
    low, high = course(view, "advantage/dead_low/share"), course(view, "advantage/dead_high/share")
    if low is not None and high is not None:
        counts = [float(np.array_split(c.values, 4)[quarter].mean()) for c in (low, high)]
        side = LOW if counts[0] >= counts[1] else HIGH
        text = f"Counted: {counts[0]:.2f} at the lower bound and {counts[1]:.2f} at the upper."
        return side, Confidence.HIGH, Evidence(text, max(counts), "advantage/dead_low/share")
    level = float(np.array_split(view.curve(REWARD)[1], 4)[quarter].mean())
    low_end, high_end = reward_range(view)
    # Means alone do not show how high a reward goes; one that stays between 0 and 1 is taken to go to 1.
    is_share = low_end >= 0 and high_end <= 1 and not view.has("reward/max")
    at = level if is_share else height(view, level)
    side = HIGH if at > 0.5 else LOW
    sure = Confidence.MEDIUM if at < 0.25 or at > 0.75 else Confidence.LOW
    text = f"Their side was not logged; judged by the reward, {level:.3g}, which lies at {at:.0%} of its range."
    return side, sure, Evidence(text, level, REWARD)


def _narrowing(view: RunView) -> list[Finding]:
    """A reward that has leveled out high, with little spread to learn from: near its ceiling, worth a note."""
    reward = course(view, REWARD)
    within = course(view, "reward/group_std/mean")
    spread = within or course(view, "reward/std")
    if reward is None or spread is None or len(reward.values) < 20 or height(view, reward.last) < 0.75:
        return []
    low, high = reward_range(view)
    is_small = within is not None and within.last < SMALL * (high - low)
    middle = float(np.median(np.array_split(reward.values, 4)[2]))
    is_level = abs(reward.last - middle) <= 0.25 * max(abs(reward.last - reward.first), 1e-12) or not reward.rises
    if not is_small and not (is_level and spread.last < SHRUNK * spread.first):
        return []
    text = f"The reward lies at {reward.last:.3g}, high in its range, with little spread to learn from"
    shown = spread.evidence(f"Spread {spread.first:.3g} → {spread.last:.3g}; reward {reward.first:.3g} → "
                            f"{reward.last:.3g}.")  # fmt: skip
    return [finding(view, HIGH, Severity.NOTE, Confidence.LOW, f"{text}: it may be near its ceiling.", [shown])]
