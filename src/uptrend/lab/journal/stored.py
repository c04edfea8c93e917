"""Records of an experiment beside its hypothesis, as JSON: verdict, entry, runs and curves.

A journal is complete without its run directories: what the page shows is kept here.
"""

import dataclasses
import json
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from uptrend.doctor.trend import REWARD_METRIC
from uptrend.lab.measure import curve_of, in_line
from uptrend.present.drawing import thin_curve
from uptrend.records import Interval, LabError, RecordError, Run, Verdict
from uptrend.records.files import parse_json, read_file, write_atomically
from uptrend.records.lines import plain
from uptrend.records.view import view_of

T = typing.TypeVar("T")
Point = tuple[float, float]

SCHEMA = 1
VERDICT = "verdict.json"
RUNS = "runs.json"
CURVES = "curves.json"
ACCURACY = "eval/accuracy"
# Points kept of a curve.
POINTS = 100


@dataclass(frozen=True)
class ArmRun:
    """One run of an experiment, finished or not."""

    arm: str
    seed: int
    # finished, stopped, failed, killed, running, refused, or skipped where an early stop made it
    # needless
    status: str
    folder: str = ""  # run directory, relative to the lab's folder; empty where none was made
    value: float | None = None  # the hypothesis's metric at the end
    before: float | None = None  # the same before the first step, where it is known
    seconds: float | None = None
    reason: str = ""  # reason for a failure or a refusal


@dataclass(frozen=True)
class Entry:
    """One experiment, as its dated entry in the log describes it."""

    date: str  # time of the verdict: ISO 8601, to the second
    command: str  # command line that made it
    recipe: str  # base recipe, relative to the lab's folder
    # Config keys by arm, without the control, that differ from the control: its value and the
    # arm's.
    differences: Mapping[str, Mapping[str, tuple[Any, Any]]] = field(default_factory=dict)
    runs: tuple[ArmRun, ...] = ()  # every run, in the order of arms and seeds
    seconds: float | None = None  # time from the first run's start to the verdict
    machine: str = ""  # machine of the runs, in words
    version: str = ""  # Uptrend's version
    notes: tuple[str, ...] = ()  # anything else to know: files that changed, seeds that lack an arm


@dataclass(frozen=True)
class Curves:
    """Curves of one run: steps and values."""

    arm: str
    seed: int
    folder: str  # run directory, relative to the lab's folder
    accuracy: tuple[Point, ...] = ()  # held-out accuracy
    reward: tuple[Point, ...] = ()  # mean training reward
    metric: tuple[Point, ...] = ()  # the hypothesis's own metric, where it is neither


def read_verdict(path: Path) -> tuple[Verdict, Entry | None] | None:
    """Read a verdict and its entry; None before the first verdict."""

    def make(table: Any) -> tuple[Verdict, Entry | None]:
        return build(Verdict, table), build(Entry, table["entry"]) if table.get("entry") else None

    return _read(path, make)


def read_rows(kind: type[T], path: Path) -> tuple[T, ...]:
    """Read the runs or the curves that an experiment has so far; nothing where there are none."""
    return _read(path, lambda table: tuple(build(kind, row) for row in table.get("runs", []))) or ()


def keep_curves(path: Path, lab: Path, metric: str, runs: Sequence[ArmRun]) -> tuple[Curves, ...]:
    """Write the curves of these runs; of one whose folder is gone, those that were written
    before.
    """
    before = {curves.folder: curves for curves in read_rows(Curves, path)}
    kept = list[Curves]()
    for run in runs:
        found = _curves_of(lab / run.folder, metric) if run.folder else None
        found = found or before.get(run.folder)
        if found is not None:
            kept.append(replace(found, arm=run.arm, seed=run.seed, folder=run.folder))
    write(path, {"metric": metric, "runs": [asdict(curves) for curves in kept]})
    return tuple(kept)


def _curves_of(folder: Path, metric: str) -> Curves | None:
    try:
        run = Run(folder)
        view = view_of(run)
    except RecordError:
        return None

    def points(name: str) -> tuple[Point, ...]:
        if name.startswith("eval/"):
            lines = [(line["step"], in_line(line, name)) for line in run.eval_lines]
            found = tuple(
                (step, value) for step, value in lines if value is not None and math.isfinite(value)
            )
        else:
            found = thin_curve(*view.curve(name), POINTS)
        return tuple((step, float(f"{value:.4g}")) for step, value in found)

    shown = curve_of(metric)
    own = () if shown in (ACCURACY, REWARD_METRIC) else points(shown)
    return Curves("", 0, "", points(ACCURACY), points(REWARD_METRIC), own)


def write(path: Path, value: Mapping[str, Any], indent: int | None = None) -> Path:
    """Write a table as JSON, whole, with its schema."""
    value = {"schema": SCHEMA, **value}
    write_atomically(
        path,
        json.dumps(plain(value), indent=indent, ensure_ascii=False, allow_nan=False).encode()
        + b"\n",
    )
    return path


def _read(path: Path, make: Callable[[Any], T]) -> T | None:
    try:
        return make(parse_json(read_file(path)))
    except FileNotFoundError:
        return None
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        said = f"{type(error).__name__} {error}"
        raise LabError(f"{path} could not be read: {said}. Judge again to write it anew.") from None


def build(kind: type[T], table: Mapping[str, Any]) -> T:
    """Make a dataclass from a table: missing fields take their defaults, unknown keys are
    ignored.
    """
    hints = typing.get_type_hints(kind)
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]
    return kind(**{f.name: _value(hints[f.name], table[f.name]) for f in fields if f.name in table})


def _value(kind: Any, value: Any) -> Any:
    # Convert a value to its field's type; JSON has null for a number that was not finite.
    origin = typing.get_origin(kind)
    inner = typing.get_args(kind)
    if origin is types.UnionType:
        return (
            None if value is None else _value(next(k for k in inner if k is not type(None)), value)
        )
    if origin is tuple:
        return (
            tuple(_value(inner[0], item) for item in value)
            if len(inner) == 2 and inner[1] is ...
            else tuple(value)
        )
    if origin is not None and issubclass(origin, Mapping):
        return {str(key): _value(inner[1], item) for key, item in value.items()}
    if kind is float:
        return math.nan if value is None else float(value)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return kind(value)
    if kind is Interval:  # an end that was not finite is an open end
        ends = {"effect": math.nan, "low": -math.inf, "high": math.inf}
        return Interval(**{name: ends[name] if end is None else end for name, end in value.items()})
    return (
        build(kind, value) if isinstance(kind, type) and dataclasses.is_dataclass(kind) else value
    )
