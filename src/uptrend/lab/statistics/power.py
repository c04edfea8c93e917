"""What so many seeds can show: the chance of each verdict for a true effect, exactly, and the seeds that it takes.

Given u = s/σ, which follows √(χ²/ν), the mean is normal: each chance is a normal probability integrated over u. One of
them is noncentral t's: P(T > c) = E Φ(δ − c·u).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from uptrend.doctor.statistics.distributions import normal_cdf
from uptrend.lab.statistics.paired import student_reach
from uptrend.lab.statistics.signflip import fewest_seeds
from uptrend.records.view import Floats

MOST_SEEDS = 1000
"""Where more would be needed, nobody runs them."""


@dataclass(frozen=True)
class Chances:
    """Of the two verdicts; the rest is inconclusive."""

    validated: float
    invalidated: float

    @property
    def decided(self) -> float:
        """Of either."""
        return self.validated + self.invalidated


@lru_cache(maxsize=1)
def _legendre() -> tuple[Floats, Floats]:
    return np.polynomial.legendre.leggauss(160)


@lru_cache(maxsize=256)
def ratios(df: int) -> tuple[Floats, Floats]:
    """Nodes for u = √(χ²/ν) and their weights."""
    nodes, weights = _legendre()
    width = 10 / math.sqrt(2 * df)
    low, high = max(0.0, 1 - width), 1 + width
    u = low + (nodes + 1) * (high - low) / 2
    density = np.exp((df - 1) * np.log(u) - df * (u * u - 1) / 2)
    mass = weights * density
    return u, mass / mass.sum()


def _below(bounds: Floats) -> Floats:
    return np.array([normal_cdf(float(bound)) for bound in bounds])


def noncentral_above(critical: float, df: int, shift: float) -> float:
    """P(T > critical) of noncentral t."""
    u, mass = ratios(df)
    return float(mass @ _below(shift - critical * u))


def chances(
    effect: float, deviation: float, seeds: int, smallest: float, alpha: float = 0.05, either: bool = False
) -> Chances:
    """Of `low > 0` and of `high < smallest`, the second first, where the true effect is this."""
    if seeds < 2:
        return Chances(0.0, 0.0)
    if deviation == 0:
        return _without_deviation(abs(effect) if either else effect, seeds, smallest, alpha)
    u, mass = ratios(seeds - 1)
    half, error = student_reach(seeds, alpha) * deviation * u, deviation / math.sqrt(seeds)
    above = np.maximum(half, smallest - half)
    validated, invalidated = _below((effect - above) / error), _below((smallest - half - effect) / error)
    if either:
        validated += _below((-effect - above) / error)
        invalidated = np.maximum(0.0, invalidated - _below((half - smallest - effect) / error))
    return Chances(float(mass @ validated), float(mass @ invalidated))


def _without_deviation(effect: float, seeds: int, smallest: float, alpha: float) -> Chances:
    if seeds < fewest_seeds(alpha) or effect == 0 >= smallest:
        return Chances(0.0, 0.0)
    return Chances(0.0, 1.0) if effect < smallest else Chances(1.0, 0.0)


def fewest(is_enough: Callable[[int], bool], least: int = 2, most: int = MOST_SEEDS) -> int | None:
    """The least number from `least` on that is enough, where more always is too; none up to `most`."""
    low, high = least - 1, least
    while not is_enough(high):
        if high >= most:
            return None
        low, high = high, min(most, 2 * high)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high
