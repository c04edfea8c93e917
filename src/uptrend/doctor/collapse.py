"""Old place of the reward's collapse; goes away with the last check of the old form."""

from uptrend.doctor.trend import SHORTEST, Collapse, find_collapse

__all__ = ["SHORTEST", "Collapse", "find_collapse"]
