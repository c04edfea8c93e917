"""Student's paired interval over seeds: what decides a verdict.

Each seed gives one difference, arm less control. Over seeds these are independent and near enough to normal (a run's
accuracy is a mean over tasks), so that mean ± t·s/√n covers the mean over all seeds on these tasks. Both this interval
and the confidence sequence are mean ± reach·s with a reach that depends on how many seeds there are and on alpha.
"""

import math
from dataclasses import dataclass

import numpy as np

from uptrend.doctor.statistics.distributions import student_cdf, student_quantile
from uptrend.records.verdict import Interval
from uptrend.records.view import Floats


@dataclass(frozen=True)
class Spread:
    """Paired differences in three figures."""

    seeds: int
    """How many."""
    mean: float
    """Their mean."""
    deviation: float
    """Their deviation between seeds (n − 1); 0 where all are equal but for rounding."""


def spread_of(differences: Floats) -> Spread:
    """Mean and deviation of the differences by seed."""
    mean = float(np.mean(differences))
    deviation = float(np.std(differences, ddof=1)) if len(differences) > 1 else 0.0
    is_rounding = deviation <= 1e-12 * float(np.abs(differences).max())
    return Spread(len(differences), mean, 0.0 if is_rounding else deviation)


def apart(differences: Floats, level: float = 0.02) -> list[int]:
    """Which differences stand too far from the others for a normal spread (Grubbs 1950, one at a time); none below 5.

    Each is told from the rest by Student's t, at a level that so many looks share: 2% of all experiments have one.
    """
    count = len(differences)
    if count < 5:
        return []
    critical = student_quantile(1 - level / (2 * count), count - 2)
    rests = [np.delete(differences, i) for i in range(count)]
    errors = [spread_of(rest).deviation * math.sqrt(1 + 1 / (count - 1)) for rest in rests]
    distances = [abs(float(differences[i] - rest.mean())) for i, rest in enumerate(rests)]
    return [i for i in range(count) if errors[i] > 0 and distances[i] > critical * errors[i]]


def likely_deviation(spread: Spread) -> float:
    """The deviation that lies as often below the true one as above it; s itself is too small in most experiments.

    Power computed from it is as often too high as too low. s² has the median (1 − 2/9ν)³ σ² (Wilson and Hilferty 1931).
    """
    return spread.deviation / (1 - 2 / (9 * (spread.seeds - 1))) ** 1.5 if spread.seeds > 1 else 0.0


def student_reach(seeds: int, alpha: float) -> float:
    """How many deviations Student's interval reaches to either side; endless below two seeds."""
    return student_quantile(1 - alpha / 2, seeds - 1) / math.sqrt(seeds) if seeds > 1 else math.inf


def interval_of(spread: Spread, reach: float, alpha: float) -> Interval:
    """Mean ± reach · deviation.

    Equal differences have no deviation, and an interval without width is not believed: a coarse metric can give them.
    There the exact sign-flip test stands in, which excludes every other effect once 2^(1−n) ≤ alpha, and none before.
    """
    if spread.deviation == 0:
        half = 0.0 if math.isfinite(reach) and 2.0 ** (1 - spread.seeds) <= alpha else math.inf
    else:
        half = reach * spread.deviation
    return Interval(spread.mean, spread.mean - half, spread.mean + half)


def paired_interval(differences: Floats, alpha: float = 0.05) -> Interval:
    """Student's two-sided interval of the mean difference."""
    return interval_of(spread_of(differences), student_reach(len(differences), alpha), alpha)


def paired_p(spread: Spread, null: float = 0.0) -> float:
    """The paired t test's two-sided p of a mean of `null`; 1 below two seeds, the sign-flip test's where all agree."""
    if spread.seeds < 2:
        return 1.0
    if spread.deviation == 0:
        return 2.0 ** (1 - spread.seeds) if spread.mean != null else 1.0
    t = (spread.mean - null) * math.sqrt(spread.seeds) / spread.deviation
    return 2 * student_cdf(-abs(t), spread.seeds - 1)
