"""Mann-Kendall's rank test for a monotone trend, plain and with the correction of Hamed and Rao (1998).

Kept as a second opinion that outliers do not move; the corrected variance sums the ranks' significant
autocorrelations, and is still too small on short curves at autocorrelation .9: `trend` decides.
"""

import math
from dataclasses import dataclass

import numpy as np

from uptrend.doctor.statistics.distributions import normal_cdf, normal_quantile
from uptrend.records.view import Floats


@dataclass(frozen=True)
class Kendall:
    """The outcome of the rank test."""

    score: float
    """Pairs that rise less pairs that fall."""
    z: float
    """The score in standard errors, with the continuity correction."""
    slope: float
    """Sen's slope: the median change a point over all pairs."""

    @property
    def p(self) -> float:
        """The two-sided p-value."""
        return 2 * normal_cdf(-abs(self.z))


def mann_kendall(values: Floats, corrected: bool = True) -> Kendall:
    """The rank test on a curve."""
    points = len(values)
    later, earlier = np.triu_indices(points, 1)[::-1]
    score = float(np.sign(values[later] - values[earlier]).sum())
    slope = float(np.median((values[later] - values[earlier]) / (later - earlier)))
    _, ties = np.unique(values, return_counts=True)
    variance = (points * (points - 1) * (2 * points + 5) - float((ties * (ties - 1) * (2 * ties + 5)).sum())) / 18
    if corrected:
        variance *= _inflation(values - slope * np.arange(1, points + 1))
    z = (score - math.copysign(1, score)) / math.sqrt(variance) if score and variance > 0 else 0.0
    return Kendall(score, z, slope)


def _inflation(flat: Floats) -> float:
    """How much larger the score's variance is than for independent points."""
    points = len(flat)
    ranks = _ranks(flat)
    centered = ranks - ranks.mean()
    power = float(centered @ centered)
    if power == 0:
        return 1.0
    lags = np.arange(1, points)
    own = np.array([centered[lag:] @ centered[:-lag] for lag in lags]) / power
    own[np.abs(own) < normal_quantile(0.975) / math.sqrt(points)] = 0
    weights = (points - lags) * (points - lags - 1) * (points - lags - 2)
    return max(1.0, 1 + 2 * float(weights @ own) / (points * (points - 1) * (points - 2)))


def _ranks(values: Floats) -> Floats:
    """Ranks from 1, ties at their mean."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts - 1) / 2)[inverse], dtype=np.float64)
