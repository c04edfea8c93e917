"""Old place of the penalties' weights; goes away with the last check of the old form."""

from uptrend.doctor.curves import entropy_weight, kl_weight

__all__ = ["entropy_weight", "kl_weight"]
