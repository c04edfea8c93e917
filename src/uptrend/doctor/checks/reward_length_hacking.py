"""reward.length-hacking: answers grow, the reward grows with them, and nothing else does."""

import numpy as np

from uptrend.doctor.check import Outcome, finding
from uptrend.doctor.curves import REWARD, course, cut_by_length
from uptrend.doctor.held_out import held_out_change
from uptrend.doctor.trend import trend_of
from uptrend.records import CannotTell, Confidence, Evidence, RunView, Severity, TrendKind
from uptrend.records.view import Floats
from uptrend.stats.trend import rank_correlation

ID = "reward.length-hacking"
GROWTH = 1.5
"""How much longer answers must have become for more than a note."""
NOTED = 1.15
"""And for a note."""
TOGETHER = 0.5
"""The rank correlation of length and reward that says that they go together."""
ENDED, UNENDED = 0.25, 0.9
"""The shares cut by length at first and at last, where answers have grown into their limit."""
STEP_BY_STEP = 0.3
"""The correlation of changes between neighboring steps that says so, too."""


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
    change, is_rising = held_out_change(view), trend_of(view).kind is TrendKind.LEARNING
    is_empty = change is not None and change.interval is not None and change.interval[0] <= 0 and change.effect < 0.02
    is_paid = is_rising and growth >= GROWTH and together > TOGETHER
    is_boundless = is_paid and _runs_into_its_limit(view, lengths[both], rewards[both])
    is_hack = is_paid and (is_empty or is_boundless)
    tail = _tail(is_empty, is_boundless) if is_hack else ""
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


def _runs_into_its_limit(view: RunView, lengths: Floats, rewards: Floats) -> bool:
    """Whether answers that ended by themselves grew until nearly all are cut, and steps with longer ones pay more.

    Reasoning that pays grows too, but has to end in order to answer. Two curves that both rise go together anyway, so
    that their changes from step to step are asked as well.
    """
    cut = cut_by_length(view)
    quarter = len(cut) // 4
    if quarter < 3 or float(cut[:quarter].mean()) > ENDED or float(cut[-quarter:].mean()) < UNENDED:
        return False
    return float(np.corrcoef(np.diff(lengths), np.diff(rewards))[0, 1]) > STEP_BY_STEP


def _tail(is_empty: bool, is_boundless: bool) -> str:
    limit = ", until nearly all are cut by the limit" if is_boundless else ""
    return limit + (", and the held-out figure does not follow" if is_empty else "")


def _with(together: float) -> str:
    if together > TOGETHER:
        return ", together with the reward"
    return ", and the reward fell as they did" if together < -TOGETHER else ""
