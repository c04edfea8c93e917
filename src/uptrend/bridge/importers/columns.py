"""Points as columns: an array a metric, and the steps where one was written down as not finite."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from uptrend.bridge.importers.log import Row, columns_in, number
from uptrend.records.dialects import is_bookkeeping, rank
from uptrend.records.view import Floats

Columns = dict[str, Floats]
Nonfinite = dict[str, tuple[int, ...]]


def columns_of(points: Mapping[int, Row]) -> tuple[Columns, Nonfinite]:
    """Each numeric column under its own name, NaN where a point lacks it; and where it was written as not finite."""
    steps, rows = list(points), list(points.values())
    columns: Columns = {}
    nonfinite: Nonfinite = {}
    for key in columns_in(rows):
        raw = [row.get(key) for row in rows]
        values = _numbers(raw)
        gaps = np.flatnonzero(~np.isfinite(values))
        written = tuple(steps[at] for at in gaps if number(raw[at]) is not None)
        if len(gaps) == len(values) and not written:
            continue
        values[gaps] = math.nan
        columns[key] = values
        if written:
            nonfinite[key] = written
    return columns, nonfinite


def _numbers(raw: list[Any]) -> Floats:
    try:
        values = np.array(raw, dtype=np.float64)
        if values.ndim == 1:
            return values
    except (TypeError, ValueError):
        pass
    # There is a text, a percentage or a list among them.
    found = [number(value) for value in raw]
    return np.array([math.nan if value is None else value for value in found])


def translated(columns: Columns, trainer: str) -> tuple[dict[str, str], Columns]:
    """Return the column that each of our metrics is taken from, and the columns without a translation.

    Where several mean the same, the first of the tables counts that has any value.
    """
    chosen: dict[str, tuple[int, str]] = {}
    unknown: Columns = {}
    for key, values in columns.items():
        if is_bookkeeping(key):
            continue
        found = rank(key, trainer)
        if found is None:
            unknown[key] = values
            continue
        place, ours = found
        if not np.isfinite(values).any():
            place += 100_000
        if ours not in chosen or place < chosen[ours][0]:
            if ours in chosen:
                unknown[chosen[ours][1]] = columns[chosen[ours][1]]
            chosen[ours] = (place, key)
        else:
            unknown[key] = values
    return {ours: key for ours, (_, key) in chosen.items()}, unknown


def constants(columns: Columns) -> dict[str, Any]:
    """Columns that never change: settings, some of them."""
    return {
        key: float(values[0]) for key, values in columns.items() if len(values) and bool((values == values[0]).all())
    }
