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
from itertools import chain, islice
from typing import Any

from uptrend.bridge.importers.readers import Log, LogFile, Row, RowBuffer, parse_number, stride_for
from uptrend.present.formatting import plural
from uptrend.records.dialects import names_for
from uptrend.records.files import VALUE_BYTES, check_values, size_in_memory
from uptrend.records.lines import parse_object, to_number

_HISTORY_KEY = "log_history"  # of a Trainer's state
# Characters of a line of a table: ten thousand columns take a fifth.
MAX_TABLE_LINE_CHARACTERS = 1_000_000
# First lines of a table by which its delimiter is chosen.
N_SAMPLE_LINES = 20
# Lines that are no JSON beyond which a file with fewer rows than that is given up.
MAX_BROKEN_LINES = 20
# Columns that count, in rows of held-out results.
_COUNTER_COLUMNS = ("step", "global_step", "epoch")
# W&B exports the bands drawn around a curve too.
_BAND_COLUMN = re.compile("__(MIN|MAX)$")


def read_json(file: LogFile) -> list[Log] | None:
    """Return the logs of JSON, whole or cut off; an empty list if it has no rows, None if it is not
    JSON.
    """
    if file.first not in ("[", "{"):
        return None
    lines = _read_lines(file)
    if lines is not None:
        return [lines]
    text = file.text()
    check_values(file.path, text)
    try:
        return _logs_in(json.loads(text, parse_int=to_number))
    except (ValueError, RecursionError):
        torn = _read_torn(text)
        return [torn] if torn else None


def _read_lines(file: LogFile) -> Log | None:
    """Read one row per line; None if most lines are no objects."""
    buffer = RowBuffer(file.path)
    n_broken = 0
    for line in file.lines():
        if line.isspace():
            continue
        value = parse_object(line)
        if value is not None:
            buffer.add(value, size_in_memory(line))
        else:
            n_broken += 1
            # Lines of an indented object are no rows: do not parse thousands of them.
            if n_broken > MAX_BROKEN_LINES and n_broken > buffer.count:
                return None
    if n_broken >= buffer.count:
        return None
    # A single row may be an object that holds the history.
    if buffer.count == 1 and _logs_in(buffer.rows[0]):
        return None
    notes: list[str] = []
    if n_broken:
        were = "was" if n_broken == 1 else "were"
        lines = plural(n_broken, "line")
        notes.append(f"{lines} could not be read (torn or no JSON) and {were} left out.")
    return Log(buffer.rows, notes=tuple(notes), every=buffer.every)


def _read_torn(text: str) -> Log | None:
    """Read the complete objects of a list that is cut off."""
    state = re.search(rf'"{_HISTORY_KEY}"\s*:\s*\[', text)
    position = state.end() if state else text.find("[") + 1
    decoder = json.JSONDecoder(parse_int=to_number)
    gap = re.compile(r"[\s,]*")
    rows: list[Row] = []
    while space := gap.match(text, position):
        try:
            value, position = decoder.raw_decode(text, space.end())
        except (ValueError, RecursionError):
            break
        if not isinstance(value, dict):
            break
        rows.append(value)
    if not rows:
        return None
    note = f"The file is cut off: {plural(len(rows), 'row')} could be read."
    return Log(rows, trainer="trl" if state else "", notes=(note,))


def _logs_in(value: Any) -> list[Log]:
    """Return the logs in a parsed value: a list of rows, an object that holds one, or one run per
    name.
    """
    if isinstance(value, list):
        rows = _rows_in(value)
        return [Log(rows)] if rows else []
    if not isinstance(value, dict):
        return []
    named_runs = _named_runs(value)
    if named_runs:
        return [Log(rows, name=name) for name, rows in named_runs.items()]

    history_key, rows = _history(value)
    if not rows:
        return []
    facts: dict[str, Any] = {}
    for name, item in value.items():
        if name != history_key and name not in names_for("progress"):
            facts[name] = item
    # Rows of held-out results beside the history: their names are marked as such.
    for name, results in value.items():
        if name.lower() in names_for("evaluations") and isinstance(results, list):
            rows += [_mark_held_out(row) for row in _rows_in(results)]
    return [Log(rows, trainer="trl" if history_key == _HISTORY_KEY else "", facts=facts)]


def _named_runs(table: Mapping[str, Any]) -> dict[str, list[Row]]:
    """Return the rows of each run of an object that holds runs by name and nothing else; empty for
    any other object.
    """
    reserved = (*names_for("histories"), *names_for("evaluations"))
    runs: dict[str, list[Row]] = {}
    for name, value in table.items():
        if not isinstance(value, list) or name.lower() in reserved:
            return {}
        runs[name] = _rows_in(value)
        if len(runs[name]) < 2:
            return {}
    return runs if len(runs) > 1 else {}


def _mark_held_out(row: Row) -> Row:
    marked: Row = {}
    for name, value in row.items():
        marked[name if name in _COUNTER_COLUMNS else f"eval/{name}"] = value
    return marked


def _history(table: Mapping[str, Any]) -> tuple[str, list[Row]]:
    """Return the key and the rows of an object: under a known name, else the longest list, else the
    object itself.
    """
    known_names = names_for("histories")
    candidates: dict[str, list[Row]] = {}
    for key, value in table.items():
        if not isinstance(value, list | dict) or key.lower() in names_for("evaluations"):
            continue
        rows = _rows_in(value)
        if len(rows) > 1 or (rows and key in known_names):
            candidates[key] = rows
    if not candidates:
        return "", _rows_in(table)
    # A known name wins over a longer list, which may be examples or callbacks.
    for name in known_names:
        if name in candidates:
            return name, candidates[name]
    longest = max(candidates, key=lambda name: len(candidates[name]))
    return longest, candidates[longest]


