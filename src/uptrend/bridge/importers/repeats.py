"""Logs that write each value again for every step until the next one is known."""

from collections import Counter

from uptrend.bridge.importers.log import Row
from uptrend.records.dialects import is_bookkeeping

_BLOCKS, _SHARE = 5, 0.8


def without_repeats(points: dict[int, Row]) -> tuple[dict[int, Row], int]:
    """The points without exact repeats, and how often each was written; (points, 1) where they are not repeated.

    Values count as repeated where at least 80% of the points stand in blocks of one length: a run that is constant
    by itself has few blocks, and one with few possible values has blocks of any length.
    """
    blocks: list[list[int]] = []
    latest: Row | None = None
    for step, row in points.items():
        if latest is not None and _equal(row, latest):
            blocks[-1].append(step)
        else:
            blocks.append([step])
        latest = row
    if len(blocks) < _BLOCKS:
        return points, 1
    lengths = Counter(len(block) for block in blocks)
    length = max(lengths, key=lambda size: size * lengths[size])
    if length == 1 or length * lengths[length] < _SHARE * len(points):
        return points, 1
    return {block[0]: points[block[0]] for block in blocks}, length


def _equal(one: Row, other: Row) -> bool:
    return one.keys() == other.keys() and all(
        value == other[key] or (value != value and other[key] != other[key]) or is_bookkeeping(key)
        for key, value in one.items()
    )
