"""Several hypotheses at once: Benjamini and Hochberg (1995) keep the share of false ones among those called true."""

from collections.abc import Sequence

import numpy as np


def benjamini_hochberg(ps: Sequence[float]) -> list[float]:
    """Each p adjusted: those at most q are the discoveries with a false discovery rate of q."""
    count = len(ps)
    order = np.argsort(np.asarray(ps, dtype=np.float64), kind="stable")[::-1]
    scaled = np.asarray(ps, dtype=np.float64)[order] * count / np.arange(count, 0, -1)
    adjusted = np.empty(count)
    adjusted[order] = np.minimum(1.0, np.minimum.accumulate(scaled))
    return [float(p) for p in adjusted]
