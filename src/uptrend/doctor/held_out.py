"""Old place of the held-out change; goes away with the last check of the old form."""

from uptrend.doctor.case import Case
from uptrend.doctor.trend import HeldOutChange, held_out_change
from uptrend.records import RunView

__all__ = ["HeldOutChange", "held_out_change", "is_learned"]


def is_learned(view: RunView) -> bool:
    """Tell whether held-out tasks show that the model got better."""
    return Case(view).is_learned
