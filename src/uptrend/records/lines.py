"""Lines of JSON, as a run directory has them: written whole, and read whatever they hold.

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

# figures that every evaluation has, null where unknown
EVALUATION_FIGURES = ("accuracy", "low", "high", "correct", "tasks")
# Digits up to which a number fits into 64 bits; Python itself refuses to read integers of some
# thousand digits.
MAX_DIGITS = 18
# Integers up to here are floats exactly.
LARGEST_INTEGER = 2**53
# Levels of nesting beyond which a line is none of ours: the deepest, a preflight's event, has six.
MAX_DEPTH = 32


def append_line(path: Path, value: dict[str, Any]) -> None:
    """Append one object as one line, out of this process when this returns."""
    line = to_line(value)
    with explain_disk_errors(path):
        before = path.stat().st_size if path.exists() else 0
        try:
            with path.open("a+b") as file:
                if before > 0:
                    file.seek(-1, os.SEEK_END)
                    # a killed process tore a line, which must not swallow this one
                    if file.read(1) != b"\n":
                        line = b"\n" + line
                file.write(line)
        except OSError:
            with contextlib.suppress(OSError):
                os.truncate(path, before)
            raise


def to_line(value: dict[str, Any]) -> bytes:
    """Return an object as one line of JSON. Numbers that are not finite become null: NaN is not
    JSON.
    """
    return (
        json.dumps(
            plain(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False
        ).encode()
        + b"\n"
    )


def plain(value: Any) -> Any:
    """Return a value as JSON has it: no arrays, no tuples, null for what is not finite, text for
    other objects.
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
    """Yield the records of a file of JSON lines; lines that hold none are left out."""
    return (record for _, record in parse_lines(path) if record is not None)


def parse_lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any] | None]]:
    """Yield each line of a file as it is, with its record; None where it holds none, torn or
    damaged.
    """
    if not path.exists():
        return
    try:
        with open_file(path) as file:
            # What is beyond so many bytes counts as another line, and both are damaged.
            while line := file.readline(MAX_FILE_BYTES):
                yield line, parse_line(line, path.name)
    except OSError as error:
        raise RecordError(f"{path} could not be read: {error.strerror or error}.") from None


def parse_line(line: bytes, name: str = "") -> dict[str, Any] | None:
    """Return the record in a line of a file of this name; None where it holds none.

    The one place that decides what a record is: metrics.jsonl, evals.jsonl and events.jsonl have
    fields without which no reader can use a line.
    """
    try:
        record = parse_object(line.decode("utf-8-sig"))
    except UnicodeDecodeError:
        return None
    return _READERS[name](record) if record is not None and name in _READERS else record


def parse_object(text: str) -> dict[str, Any] | None:
    """Return the object in a text of JSON, None where it is none, or one that nobody could go on
    with.
    """
    if count_values(text) > MAX_VALUES:
        return None
    try:
        value = json.loads(text, parse_int=to_number)
        # Few brackets can't nest deeply, and counting them is quicker than looking.
        is_shallow = text.count("{") + text.count("[") <= MAX_DEPTH
        if not isinstance(value, dict) or not (is_shallow or _is_shallow(value)):
            return None
        "".join(value).encode()  # half of a surrogate pair is no name of anything
    except (ValueError, RecursionError):
        return None
    return value


def to_number(digits: str) -> int | float:
    """Read an integer; one that no column can hold becomes a float, infinite where it is larger
    still.
    """
    return int(digits) if len(digits) <= MAX_DIGITS else float(digits)


def _is_shallow(record: dict[str, Any]) -> bool:
    level: list[Any] = [record]
    for _ in range(MAX_DEPTH):
        items = (
            item for each in level for item in (each.values() if isinstance(each, dict) else each)
        )
        level = [item for item in items if isinstance(item, dict | list)]
        if not level:
            return True
    return False


def _has_step(record: dict[str, Any]) -> bool:
    return type(record.get("step")) is int and 0 <= record["step"] <= LARGEST_INTEGER


def _read_step(record: dict[str, Any]) -> dict[str, Any] | None:
    if not _has_step(record):
        return None
    # Metrics have names such as group/quantity/stat, and are numbers; what else a line has is its
    # writer's own.
    odd = {
        key
        for key, value in record.items()
        if ("/" in key or key == "time") and not isinstance(value, int | float | None)
    }
    record = {key: value for key, value in record.items() if key not in odd} if odd else record
    # A column of numbers holds no integer beyond those that a float has exactly.
    large = {
        key: float(value)
        for key, value in record.items()
        if type(value) is int and abs(value) > LARGEST_INTEGER
    }
    return record | large if large else record


def _read_evaluation(record: dict[str, Any]) -> dict[str, Any] | None:
    sets = record.get("sets", {})
    tables = [record, *sets.values()] if isinstance(sets, dict) else [None]
    is_whole = _has_step(record) and all(
        isinstance(table, dict)
        and all(isinstance(table.get(key, ""), int | float | None) for key in EVALUATION_FIGURES)
        and all(isinstance(table.get(key, {}), dict) for key in ("parts", "pass_at", "by_family"))
        for table in tables
    )
    return record if is_whole else None


def _read_event(record: dict[str, Any]) -> dict[str, Any] | None:
    lists = [record[key] for key in ("probes", "findings", "evidence") if key in record]
    is_whole = isinstance(record.get("event"), str) and all(
        isinstance(items, list) and all(isinstance(item, dict) for item in items) for items in lists
    )
    return record if is_whole else None


# What each file's lines need for any reader to use them.
_READERS: dict[str, Callable[[dict[str, Any]], dict[str, Any] | None]] = {
    "metrics.jsonl": _read_step,
    "evals.jsonl": _read_evaluation,
    "events.jsonl": _read_event,
}
