"""Old place of rollouts by group; goes away with the last check of the old form."""

from uptrend.doctor.rows import Grouped, grouped, recomputed

__all__ = ["Grouped", "grouped", "recomputed"]
