"""Metrics as CSV: any delimiter, any names, and W&B's exports, whose columns are `run - metric`."""

import contextlib
import csv
import re
from collections.abc import Iterator

from uptrend.bridge.importers.fast import large_spreadsheet
from uptrend.bridge.importers.log import Log, Row, number
from uptrend.stats.formatting import plural

_DELIMITERS = ",;\t"


def read_spreadsheet(text: str) -> list[Log] | None:
    """The logs of a table of comma-separated values, several where it has columns of several runs; None if none."""
    head = [line for line in text[:200_000].splitlines() if line.strip()][:20]
    delimiter = _delimiter(head)
    if delimiter is None:
        return None
    names = [name.strip() for name in next(_values(iter(head), delimiter))]
    rows, torn = large_spreadsheet(text, delimiter) or _read_rows(names, text, delimiter)
    for row in rows if "" in names else ():
        row.pop("", None)  # a frame's index
    notes = [f"{plural(torn, 'line')} had too few values and was left out."] if torn else []
    runs = _runs(names)
    if not runs:
        return [Log(rows, notes=notes)]
    return [_one_run(rows, run, names, notes) for run in runs]


def _delimiter(head: list[str]) -> str | None:
    """What stands between names in the first line and, as often, between values below."""
    if len(head) < 2:
        return None
    for delimiter in sorted(_DELIMITERS, key=head[0].count, reverse=True):
        parsed = list(_values(iter(head), delimiter))
        names, rows = (parsed[0], parsed[1:]) if parsed else ([], [])
        alike = sum(len(row) == len(names) for row in rows)
        filled = [value for row in rows for value in row if value.strip()]
        numbers = sum(number(value) is not None for value in filled)
        named = all(number(name) is None for name in names if name.strip())
        if len(names) > 1 and named and alike * 2 > len(rows) and numbers * 3 > len(filled):
            return delimiter
    return None


def _read_rows(names: list[str], text: str, delimiter: str) -> tuple[list[Row], int]:
    rows: list[Row] = []
    torn = 0
    lines = (line for line in text.splitlines() if line.strip())
    next(lines)
    for values in _values(lines, delimiter):
        if len(values) != len(names):
            torn += 1
            continue
        row = dict(zip(names, values, strict=True))
        rows.append({name: value for name, value in row.items() if value.strip()} if "" in values else row)
    return rows, torn


def _values(lines: Iterator[str], delimiter: str) -> Iterator[list[str]]:
    """The values of each line; a line that is no CSV (a stray quote swallowed the rest) ends it."""
    with contextlib.suppress(csv.Error):
        yield from csv.reader(lines, delimiter=delimiter)


def _runs(names: list[str]) -> list[str]:
    """The runs of W&B's export of a chart: every column but the axis is `run - metric`."""
    parts = [name.rpartition(" - ") for name in names]
    runs = [run for run, _, _ in parts if run]
    return list(dict.fromkeys(runs)) if len(runs) >= len(names) - 2 and runs else []


def _one_run(rows: list[Row], run: str, names: list[str], notes: list[str]) -> Log:
    head = f"{run} - "
    axes = [name for name in names if " - " not in name]
    # W&B adds the band that it drew around a curve.
    mine = {name: name[len(head) :] for name in names if name.startswith(head) and not re.search("__(MIN|MAX)$", name)}
    picked = [
        {axis: row[axis] for axis in axes if axis in row} | {mine[name]: row[name] for name in mine if name in row}
        for row in rows
        if any(name in row for name in mine)
    ]
    return Log(picked, name=run, notes=list(notes))
