"""Figures as Markdown: shares in percent with their 95% intervals, in tables."""

import numpy as np
from numpy.typing import NDArray

from uptrend.stats.intervals import wilson


def percent(share: float) -> str:
    """A share in percent, without the sign."""
    return f"{100 * share:.1f}"


def rate(happened: NDArray[np.bool_]) -> str:
    """A share in percent with its 95% interval."""
    low, high = wilson(int(happened.sum()), len(happened))
    return f"{percent(float(happened.mean()))} ({percent(low)} to {percent(high)})"
