"""Old place of the penalties' weights; goes away with the last check of the old form."""

from uptrend.doctor.curves import RunCurves
from uptrend.records import RunView


def kl_weight(view: RunView) -> float:
    """Return the weight of the KL penalty."""
    return RunCurves(view).kl_weight


def entropy_weight(view: RunView) -> float:
    """Return the weight of the entropy bonus."""
    return RunCurves(view).entropy_weight
