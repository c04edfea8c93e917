"""reward.component-dead and reward.component-dominates: parts that teach nothing, and parts that teach alone."""

from itertools import combinations

import numpy as np

from uptrend.doctor.check import Outcome, finding
from uptrend.doctor.checks._parts import PartCurve, parts_of, surely_still
from uptrend.doctor.trend import trend_of
from uptrend.records import CannotTell, Confidence, Evidence, Finding, RunView, Severity, TrendKind

DEAD = 0.02
"""The share of the variance below which a component teaches nothing."""
DOMINANT = 0.7
"""The share from which an auxiliary component is all that is taught."""
SAME = 0.99
"""Correlation of two components' means from which they are one thing, counted twice."""
FEWEST = 10


def check(view: RunView) -> Outcome:
    """Share out the reward's variance among its components."""
    parts = parts_of(view)
    if len(parts) < 2 or len(parts[0].mean.values) < FEWEST:
        needs = f"fewer than two components of the reward were logged over {FEWEST} steps"
        return [CannotTell(id, needs) for id in ("reward.component-dead", "reward.component-dominates")]
    total = sum(part.variance for part in parts)
    if total == 0:
        return [CannotTell("reward.component-dominates", "no component of the reward ever varied")]
    dead = [_dead(view, part, part.variance / total) for part in parts]
    return [found for found in (*dead, _dominant(view, parts, total), _doubled(view, parts)) if found is not None]


def _dead(view: RunView, part: PartCurve, share: float) -> Finding | None:
    if share >= DEAD:
        return None
    values = part.mean.values
    is_fixed = float(np.ptp(values)) <= 1e-6 * max(1.0, abs(part.mean.last))
    # One that is constant above 0 may be earned by everybody, rightly; one stuck at 0 or below is earned by nobody.
    is_floor = is_fixed and part.mean.last <= 0 and not part.is_format
    severity = Severity.WARNING if is_floor and trend_of(view).kind is not TrendKind.TOO_SHORT else Severity.NOTE
    stays = "is constant at" if is_fixed else "hardly moves from"
    return finding(
        view,
        "reward.component-dead",
        severity,
        Confidence.HIGH if is_fixed else Confidence.MEDIUM,
        f"The component {part.name} {stays} {part.mean.last:.3g} all run long, so that it teaches nothing.",
        [part.mean.evidence(f"{part.name} brings {share:.2%} of the reward's variance; {values.min():.3g} to "
                            f"{values.max():.3g} over {len(values)} points.")],
    )  # fmt: skip


def _dominant(view: RunView, parts: list[PartCurve], total: float) -> Finding | None:
    part = max(parts, key=lambda p: p.variance)
    share = part.variance / total
    others = [p for p in parts if not p.is_format]
    if share < DOMINANT or not part.is_format or not others:
        return None
    is_alone = all(surely_still(view, p) for p in others) and trend_of(view).kind is TrendKind.LEARNING
    return finding(
        view,
        "reward.component-dominates",
        Severity.WARNING if is_alone else Severity.NOTE,
        Confidence.MEDIUM,
        f"{part.name} brings {share:.0%} of the reward's variance: the run learns that, and hardly the task.",
        [part.mean.evidence(f"{part.name} went from {part.mean.first:.3g} to {part.mean.last:.3g}."),
         *(p.mean.evidence(f"{p.name} went from {p.mean.first:.3g} to {p.mean.last:.3g}.") for p in others)],
    )  # fmt: skip


def _doubled(view: RunView, parts: list[PartCurve]) -> Finding | None:
    """Two components that are numerically one series are one signal with twice the weight."""
    for one, other in combinations(parts, 2):
        a, b = one.mean.values, other.mean.values
        if len(a) != len(b) or len(a) < 20 or np.ptp(a) == 0 or np.ptp(b) == 0:
            continue
        # Differences, so that two that merely rise together are not taken for one.
        moves = np.diff(a), np.diff(b)
        likeness = float(np.corrcoef(*moves)[0, 1]) if np.ptp(moves[0]) > 0 and np.ptp(moves[1]) > 0 else 0.0
        if likeness > SAME:
            text = f"The components {one.name} and {other.name} are one series, so that one thing is paid for twice."
            shown = Evidence(f"Their changes from step to step correlate at {likeness:.3f}.", likeness, one.mean.metric)
            return finding(view, "reward.component-dominates", Severity.NOTE, Confidence.HIGH, text, [shown])
    return None
