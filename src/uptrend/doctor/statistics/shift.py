"""Where a curve changed its level: the split that explains most, and how sure it is."""

import math
from dataclasses import dataclass

import numpy as np

from uptrend.doctor.statistics.autocorrelation import residuals
from uptrend.records.view import Floats

SHORTEST_SIDE = 3


@dataclass(frozen=True)
class Shift:
    """A level shift."""

    index: int
    """The first point after it."""
    before: float
    """The mean before."""
    after: float
    """The mean after."""
    z: float
    """The change in standard errors of the noise between neighbors, which a slow drift does not inflate."""

    @property
    def change(self) -> float:
        """After less before."""
        return self.after - self.before


def level_shift(values: Floats) -> Shift | None:
    """The likeliest single level shift (CUSUM); none on curves too short to have two sides."""
    points = len(values)
    if points < 2 * SHORTEST_SIDE:
        return None
    sums = np.cumsum(values - values.mean())[SHORTEST_SIDE - 1 : points - SHORTEST_SIDE]
    left = np.arange(SHORTEST_SIDE, points - SHORTEST_SIDE + 1)
    index = int(left[np.argmax(np.abs(sums) / np.sqrt(left * (points - left)))])
    return shift_at(values, index)


def shift_at(values: Floats, index: int) -> Shift:
    """The change of level at a known point."""
    before, after = values[:index], values[index:]
    noise = neighbor_noise(values)
    error = noise * math.sqrt(1 / len(before) + 1 / len(after))
    change = float(after.mean() - before.mean())
    z = change / error if error > 0 else math.copysign(math.inf, change) if change else 0.0
    return Shift(index, float(before.mean()), float(after.mean()), z)


def neighbor_noise(values: Floats) -> float:
    """The noise's deviation from differences of neighbors (von Neumann), blind to trends and shifts."""
    if len(values) < 3:
        return float(np.std(residuals(values, 0))) if len(values) else 0.0
    return float(np.sqrt(np.mean(np.diff(values) ** 2) / 2))
