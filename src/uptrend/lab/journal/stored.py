"""Verdicts and the experiments behind them as JSON, so that a journal is whole without its runs."""

import dataclasses
import json
import math
import types
import typing
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from uptrend.doctor.report import plain
from uptrend.lab.journal.entry import ArmRun, Entry
from uptrend.records import Interval, LabError, Verdict
from uptrend.records.lines import write_whole

T = typing.TypeVar("T")

SCHEMA = 1
VERDICT, RUNS, CURVES, SPECIFICATION = "verdict.json", "runs.json", "curves.json", "specification.json"


def write_json(path: Path, value: Any, indent: int | None = 1) -> Path:
    """Write an object as JSON, numbers that are not finite as null."""
    write_whole(path, json.dumps(plain(value), indent=indent, ensure_ascii=False, allow_nan=False).encode() + b"\n")
    return path


def read_json(path: Path) -> Any:
    """What a JSON file holds; none where there is no such file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise LabError(f"{path} could not be read: {error}. Judge again to write it anew.") from None


def write_verdict(path: Path, verdict: Verdict, entry: Entry) -> Path:
    """A verdict's fields as they are, and under `entry` how the experiment was made."""
    return write_json(path, {"schema": SCHEMA, **asdict(verdict), "entry": asdict(entry)})


def asdict(record: Any) -> dict[str, Any]:
    """A dataclass as a table, mappings of other kinds included."""
    return {field.name: _table(getattr(record, field.name)) for field in dataclasses.fields(record)}


def _table(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return asdict(value)
    if isinstance(value, Mapping):
        return {key: _table(item) for key, item in value.items()}
    return [_table(item) for item in value] if isinstance(value, tuple | list) else value


def read_verdict(path: Path) -> tuple[Verdict, Entry | None] | None:
    """A verdict and its entry; none where there was no verdict yet."""
    table = read_json(path)
    if table is None:
        return None
    try:
        verdict = build(Verdict, table)
        return verdict, build(Entry, table["entry"]) if table.get("entry") else None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise LabError(f"{path} is no verdict: {type(error).__name__} {error}. Judge again to write it anew.") from None


def read_runs(path: Path) -> tuple[ArmRun, ...]:
    """The runs that an experiment has begun, from its own list: what there is before a verdict."""
    rows = read_json(path)
    rows = rows.get("runs", []) if isinstance(rows, Mapping) else rows or []
    try:
        return tuple(build(ArmRun, row) for row in rows)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise LabError(f"{path} is no list of runs: {type(error).__name__} {error}.") from None


def build(kind: type[T], table: Mapping[str, Any]) -> T:
    """A dataclass from a table; what the table lacks has its default, what it has besides is left."""
    hints = typing.get_type_hints(kind)
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]
    return kind(**{f.name: _value(hints[f.name], table[f.name]) for f in fields if f.name in table})


def _value(kind: Any, value: Any) -> Any:
    """A value as its field's type has it; null for a number is one that was not finite."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:
        return None if value is None else _value(next(k for k in inner if k is not type(None)), value)
    if origin is tuple:
        return tuple(_value(inner[0], item) for item in value) if len(inner) == 2 and inner[1] is ... else tuple(value)
    if origin is not None and issubclass(origin, Mapping):
        return {str(key): _value(inner[1], item) for key, item in value.items()}
    if kind is float:
        return math.nan if value is None else float(value)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return kind(value)
    if kind is Interval:
        return _interval(**value)
    return build(kind, value) if isinstance(kind, type) and dataclasses.is_dataclass(kind) else value


def _interval(effect: float | None, low: float | None, high: float | None) -> Interval:
    """An end that was not finite has no end."""
    return Interval(
        math.nan if effect is None else effect, -math.inf if low is None else low, math.inf if high is None else high
    )
