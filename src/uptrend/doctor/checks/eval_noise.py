"""eval.noise: the held-out change lies inside its own interval."""

from uptrend.doctor.check import Outcome, finding
from uptrend.doctor.held_out import held_out_change
from uptrend.records import CannotTell, Confidence, Evidence, RunView, Severity

ID = "eval.noise"


def check(view: RunView) -> Outcome:
    """Compare the held-out change with its interval."""
    change = held_out_change(view)
    if change is None:
        return [CannotTell(ID, "fewer than two held-out evaluations")]
    if change.interval is None:
        return [CannotTell(ID, "it is not known over how many tasks the evaluations went")]
    low, high = change.interval
    if not low <= 0 <= high:
        return []
    over = f" on {change.tasks} tasks" if change.tasks else ""
    text = (
        f"The held-out change of {change.effect:+.3g}{over} lies inside its 95% interval, {low:+.3g} to {high:+.3g}: "
        f"it shows neither a gain nor a loss."
    )
    shown = Evidence(f"{change.first:.3g} → {change.last:.3g}.", change.effect, "eval", change.steps[1])
    return [finding(view, ID, Severity.NOTE, Confidence.HIGH, text, [shown])]
