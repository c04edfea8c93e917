"""Metrics as people paste them into an issue, where no other reader finds any: a table drawn in a
terminal, in Markdown or with spaces, W&B's run summary, and names with their values on lines of
their own.

    Step | Training Loss | reward        | reward     | 0.25 |       wandb: train/reward 0.25
    -- | -- | --                         | grad_norm  | 0.0  |       wandb:   train/kl 0.01
    1 | 0.000000 | 0.25

A table has one row per step. A block of names and values is one row; a name that comes again begins
the next.
"""

import re
from collections.abc import Iterator

from uptrend.bridge.importers.console import (
    are_metrics,
    named_numbers,
    step_in_words,
    without_decoration,
)
from uptrend.bridge.importers.readers import Log, LogFile, Row, parse_number
from uptrend.present.formatting import plural
from uptrend.records.dialects import is_bookkeeping

# Bytes of a text that someone may have pasted: a hundred times a long comment. Names and values in
# a longer one are a log's, or no metrics at all.
MAX_PASTED_BYTES = 1_000_000
# Cells of a line: what has more is no table that a person pasted.
MAX_CELLS = 500

_LOGGER_PREFIX = re.compile(r"^\s*wandb:\s?")
_CELL_BORDER = re.compile("[|│┃║]")
_COLUMN_GAP = re.compile(r"\t|\s{2,}")
# A line that only draws: `|---|:--|`, `-- | --`, `╭────╮`, `+-----+`.
_DRAWN_LINE = re.compile(r"^[\s|│┃║:+=\-_─-╿▁-█]*$")
# `train/reward 0.25`, as W&B lists its summary.
_NAME_AND_VALUE = re.compile(r"^\s*([A-Za-z][\w./@-]*)\s+(\S+)\s*$")
# Python's and loggers' words for a value that is not there.
_NO_VALUES = ("no log", "none", "null", "n/a", "-", "")


def read_pasted(file: LogFile) -> list[Log] | None:
    """Return the metrics of a pasted table or block; None if it is neither."""
    if file.size > MAX_PASTED_BYTES:
        return None
    text = without_decoration(file.text())
    lines = [_LOGGER_PREFIX.sub("", line) for line in re.split(r"[\r\n]+", text)]
    rows = _read_table(lines) or _read_blocks(lines)
    if not rows:
        return None
    note = f"{plural(len(rows), 'row')} of metrics found in what was pasted."
    return [Log(rows, notes=(note,))]


def _read_table(lines: list[str]) -> list[Row]:
    """Return the rows below a line of names; empty if there is none."""
    names: list[str] = []
    rows: list[Row] = []
    for line in lines:
        if _DRAWN_LINE.match(line):
            continue
        cells = _cells(line)
        if names and len(cells) == len(names):
            row = _row_of_cells(names, cells)
            if row:
                rows.append(row)
                continue
        # Names may come again above each page of a long table, and another table may follow.
        is_header = all(parse_number(cell) is None for cell in cells)
        if is_header and len(cells) >= 2 and are_metrics(tuple(cells)):
            names = cells
    return rows


def _cells(line: str) -> list[str]:
    """Return the cells of a line, by its borders or else by wide gaps."""
    if _CELL_BORDER.search(line):
        cells = [cell.strip() for cell in _CELL_BORDER.split(line)]
        # Borders may stand around the line as well as between its cells.
        first = 1 if cells[0] == "" else 0
        last = len(cells) - 1 if cells[-1] == "" else len(cells)
        cells = cells[first:last]
    else:
        cells = [cell.strip() for cell in _COLUMN_GAP.split(line.strip())]
    return cells if len(cells) <= MAX_CELLS else []


def _row_of_cells(names: list[str], cells: list[str]) -> Row:
    """Return the numbers of a line by name; empty where a cell is neither number nor gap."""
    row: Row = {}
    for name, cell in zip(names, cells, strict=True):
        value = parse_number(cell)
        if value is not None:
            row[name] = value
        elif cell.lower() not in _NO_VALUES:
            return {}
    return row


def _read_blocks(lines: list[str]) -> list[Row]:
    """Return one row per block of names and values that holds metrics."""
    rows: list[Row] = []
    row: Row = {}
    next_step: int | None = None  # step that a line named, until a row begins
    for line in lines:
        pairs = list(_pairs(line))
        if not pairs:
            named_step = step_in_words(line)
            if named_step is not None:
                next_step = named_step
        for name, value in pairs:
            # A counter may stand above each block as well as within it.
            if name in row and not (is_bookkeeping(name) and row[name] == value):
                rows.append(row)
                row = {}
            if not row and next_step is not None:
                row["step"] = next_step
                next_step = None
            row[name] = value
    rows.append(row)
    return [row for row in rows if are_metrics(tuple(row))]


def _pairs(line: str) -> Iterator[tuple[str, float | None]]:
    """Yield the names and values of a line."""
    if _DRAWN_LINE.match(line):
        return
    if _CELL_BORDER.search(line):
        cells = _cells(line)
        # Names and values in turn: two pairs may stand beside each other.
        for name, cell in zip(cells[::2], cells[1::2], strict=False):
            value = parse_number(cell)
            if name and parse_number(name) is None and value is not None:
                yield name, value
        return
    listed = _NAME_AND_VALUE.match(line)
    listed_value = parse_number(listed[2]) if listed else None
    if listed and listed_value is not None:
        yield listed[1], listed_value
        return
    for _, name, value in named_numbers(line):
        yield name, value
