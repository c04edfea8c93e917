"""Tools and scoring by count: tool.never-called, tool.errors-swallowed and reward.error-scored."""

import numpy as np

from uptrend.doctor.check import Outcome, finding
from uptrend.doctor.curves import course
from uptrend.doctor.trend import trend_of
from uptrend.records import CannotTell, Confidence, Evidence, Finding, RunView, Severity, TrendKind

NEVER, SWALLOWED, SCORED = "tool.never-called", "tool.errors-swallowed", "reward.error-scored"
FEWEST = 5
MANY = 0.05
"""The share of rollouts that fail from which something is broken."""


def check(view: RunView) -> Outcome:
    """Count tools' turns and failed rollouts."""
    outcome: Outcome = []
    failed = _failed(view)
    if failed is None:
        outcome.append(CannotTell(SCORED, "failed rollouts were not counted"))
    found = [f for f in (failed, _never(view)) if isinstance(f, Finding)]
    if not view.has("sampling/turns/mean"):
        outcome.append(CannotTell(NEVER, "turns were not counted"))
    return [*outcome, *found]


def _failed(view: RunView) -> Finding | bool | None:
    """More than a few rollouts that could not be scored; False for none, None where they were not counted."""
    failed, rollouts = view.curve("sampling/failed/count")[1], view.curve("sampling/rollouts/count")[1]
    if len(failed) == 0 or len(rollouts) == 0:
        return None
    share = float(failed.sum() / max(1.0, rollouts.sum()))
    if share < MANY or len(failed) < FEWEST:
        return False
    tools = course(view, "sampling/ended/tool-error/share")
    by_tool = tools is not None and float(np.mean(tools.values)) > share / 2
    what = "a tool failed" if by_tool else "a task or a scorer failed"
    text = (
        f"{share:.0%} of rollouts could not be scored because {what}: they teach nothing, and the rest is a selection."
    )
    shown = Evidence(f"{failed.sum():.0f} of {rollouts.sum():.0f} rollouts.", share, "sampling/failed/count")
    severity = Severity.CRITICAL if share > 0.5 else Severity.WARNING
    return finding(view, SWALLOWED if by_tool else SCORED, severity, Confidence.MEDIUM, text, [shown])


def _never(view: RunView) -> Finding | None:
    """Rollouts of one turn where several are allowed, and no token from a tool."""
    turns, allowed = course(view, "sampling/turns/mean"), view.value("sampling.max_turns")
    told = course(view, "tokens/tool/count")
    # TRL counts calls only where it was given tools.
    is_counted = view.trainer == "trl" and not view.rollout_steps
    has_tools = allowed >= 2 if isinstance(allowed, int) else is_counted
    if turns is None or not has_tools or len(turns.values) < FEWEST:
        return None
    if turns.last > 1.02 or (told is not None and told.last > 0):
        return None
    is_learning = trend_of(view).kind is TrendKind.LEARNING
    room = f"up to {allowed} turns are allowed" if allowed else "there are tools"
    text = f"Rollouts have {turns.last:.2f} turns though {room}: the tools are never called."
    severity = Severity.NOTE if is_learning else Severity.WARNING
    return finding(
        view, NEVER, severity, Confidence.MEDIUM, text, [turns.evidence(f"{turns.last:.2f} turns a rollout.")]
    )
