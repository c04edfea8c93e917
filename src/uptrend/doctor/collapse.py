"""Old place of the reward's collapse; goes away with the last check of the old form."""

from uptrend.doctor import trend
from uptrend.doctor.curves import RunCurves
from uptrend.doctor.trend import SHORTEST
from uptrend.records import RunView

__all__ = ["SHORTEST", "find_collapse"]


def find_collapse(view: RunView) -> trend.Collapse | None:
    """Return the collapse of a run's reward."""
    return trend.find_collapse(RunCurves(view))
