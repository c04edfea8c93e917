"""Spread and levels that single odd points do not move."""

import numpy as np

from uptrend.records.view import Floats


def robust_spread(values: Floats) -> float:
    """The interquartile range, scaled to equal a normal's deviation."""
    if len(values) == 0:
        return 0.0
    low, high = np.quantile(values, [0.25, 0.75])
    return float(high - low) / 1.349


def start(values: Floats, share: float = 0.25) -> float:
    """The median of the first part of a curve, of 3 points at least."""
    return float(np.median(values[: _count(values, share)]))


def end(values: Floats, share: float = 0.25) -> float:
    """The median of its last part."""
    return float(np.median(values[-_count(values, share) :]))


def _count(values: Floats, share: float) -> int:
    return max(min(3, len(values)), int(len(values) * share))


def rank_correlation(a: Floats, b: Floats) -> float:
    """Spearman's correlation of two curves; 0 where one is constant."""
    ranks = [np.argsort(np.argsort(x)).astype(float) for x in (a, b)]
    if len(a) < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])
