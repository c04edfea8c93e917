"""data.memorised: right answers on the tasks trained on, and none of it on others."""

import math

from uptrend.doctor.check import Outcome, finding
from uptrend.doctor.checks.reward_hackable import stands_still
from uptrend.doctor.curves import course, trend_until
from uptrend.doctor.held_out import held_out_change
from uptrend.doctor.verdict import judge
from uptrend.records import CannotTell, Confidence, Evidence, RunView, Severity, Trend

ID = "data.memorised"
GAP = 0.15
"""How far right answers in training must have left those held out."""


def check(view: RunView) -> Outcome:
    """Compare right answers in training with those held out."""
    right, change = course(view, "reward/correct/share"), held_out_change(view)
    if right is None or change is None:
        return [CannotTell(ID, "it takes the share of right answers in training and two held-out evaluations")]
    unit = math.sqrt(max(0.01, right.last * (1 - right.last)))
    rise = trend_until(view, "reward/correct/share", change.steps[1])
    if judge(view).trend is not Trend.LEARNING or rise is None or not stands_still(rise, unit, change):
        return []
    if rise.effect - change.effect < GAP:
        return []
    rounds = _rounds(view)
    seen = f" Each task was met about {rounds:.0f} times." if rounds else ""
    return [
        finding(
            view,
            ID,
            Severity.WARNING,
            Confidence.MEDIUM,
            f"Right answers in training rose from {right.first:.0%} to {right.last:.0%}, and held out from "
            f"{change.first:.0%} to {change.last:.0%}: the run learned its tasks by heart.{seen}",
            [right.evidence(f"Right in training {right.first:.3g} → {right.last:.3g}."),
             Evidence(f"Held out {change.effect:+.3g} by step {change.steps[1]}.", change.effect, "eval",
                      change.steps[1])],
        )
    ]  # fmt: skip


def _rounds(view: RunView) -> float:
    """How often each training task was met, or 0 where that is not known."""
    tasks, groups = view.value("tasks.train", 0), view.value("sampling.groups", 0)
    return len(view.steps) * groups / tasks if tasks and groups else 0.0
