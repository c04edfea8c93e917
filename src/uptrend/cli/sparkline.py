"""Numbers as a line of blocks: ▁▂▃▄▅▆▇█."""

import itertools
import math
from collections.abc import Sequence

BLOCKS = "▁▂▃▄▅▆▇█"
MIDDLE = BLOCKS[3]


def sparkline(values: Sequence[float | None], width: int, low: float | None = None, high: float | None = None) -> str:
    """The values in at most `width` blocks, each the mean of its share; a gap where there is no number.

    The scale runs from the least to the largest shown, unless `low` and `high` say otherwise: give both to
    make two lines comparable.
    """
    means = bucket_means(values, width)
    finite = [mean for mean in means if mean is not None]
    if not finite:
        return " " * len(means)
    bottom = min(finite) if low is None else low
    span = (max(finite) if high is None else high) - bottom
    return "".join(_block(mean, bottom, span) for mean in means)


def bucket_means(values: Sequence[float | None], width: int) -> list[float | None]:
    """The means of `width` neighboring shares of the values, or the values themselves if there are fewer."""
    count = min(len(values), max(width, 0))
    edges = [len(values) * i // count for i in range(count + 1)] if count else [0]
    return [_mean(values[a:b]) for a, b in itertools.pairwise(edges)]


def _mean(values: Sequence[float | None]) -> float | None:
    finite = [value for value in values if value is not None and math.isfinite(value)]
    return sum(finite) / len(finite) if finite else None


def _block(value: float | None, bottom: float, span: float) -> str:
    if value is None:
        return " "
    if span <= 0:
        return MIDDLE
    return BLOCKS[max(0, min(7, int((value - bottom) / span * 8)))]
