"""data.memorized: right answers on the tasks trained on, and none of it on others."""

import math

from uptrend.doctor.check import Outcome, finding
from uptrend.doctor.checks.reward_hackable import falls_alone, stands_still
from uptrend.doctor.curves import course, trend_until
from uptrend.doctor.held_out import held_out_change
from uptrend.doctor.trend import trend_of
from uptrend.records import CannotTell, Confidence, Evidence, RunView, Severity, TrendKind

ID = "data.memorized"
GAP = 0.15
"""Share by which right answers in training must have left those held out."""
FEWEST = 2
"""Times that a task is met at least, where it is learned by heart."""


def check(view: RunView) -> Outcome:
    """Compare right answers in training with those held out."""
    right, change = course(view, "reward/correct/share"), held_out_change(view)
    if right is None or change is None:
        return [CannotTell(ID, "it takes the share of right answers in training and two held-out evaluations")]
    unit = math.sqrt(max(0.01, right.last * (1 - right.last)))
    rise = trend_until(view, right.metric, change.steps[1])
    is_left_behind = trend_of(view).kind is TrendKind.LEARNING and stands_still(view, right.metric, unit, change)
    if rise is None or rise.effect - change.effect < GAP:
        return []
    if not is_left_behind and not falls_alone(view, rise, unit, change):
        return []
    rounds = _rounds(view)
    if 0 < rounds < FEWEST:
        return []
    seen = f" Each task was met about {rounds:.0f} times." if rounds else ""
    return [
        finding(
            view,
            ID,
            Severity.WARNING,
            Confidence.MEDIUM,
            f"Right answers in training went from {right.first:.0%} to {right.last:.0%}, and held out from "
            f"{change.first:.0%} to {change.last:.0%}: the run learned its tasks by heart.{seen}",
            [right.evidence(f"Right in training {right.first:.3g} → {right.last:.3g}."),
             Evidence(f"Held out {change.effect:+.3g} by step {change.steps[1]}.", change.effect, "eval",
                      change.steps[1])],
        )
    ]  # fmt: skip


def _rounds(view: RunView) -> float:
    """Return how often each training task was met, or 0 where that is not known."""
    tasks, groups = view.value("tasks.train", 0), view.value("sampling.groups", 0)
    return len(view.steps) * groups / tasks if tasks and groups else 0.0
