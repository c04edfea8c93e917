"""The ordinary straight-line fit with Newey-West errors: what most people mean by a trend's t."""

import math
from dataclasses import dataclass

import numpy as np

from uptrend.records.view import Floats


@dataclass(frozen=True)
class FittedLine:
    """A fitted line."""

    slope: float
    """Change a point."""
    intercept: float
    """Its value at the first point."""
    error: float
    """The slope's Newey-West standard error."""

    @property
    def t(self) -> float:
        """The slope in standard errors."""
        return self.slope / self.error if self.error > 0 else 0.0


def fit_line(values: Floats, lags: int | None = None) -> FittedLine:
    """A line through a curve; by default with the lags of Newey and West, 4 (n/100)^(2/9)."""
    points = len(values)
    lags = int(4 * (points / 100) ** (2 / 9)) if lags is None else lags
    time = np.arange(points) - (points - 1) / 2
    spread = float(time @ time)
    slope = float(time @ values) / spread
    scores = time * (values - values.mean() - slope * time)
    variance = float(scores @ scores)
    for lag in range(1, min(lags, points - 1) + 1):
        variance += 2 * (1 - lag / (lags + 1)) * float(scores[lag:] @ scores[:-lag])
    return FittedLine(slope, float(values.mean() + slope * time[0]), math.sqrt(max(variance, 0.0)) / spread)
