"""advantage.length-bias: wrong rollouts lengthen faster than right ones."""

import math

import numpy as np

from uptrend.doctor.check import Outcome, finding
from uptrend.doctor.kept import cannot_tell, read_rows
from uptrend.doctor.rows import Rows
from uptrend.records import CannotTell, Confidence, Evidence, RunView, Severity
from uptrend.records.view import Floats
from uptrend.stats.intervals import normal_reach

ID = "advantage.length-bias"
ENDS = 3
"""Steps at either end of the run that are compared."""
FEWEST = 30
"""Rollouts of each kind at either end."""
GROWTH = 0.3
"""How much of their first length wrong rollouts must have gained beyond what right ones did."""
SURE = 5.0
"""Standard errors; rollouts of one task are alike, so that the nominal error is too small."""


def check(view: RunView) -> Outcome:
    """Compare the lengths of right and wrong rollouts at the start and at the end of the run."""
    lacking = cannot_tell(view, [ID], "correct", "roles")
    rows = read_rows(view)
    if lacking or len(rows) < 2 * ENDS:
        return [*lacking] or [CannotTell(ID, f"rollouts of fewer than {2 * ENDS} steps were kept")]
    early, late = rows[:ENDS], rows[-ENDS:]
    lengths = [_lengths(part, is_right) for part in (early, late) for is_right in (True, False)]
    if min(map(len, lengths)) < FEWEST:
        return [CannotTell(ID, f"fewer than {FEWEST} right or wrong rollouts at one end of the run")]
    right, wrong, right_late, wrong_late = (float(part.mean()) for part in lengths)
    gained = (wrong_late - wrong) - (right_late - right)
    error = math.sqrt(sum(float(part.var(ddof=1)) / len(part) for part in lengths))
    if gained < max(GROWTH * wrong, 2.0, SURE * error):
        return []
    step = late[-1].step
    text = (
        f"Wrong rollouts grew from {wrong:.0f} to {wrong_late:.0f} tokens and right ones from {right:.0f} to "
        f"{right_late:.0f}: a mean over each rollout's tokens lets long wrong answers off lightly."
    )
    shown = Evidence(f"Wrong ones gained {gained:.3g} tokens more (± {normal_reach() * error:.2g}).", gained, "", step)
    return [finding(view, ID, Severity.WARNING, Confidence.MEDIUM, text, [shown])]


def _lengths(rows: list[Rows], is_right: bool) -> Floats:
    """The model's tokens in the rollouts of one kind."""
    chosen = [r.lengths_n[r.by_rollout("correct") == float(is_right)] for r in rows]
    return np.concatenate(chosen).astype(np.float64)
