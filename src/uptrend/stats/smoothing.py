"""Fewer points of a curve for a picture, or smoother ones."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from uptrend.records.view import Floats

Integers = NDArray[np.int64]
# Part of a curve over which it is smoothed: wide enough to see a trend in noise, narrow enough to
# see a collapse.
SMOOTHED = 15


def stretches(points: int, most: int) -> Integers:
    """Return where the stretches of a curve begin: as many as its points, and at most `most` of
    about equal length.
    """
    return np.linspace(0, points, max(0, min(points, most)), endpoint=False).astype(np.int64)


def stretch_means(values: Floats, begins: Integers) -> Floats:
    """Return the mean of each stretch's finite values, NaN where it has none."""
    if not len(begins):
        return np.zeros(0)
    finite = np.isfinite(values)
    counts = np.add.reduceat(finite.astype(np.float64), begins)
    sums = np.add.reduceat(np.where(finite, values, 0.0), begins)
    with np.errstate(invalid="ignore", divide="ignore"):
        means: Floats = sums / counts
    return means


def thin_curve(steps: Integers, values: Floats, most: int = 200) -> tuple[tuple[int, float], ...]:
    """Return a curve as means over at most so many stretches, each at its first step."""
    begins = stretches(len(steps), most)
    means = stretch_means(values, begins)
    return tuple((int(step), float(mean)) for step, mean in zip(steps[begins], means, strict=True))


def smooth(values: Sequence[float]) -> list[float]:
    """Return a curve as its moving mean, for a line over its noise."""
    return moving_mean(values, max(1, len(values) // SMOOTHED))


def moving_mean(values: Sequence[float], window: int) -> list[float]:
    """Return the mean of each value with its neighbors, `window` values in all; fewer at the
    ends.
    """
    half = window // 2
    near = [values[max(0, i - half) : i + half + 1] for i in range(len(values))]
    return [sum(part) / len(part) for part in near]
