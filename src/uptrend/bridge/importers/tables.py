"""Tables of metrics: JSON in all the shapes that logs have, and comma-separated values.

JSON may be a Trainer's state, a list of rows, an object of columns, or one row per line, whole or
cut off. A table of values may have any delimiter and any names; in a chart exported by W&B the
columns are called `run - metric`.
"""

import contextlib
import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from uptrend.bridge.importers.readers import Log, LogFile, Row, RowBuffer, parse_number, stride_for
from uptrend.present.formatting import plural
from uptrend.records.dialects import names_for
from uptrend.records.files import VALUE_BYTES, check_values, size_in_memory
from uptrend.records.lines import parse_object, to_number

_STATE = "log_history"
# Characters of a line of a table: ten thousand columns take a fifth.
_LONGEST_LINE = 1_000_000


def read_json(file: LogFile) -> list[Log] | None:
    """Return the logs of JSON, whole or cut off; an empty list where it has no rows, None where it
    is not JSON.
    """
    if file.first not in ("[", "{"):
        return None
    lines = _read_lines(file)
    if lines is not None:
        return [lines]
    text = file.text()
    check_values(file.path, text)
    try:
        return _logs_of(json.loads(text, parse_int=to_number))
    except (ValueError, RecursionError):
        torn = _read_torn(text)
        return [torn] if torn else None


def _read_lines(file: LogFile) -> Log | None:
    """Read one row per line; None where most lines are no objects."""
    rows = RowBuffer(file.path)
    torn = 0
    for line in file.lines():
        if line.isspace():
            continue
        value = parse_object(line)
        if value is not None:
            rows.add(value, size_in_memory(line))
        else:
            torn += 1
            # Lines of an indented object are no rows: do not parse thousands of them.
            if torn > 20 and torn > rows.count:
                return None
    # A single row may be an object that holds the history.
    if torn >= rows.count or (rows.count == 1 and _logs_of(rows.rows[0])):
        return None
    was = "was" if torn == 1 else "were"
    note = f"{plural(torn, 'line')} could not be read (torn or no JSON) and {was} left out."
    return Log(rows.rows, notes=(note,) if torn else (), every=rows.every)


def _read_torn(text: str) -> Log | None:
    """Read the complete objects of a list that is cut off."""
    state = re.search(rf'"{_STATE}"\s*:\s*\[', text)
    start = state.end() if state else text.find("[") + 1
    decoder = json.JSONDecoder(parse_int=to_number)
    gap = re.compile(r"[\s,]*")
    rows: list[Row] = []
    while space := gap.match(text, start):
        try:
            value, start = decoder.raw_decode(text, space.end())
        except (ValueError, RecursionError):
            break
        if not isinstance(value, dict):
            break
        rows.append(value)
    note = f"The file is cut off: {plural(len(rows), 'row')} could be read."
    return Log(rows, trainer="trl" if state else "", notes=(note,)) if rows else None


def _logs_of(value: Any) -> list[Log]:
    """Return the logs in a parsed value: a list of rows, an object that holds one, or one run per
    name.
    """
    if isinstance(value, list):
        rows = _rows(value)
        return [Log(rows)] if rows else []
    if not isinstance(value, dict):
        return []
    runs = {name: _rows(item) for name, item in value.items() if isinstance(item, list)}
    known = (*names_for("histories"), *names_for("evaluations"))
    if len(runs) == len(value) > 1 and not any(
        name.lower() in known or len(runs[name]) < 2 for name in runs
    ):
        return [Log(rows, name=name) for name, rows in runs.items()]
    key, rows = _history(value)
    if not rows:
        return []
    facts = {
        name: item
        for name, item in value.items()
        if name != key and name not in names_for("progress")
    }
    # Rows of held-out results beside the history: their names are marked as such.
    held_out = [value[name] for name in value if name.lower() in names_for("evaluations")]
    for row in (row for results in held_out if isinstance(results, list) for row in _rows(results)):
        counters = ("step", "global_step", "epoch")
        rows.append(
            {name if name in counters else f"eval/{name}": item for name, item in row.items()}
        )
    return [Log(rows, trainer="trl" if key == _STATE else "", facts=facts)]