def _rows_in(value: Any) -> list[Row]:
    """Return a list's objects, `{"1": {"reward": 0.1}, …}`, or `{"step": [1, 2], "reward": [0.1,
    0.2]}` as rows.
    """
    if not isinstance(value, dict):
        return [row for row in value if isinstance(row, dict)]
    is_by_step = all(key.isdigit() and isinstance(row, dict) for key, row in value.items())
    if is_by_step and len(value) >= 2:
        return [{"step": int(key), **row} for key, row in value.items()]
    return _rows_of_columns(value)


def _rows_of_columns(table: Mapping[str, Any]) -> list[Row]:
    columns = {key: value for key, value in table.items() if _is_column(value)}
    # Columns of another length count something else, such as evaluations.
    lengths = [len(column) for column in columns.values()]
    usual_length = max(set(lengths), key=lengths.count, default=0)
    if usual_length < 2:
        return []
    names = [key for key, column in columns.items() if len(column) == usual_length]
    values_by_row = zip(*(columns[name] for name in names), strict=True)
    return [dict(zip(names, values, strict=True)) for values in values_by_row]


def _is_column(value: Any) -> bool:
    if not isinstance(value, list) or not value:
        return False
    return all(isinstance(item, int | float | None) for item in value)


def read_csv(file: LogFile) -> list[Log] | None:
    """Return the logs of a table of values, one per run that its columns name; None if it is no
    such table.
    """
    sample = list(islice(_filled_lines(file), N_SAMPLE_LINES))
    if any(len(line) > MAX_TABLE_LINE_CHARACTERS for line in sample):
        return None
    delimiter = _choose_delimiter(sample)
    if delimiter is None:
        return None

    n_lines = sum(1 for _ in _filled_lines(file))
    stride = stride_for(n_lines)
    cells = _parse_cells(_every_nth_line(file, stride), delimiter)
    names = [name.strip() for name in next(cells)]
    buffer = RowBuffer(file.path)
    n_broken = 0
    for values in cells:
        if len(values) != len(names):
            n_broken += 1
            continue
        row: Row = {}
        for name, value in zip(names, values, strict=True):
            # The column without a name is a data frame's index.
            if name and value.strip():
                row[name] = value
        buffer.add(row, sum(map(len, values)) + VALUE_BYTES * len(row))

    notes: list[str] = []
    if n_broken:
        notes.append(f"{plural(n_broken, 'line')} with the wrong number of values left out.")
    stride *= buffer.every
    if stride > 1:
        notes.append(f"The table has {n_lines:,} lines; every {stride}th was read.")
    return _logs_of_table(buffer.rows, names, tuple(notes))


def _logs_of_table(rows: list[Row], names: list[str], notes: tuple[str, ...]) -> list[Log]:
    """Return one log, or one per run where W&B's export names columns `run - metric`."""
    heads = (name.rpartition(" - ")[0] for name in names)
    runs = [head for head in heads if head]
    # All columns but the step, and perhaps the time.
    if not runs or len(runs) < len(names) - 2:
        return [Log(rows, notes=notes)]

    axes = {name: name for name in names if " - " not in name}
    logs: list[Log] = []
    for run in dict.fromkeys(runs):
        head = f"{run} - "
        metrics: dict[str, str] = {}
        for name in names:
            if name.startswith(head) and not _BAND_COLUMN.search(name):
                metrics[name] = name.removeprefix(head)
        renamed = axes | metrics
        points: list[Row] = []
        for row in rows:
            if not metrics.keys().isdisjoint(row):
                points.append({renamed[name]: row[name] for name in renamed if name in row})
        logs.append(Log(points, name=run, notes=notes))
    return logs


def _choose_delimiter(head: list[str]) -> str | None:
    """Find the delimiter that stands between names in the first line and, as often, between values
    below.
    """
    if len(head) < 2:
        return None
    # The most frequent first: a decimal comma beside semicolons is less so.
    for delimiter in sorted(",;\t", key=head[0].count, reverse=True):
        names, *rows = list(_parse_cells(head, delimiter)) or [[]]
        n_alike = sum(len(row) == len(names) for row in rows)
        values = [value for value in chain.from_iterable(rows) if value.strip()]
        n_numbers = sum(parse_number(value) is not None for value in values)
        is_named = all(parse_number(name) is None for name in names if name.strip())
        is_table = len(names) > 1 and is_named
        if is_table and n_alike * 2 > len(rows) and n_numbers * 3 > len(values):
            return delimiter
    return None


def _filled_lines(file: LogFile) -> Iterator[str]:
    return (line for line in file.lines() if not line.isspace())


def _every_nth_line(file: LogFile, stride: int) -> Iterator[str]:
    """Yield the names and every n-th line of values."""
    for index, line in enumerate(_filled_lines(file)):
        if index == 0 or index % stride == 1 % stride:
            yield line


def _parse_cells(lines: Iterable[str], delimiter: str) -> Iterator[list[str]]:
    """Yield the values of each line; a line that is no CSV (a stray quote takes in the rest) ends
    the table.
    """
    with contextlib.suppress(csv.Error):
        yield from csv.reader(lines, delimiter=delimiter)
