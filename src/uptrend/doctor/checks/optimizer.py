"""Step sizes: updates that are not made, too small or too large."""

import numpy as np

from uptrend.doctor.case import Case
from uptrend.doctor.check import Found, Lacking, check
from uptrend.records import Confidence, Evidence, Severity

SKIPPED, MADE = "optimizer/skipped/count", "optimizer/updates/count"


@check("optimizer.skipped-updates", any_of=[SKIPPED, MADE])
def skipped_updates(case: Case) -> Found | Lacking | None:
    """Report steps whose update was not applied."""
    steps, skipped = case.view.curve(SKIPPED)
    at, made = case.view.curve(MADE)
    idle = at[made == 0]
    lost, total = float(skipped.sum()), float(skipped.sum() + made.sum())
    points = max(len(at), len(steps))
    if not lost and not len(idle):
        return None
    if points < 5 and not (len(idle) and len(idle) == points):
        return None
    share = max(lost / total if total else 1.0, len(idle) / points)
    if share < 0.02:  # a few skips while an fp16 loss scaler settles are normal
        return None
    first = int(idle[0] if len(idle) else steps[np.flatnonzero(skipped)[0]])
    text = f"{lost:.0f} of {total:.0f} updates were skipped, and {len(idle)} of {points} steps made none"
    return Found(
        Severity.CRITICAL if share >= 0.5 else Severity.WARNING if share >= 0.1 else Severity.NOTE,
        Confidence.HIGH,
        "Steps are counted whose updates were never made.",
        [Evidence(text, share, SKIPPED, first)],
    )
