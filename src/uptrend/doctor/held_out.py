"""Old place of the held-out change; goes away with the last check of the old form."""

from uptrend.doctor.trend import HeldOutChange, held_out_change, is_learned

__all__ = ["HeldOutChange", "held_out_change", "is_learned"]
