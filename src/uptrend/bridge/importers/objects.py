"""JSON in all the shapes that logs have: a trainer's state, a list of rows, columns, a row a line; torn or whole."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from uptrend.bridge.importers.fast import large_json_lines
from uptrend.bridge.importers.log import Log, Row
from uptrend.stats.formatting import plural

_HISTORIES = ("log_history", "history", "logs", "log", "metrics", "rows", "data", "training_history", "train")
_HELD_OUT = ("eval", "evals", "evaluation", "evaluations", "eval_history", "validation", "val", "test")


def read_json(text: str) -> list[Log] | None:
    """The logs of a text that is JSON, or was until it was torn; none where it has no rows, None where it is not."""
    stripped = text.strip()
    if stripped[:1] not in "[{":
        return None
    lines = read_json_lines(stripped)
    if lines is not None:
        return [lines]
    try:
        value = json.loads(stripped)
    except ValueError:
        torn = _read_torn(stripped)
        return [torn] if torn else None
    return _from_value(value)


def read_json_lines(text: str) -> Log | None:
    """A row a line; lines that are no objects are left out, with a note."""
    many = large_json_lines(text) if text.startswith("{") and "\n{" in text else None
    if many:
        return Log(many)
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) < 2 and not text.startswith("{"):
        return None
    rows: list[Row] = []
    torn = 0
    for line in lines:
        value = _object(line)
        if value is None:
            torn += 1
            if torn > 20 and torn > len(rows):
                return None
        else:
            rows.append(value)
    if torn >= len(rows) or (len(rows) == 1 and _from_value(rows[0])):
        return None
    notes = [f"{plural(torn, 'line')} could not be read (torn or no JSON) and {_was(torn)} left out."] if torn else []
    return Log(rows, notes=notes)


def _was(count: int) -> str:
    return "was" if count == 1 else "were"


def _object(line: str) -> Row | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _from_value(value: Any) -> list[Log]:
    if isinstance(value, list):
        rows = [row for row in value if isinstance(row, dict)]
        return [Log(rows)] if rows else []
    if not isinstance(value, dict):
        return []
    several = _several(value)
    if several:
        return [Log(rows, name=name) for name, rows in several.items()]
    history = _history(value)
    if history is None:
        return []
    key, rows = history
    facts = {name: item for name, item in value.items() if name != key and name not in _NOT_SETTINGS}
    return [Log([*rows, *_evaluations(value)], trainer="trl" if key == "log_history" else "", facts=facts)]


def _several(table: Mapping[str, Any]) -> dict[str, list[Row]]:
    """Runs by name: an object whose every value is a list of rows, under names that are no history's."""
    lists = {key: _rows(value) for key, value in table.items() if isinstance(value, list)}
    are_runs = len(lists) == len(table) > 1 and all(len(rows) > 1 for rows in lists.values())
    return lists if are_runs and not any(key.lower() in (*_HISTORIES, *_HELD_OUT) for key in lists) else {}


def _evaluations(table: Mapping[str, Any]) -> list[Row]:
    """Rows of held-out results beside the history, their names marked as such."""
    found = [row for key in table if key.lower() in _HELD_OUT and isinstance(table[key], list) for row in table[key]]
    return [
        {key if key in ("step", "global_step", "epoch") else f"eval/{key}": value for key, value in row.items()}
        for row in found
        if isinstance(row, dict)
    ]


# What a Trainer's state says of the past and not of its settings.
_NOT_SETTINGS = ("stateful_callbacks", "best_metric", "epoch", "global_step", "total_flos", "trial_params")


def _history(table: Mapping[str, Any]) -> tuple[str, list[Row]] | None:
    """The list of rows inside an object: under a known name, else the longest; or its columns, made rows."""
    rows = _by_step(table)
    if rows:
        return "", rows
    lists = {key: _rows(value) for key, value in table.items() if isinstance(value, list | dict)}
    lists = {key: rows for key, rows in lists.items() if key.lower() not in _HELD_OUT}
    found = {key: rows for key, rows in lists.items() if len(rows) > 1 or (rows and key in _HISTORIES)}
    if found:
        key = next((name for name in _HISTORIES if name in found), max(found, key=lambda name: len(found[name])))
        return key, found[key]
    rows = _rows(table)
    return ("", rows) if rows else None


def _rows(value: Any) -> list[Row]:
    if isinstance(value, dict):
        return _by_step(value) or _from_columns(value)
    return [row for row in value if isinstance(row, dict)]


def _by_step(table: Mapping[str, Any]) -> list[Row]:
    """`{"1": {"reward": 0.1}, "2": {…}}` as rows."""
    if len(table) < 2 or not all(key.isdigit() and isinstance(row, dict) for key, row in table.items()):
        return []
    return [{"step": int(key), **row} for key, row in table.items()]


def _from_columns(table: Mapping[str, Any]) -> list[Row]:
    """`{"step": [1, 2], "reward": [0.1, 0.2]}` as rows; columns of another length are left out."""
    columns = {
        key: value
        for key, value in table.items()
        if isinstance(value, list) and value and all(isinstance(item, int | float | None) for item in value)
    }
    if not columns:
        return []
    lengths = [len(column) for column in columns.values()]
    length = max(set(lengths), key=lengths.count)
    if length < 2:
        return []
    columns = {key: column for key, column in columns.items() if len(column) == length}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _read_torn(text: str) -> Log | None:
    """The whole objects of a list that was cut off."""
    at = re.search(r'"log_history"\s*:\s*\[', text)
    rows = list(_whole_objects(text, at.end() if at else text.find("[") + 1))
    if not rows:
        return None
    note = f"The file is cut off: {plural(len(rows), 'row')} could be read."
    return Log(rows, trainer="trl" if at else "", notes=[note])


def _whole_objects(text: str, start: int) -> Iterator[Row]:
    decoder, gap = json.JSONDecoder(), re.compile(r"[\s,]*")
    while True:
        space = gap.match(text, start)
        assert space is not None
        try:
            value, start = decoder.raw_decode(text, space.end())
        except ValueError:
            return
        if not isinstance(value, dict):
            return
        yield value