def _history(table: Mapping[str, Any]) -> tuple[str, list[Row]]:
    """Return the key and the rows of an object: under a known name, else the longest list, else the
    object itself.
    """
    lists = {
        key: _rows(value)
        for key, value in table.items()
        if isinstance(value, list | dict) and key.lower() not in names_for("evaluations")
    }
    histories = names_for("histories")
    found = {
        key: rows for key, rows in lists.items() if len(rows) > 1 or (rows and key in histories)
    }
    if not found:
        return "", _rows(table)
    # A known name wins over a longer list, which may be examples or callbacks.
    key = next(
        (name for name in histories if name in found), max(found, key=lambda name: len(found[name]))
    )
    return key, found[key]


def _rows(value: Any) -> list[Row]:
    """Return a list's objects, `{"1": {"reward": 0.1}, …}`, or `{"step": [1, 2], "reward": [0.1,
    0.2]}` as rows.
    """
    if not isinstance(value, dict):
        return [row for row in value if isinstance(row, dict)]
    if len(value) >= 2 and all(
        key.isdigit() and isinstance(row, dict) for key, row in value.items()
    ):
        return [{"step": int(key), **row} for key, row in value.items()]
    columns = {
        key: column
        for key, column in value.items()
        if isinstance(column, list)
        and column
        and all(isinstance(item, int | float | None) for item in column)
    }
    # Columns of another length count something else, such as evaluations.
    lengths = [len(column) for column in columns.values()]
    length = max(set(lengths), key=lengths.count, default=0)
    columns = {key: column for key, column in columns.items() if len(column) == length}
    if length < 2:
        return []
    return [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]


def read_csv(file: LogFile) -> list[Log] | None:
    """Return the logs of a table of values, one per run that its columns name; None where it is no
    such table.
    """
    sample = list(islice(_filled_lines(file), 20))
    delimiter = None if any(len(line) > _LONGEST_LINE for line in sample) else _delimiter(sample)
    if delimiter is None:
        return None
    total = sum(1 for _ in _filled_lines(file))
    every = stride_for(total)
    chosen = (
        line for n, line in enumerate(_filled_lines(file)) if n == 0 or n % every == 1 % every
    )
    cells = _cells(chosen, delimiter)
    names = [name.strip() for name in next(cells)]
    buffer = RowBuffer(file.path)
    torn = 0
    for values in cells:
        if len(values) != len(names):
            torn += 1
            continue
        # The column without a name is a data frame's index.
        row = {
            name: value for name, value in zip(names, values, strict=True) if name and value.strip()
        }
        buffer.add(row, sum(map(len, values)) + VALUE_BYTES * len(row))
    rows = buffer.rows
    told = [f"{plural(torn, 'line')} with the wrong number of values left out."] if torn else []
    every *= buffer.every
    told += [f"The table has {total:,} lines; every {every}th was read."] if every > 1 else []
    notes = tuple(told)
    runs = [run for run in (name.rpartition(" - ")[0] for name in names) if run]
    if not runs or len(runs) < len(names) - 2:
        return [Log(rows, notes=notes)]
    logs = []
    axes = {name: name for name in names if " - " not in name}
    for run in dict.fromkeys(runs):
        head = f"{run} - "
        # W&B exports the bands drawn around a curve too.
        is_band = re.compile("__(MIN|MAX)$").search
        mine = {
            name: name[len(head) :] for name in names if name.startswith(head) and not is_band(name)
        }
        shown = [row for row in rows if any(name in row for name in mine)]
        charted = [
            {title: row[name] for name, title in (axes | mine).items() if name in row}
            for row in shown
        ]
        logs.append(Log(charted, name=run, notes=notes))
    return logs


def _delimiter(head: list[str]) -> str | None:
    """Find the delimiter that stands between names in the first line and, as often, between values
    below.
    """
    if len(head) < 2:
        return None
    # The most frequent first: a decimal comma beside semicolons is less so.
    for delimiter in sorted(",;\t", key=head[0].count, reverse=True):
        names, *rows = list(_cells(head, delimiter)) or [[]]
        alike = sum(len(row) == len(names) for row in rows)
        filled = [value for row in rows for value in row if value.strip()]
        numbers = sum(parse_number(value) is not None for value in filled)
        is_named = all(parse_number(name) is None for name in names if name.strip())
        if len(names) > 1 and is_named and alike * 2 > len(rows) and numbers * 3 > len(filled):
            return delimiter
    return None


def _filled_lines(file: LogFile) -> Iterator[str]:
    return (line for line in file.lines() if not line.isspace())


def _cells(lines: Iterable[str], delimiter: str) -> Iterator[list[str]]:
    """Yield the values of each line; a line that is no CSV (a stray quote takes in the rest) ends
    the table.
    """
    with contextlib.suppress(csv.Error):
        yield from csv.reader(lines, delimiter=delimiter)
