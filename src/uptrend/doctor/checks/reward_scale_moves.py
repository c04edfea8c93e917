"""reward.scale-moves: the reward's bounds change over the run, so that its curve shows the order of the tasks."""

import numpy as np

from uptrend.doctor.check import Outcome, finding
from uptrend.doctor.curves import REWARD
from uptrend.doctor.kept import cannot_tell, read_rows
from uptrend.records import CannotTell, Confidence, Evidence, RunView, Severity

ID = "reward.scale-moves"
ENDS = 3
"""Steps at either end of the run that are compared."""
MOVED = 0.2
"""How far the mean upper bound must move, against its size, to spoil the curve."""


def check(view: RunView) -> Outcome:
    """Compare the most that rollouts could earn at the start and at the end of the run."""
    lacking = cannot_tell(view, [ID], "reward_high")
    rows = read_rows(view)
    if lacking or len(rows) < 2 * ENDS:
        needs = f"the bounds of the reward are in the rollouts, and those of fewer than {2 * ENDS} steps were kept"
        return [*lacking] or [CannotTell(ID, needs)]
    tops = [r.by_rollout("reward_high") for r in rows]
    early, late = (np.concatenate(part) for part in (tops[:ENDS], tops[-ENDS:]))
    early, late = early[np.isfinite(early)], late[np.isfinite(late)]
    if len(early) == 0 or len(late) == 0:
        return [CannotTell(ID, "rollouts have no bounds of their rewards")]
    first, last = float(early.mean()), float(late.mean())
    # A mix of bounds that is shuffled scatters between steps by its own deviation over the root of the tasks.
    noise = float(np.std([np.nanmean(top) for top in tops[:ENDS]]))
    if abs(last - first) < max(MOVED * max(abs(first), abs(last)), 3 * noise):
        return []
    text = (
        f"The most that a rollout can earn moves from {first:.3g} to {last:.3g} on average over the run: its reward "
        f"curve shows the order of the tasks."
    )
    shown = Evidence(f"Mean upper bound {first:.3g} at first, {last:.3g} at last.", last, REWARD, rows[-1].step)
    return [finding(view, ID, Severity.WARNING, Confidence.HIGH, text, [shown])]
