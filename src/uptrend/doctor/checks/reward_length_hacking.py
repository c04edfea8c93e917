"""reward.length-hacking: answers grow, the reward grows with them, and nothing else does."""

import numpy as np

from uptrend.doctor.check import Outcome, finding
from uptrend.doctor.curves import REWARD, course
from uptrend.doctor.held_out import held_out_change
from uptrend.doctor.statistics.spread import rank_correlation
from uptrend.doctor.verdict import judge
from uptrend.records import CannotTell, Confidence, Evidence, RunView, Severity, Trend

ID = "reward.length-hacking"
GROWTH = 1.5
"""How much longer answers must have become for more than a note."""
NOTED = 1.15
"""And for a note."""
TOGETHER = 0.5
"""The rank correlation of length and reward that says that they go together."""


def check(view: RunView) -> Outcome:
    """Look at length and reward side by side."""
    length = course(view, "sampling/length/mean")
    if length is None or not view.has(REWARD):
        return [CannotTell(ID, "no lengths of completions were logged")]
    growth = length.last / length.begin if length.begin > 0 else 1.0
    if growth < NOTED or not (length.rises or growth >= GROWTH):
        return []
    lengths, rewards = view.metrics["sampling/length/mean"], view.metrics[REWARD]
    both = np.isfinite(lengths) & np.isfinite(rewards)
    together = rank_correlation(lengths[both], rewards[both])
    change, is_rising = held_out_change(view), judge(view).trend is Trend.LEARNING
    is_empty = change is not None and change.interval is not None and change.interval[0] <= 0 and change.effect < 0.02
    is_hack = growth >= GROWTH and together > TOGETHER and is_rising and is_empty
    tail = ", and the held-out figure does not follow" if is_hack else ""
    return [
        finding(
            view,
            ID,
            Severity.WARNING if is_hack else Severity.NOTE,
            Confidence.MEDIUM if is_hack else Confidence.LOW,
            f"Completions grew from {length.begin:.0f} to {length.last:.0f} tokens{_with(together)}{tail}.",
            [length.evidence(f"Length × {growth:.2f} from the first steps to the last quarter."),
             Evidence(f"Rank correlation of length and reward {together:+.2f}.", together, REWARD)],
        )
    ]  # fmt: skip


def _with(together: float) -> str:
    if together > TOGETHER:
        return ", together with the reward"
    return ", and the reward fell as they did" if together < -TOGETHER else ""
