"""Lines of JSON, as a run directory has them: written whole, and read whatever is in them.

A run that was killed leaves half a line, and a file may be damaged anywhere. `parse_line` is the
one place that decides what a record is.
"""

import contextlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from uptrend.records.errors import RecordError
from uptrend.records.files import (
    MAX_FILE_BYTES,
    MAX_VALUES,
    count_values,
    explain_disk_errors,
    open_file,
)

# Figures that every evaluation has, null if unknown.
EVALUATION_FIGURES = ("accuracy", "low", "high", "correct", "tasks")
# Digits up to which a number fits into 64 bits; Python itself refuses to read integers of some
# thousand digits.
MAX_DIGITS = 18
# Integers up to here are floats exactly.
LARGEST_INTEGER = 2**53
# Levels of nesting beyond which a line is not one of ours: the deepest, a preflight's event, has
# six.
MAX_DEPTH = 32


def append_line(path: Path, value: dict[str, Any]) -> None:
    """Append one object as one line, out of this process when this returns."""
    line = to_line(value)
    with explain_disk_errors(path):
        size_before = path.stat().st_size if path.exists() else 0
        try:
            with path.open("a+b") as file:
                if size_before > 0:
                    file.seek(-1, os.SEEK_END)
                    # A killed process tore a line, which must not swallow this one.
                    if file.read(1) != b"\n":
                        line = b"\n" + line
                file.write(line)
        except OSError:
            with contextlib.suppress(OSError):
                os.truncate(path, size_before)
            raise


def to_line(value: dict[str, Any]) -> bytes:
    """Return an object as one line of JSON. Numbers that are not finite become null: NaN is not
    JSON.
    """
    text = json.dumps(plain(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode() + b"\n"


def plain(value: Any) -> Any:
    """Return a value as JSON has it: lists for arrays and tuples, null for numbers that are not
    finite, text for other objects.
    """
    if hasattr(value, "tolist"):  # numpy's and torch's numbers and arrays
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a file of JSON lines; lines without one are left out."""
    return (record for _, record in parse_lines(path) if record is not None)


def parse_lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any] | None]]:
    """Yield each line of a file as it is, with its record; None for one that is torn or damaged."""
    if not path.exists():
        return
    try:
        with open_file(path) as file:
            # The rest of a line beyond this limit counts as another line, and both are damaged.
            while line := file.readline(MAX_FILE_BYTES):
                yield line, parse_line(line, path.name)
    except OSError as error:
        raise RecordError(f"{path} could not be read: {error.strerror or error}.") from None


def parse_line(line: bytes, name: str = "") -> dict[str, Any] | None:
    """Return the record in a line of a file of this name; None for a line without one.

    The one place that decides what a record is: metrics.jsonl, evals.jsonl and events.jsonl have
    fields without which no reader can use a line.
    """
    try:
        record = parse_object(line.decode("utf-8-sig"))
    except UnicodeDecodeError:
        return None
    if record is None or name not in _READER_BY_FILE:
        return record
    return _READER_BY_FILE[name](record)


def parse_object(text: str) -> dict[str, Any] | None:
    """Return the object in a text of JSON; None for any other text, and for an object that is too
    large, too deep or not UTF-8.
    """
    if count_values(text) > MAX_VALUES:
        return None
    try:
        value = _DECODER.decode(text)
        if not isinstance(value, dict):
            return None
        # Few brackets can't nest deeply, and counting them is quicker than walking the object.
        has_few_brackets = text.count("{") + text.count("[") <= MAX_DEPTH
        if not has_few_brackets and not _is_shallow(value):
            return None
        # Half of a surrogate pair in a key can't be written again.
        "".join(value).encode()
    except (ValueError, RecursionError):
        return None
    return value


def to_number(digits: str) -> int | float:
    """Read an integer; one that no column can hold becomes a float, infinite if it is beyond
    floats too.
    """
    return int(digits) if len(digits) <= MAX_DIGITS else float(digits)


# Made once: `json.loads` makes one per call if it has a `parse_int`.
_DECODER = json.JSONDecoder(parse_int=to_number)


def _is_shallow(record: dict[str, Any]) -> bool:
    level: list[Any] = [record]  # all objects and lists at one depth
    for _ in range(MAX_DEPTH):
        next_level: list[Any] = []
        for container in level:
            items = container.values() if isinstance(container, dict) else container
            next_level += [item for item in items if isinstance(item, dict | list)]
        if not next_level:
            return True
        level = next_level
    return False


def _has_step(record: dict[str, Any]) -> bool:
    return type(record.get("step")) is int and 0 <= record["step"] <= LARGEST_INTEGER


def _read_step(record: dict[str, Any]) -> dict[str, Any] | None:
    if not _has_step(record):
        return None
    step: dict[str, Any] = {}
    for key, value in record.items():
        if type(value) is float:  # nearly all are
            step[key] = value
        elif type(value) is int:
            # A column of numbers has no integers beyond those that are floats exactly.
            step[key] = float(value) if abs(value) > LARGEST_INTEGER else value
        elif _is_own_key(key) or isinstance(value, bool | None):
            step[key] = value
    return step


def _is_own_key(key: str) -> bool:
    """Return True for a key of the writer's own: metrics have names such as group/quantity/stat."""
    return "/" not in key and key != "time"


def _read_evaluation(record: dict[str, Any]) -> dict[str, Any] | None:
    sets = record.get("sets", {})
    if not _has_step(record) or not isinstance(sets, dict):
        return None
    are_whole = all(_has_figures(table) for table in (record, *sets.values()))
    return record if are_whole else None


def _has_figures(table: Any) -> bool:
    """Return True for the figures of an evaluation on one held-out set."""
    if not isinstance(table, dict):
        return False
    for key in EVALUATION_FIGURES:
        # A missing figure is no number.
        if not isinstance(table.get(key, ""), int | float | None):
            return False
    return all(isinstance(table.get(key, {}), dict) for key in ("parts", "pass_at", "by_family"))


def _read_event(record: dict[str, Any]) -> dict[str, Any] | None:
    if not isinstance(record.get("event"), str):
        return None
    for key in ("probes", "findings", "evidence"):
        items = record.get(key, [])
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            return None
    return record


# Readers of the lines of each file: they return None for a line that lacks what readers need.
_READER_BY_FILE: dict[str, Callable[[dict[str, Any]], dict[str, Any] | None]] = {
    "metrics.jsonl": _read_step,
    "evals.jsonl": _read_evaluation,
    "events.jsonl": _read_event,
}
