"""Whether steps go on without an update (optimizer.skipped-updates), from the optimizer's own count."""

import numpy as np

from uptrend.doctor.check import Outcome, finding
from uptrend.records import CannotTell, Confidence, Evidence, RunView, Severity

ID = "optimizer.skipped-updates"
SKIPPED, MADE = "optimizer/skipped/count", "optimizer/updates/count"


def check(view: RunView) -> Outcome:
    """Count what was skipped against what was made."""
    if not view.has(SKIPPED) and not view.has(MADE):
        return [CannotTell(ID, "updates were not counted")]
    steps, skipped = view.curve(SKIPPED)
    at, made = view.curve(MADE)
    idle = at[made == 0]
    lost, total = float(skipped.sum()), float(skipped.sum() + made.sum())
    points = max(len(at), len(steps))
    if not lost and not len(idle):
        return []
    if points < 5 and not (len(idle) and len(idle) == points):
        return []
    share = max(lost / total if total else 1.0, len(idle) / points)
    if share < 0.02:
        return []
    first = int(idle[0] if len(idle) else steps[np.flatnonzero(skipped)[0]])
    text = f"{lost:.0f} of {total:.0f} updates were skipped, and {len(idle)} of {points} steps made none"
    severity = Severity.CRITICAL if share >= 0.5 else Severity.WARNING if share >= 0.1 else Severity.NOTE
    summary = "Steps are counted whose updates were never made."
    return [finding(view, ID, severity, Confidence.HIGH, summary, [Evidence(text, share, SKIPPED, first)])]
