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

SCHEMA_VERSION = 1
VERDICT_FILE = "verdict.json"
RUNS_FILE = "runs.json"
CURVES_FILE = "curves.json"
ACCURACY_METRIC = "eval/accuracy"
# Points kept of a curve: more than a picture of a few hundred pixels can show apart.
MAX_CURVE_POINTS = 100
# Values that have no finite number in JSON, by end of an interval.
OPEN_ENDS = {"effect": math.nan, "low": -math.inf, "high": math.inf}


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

    def parse(table: Any) -> tuple[Verdict, Entry | None]:
        verdict = build(Verdict, table)
        entry = build(Entry, table["entry"]) if table.get("entry") else None
        return verdict, entry

    return _read(path, parse)


def read_rows(kind: type[T], path: Path) -> tuple[T, ...]:
    """Read the runs or the curves that an experiment has so far; empty before the first."""

    def parse(table: Any) -> tuple[T, ...]:
        return tuple(build(kind, row) for row in table.get("runs", []))

    return _read(path, parse) or ()


def keep_curves(path: Path, lab: Path, metric: str, runs: Sequence[ArmRun]) -> tuple[Curves, ...]:
    """Write the curves of these runs; of one whose folder is gone, those that were written
    before.
    """
    before = {curves.folder: curves for curves in read_rows(Curves, path)}
    all_curves: list[Curves] = []
    for run in runs:
        curves = _read_curves(lab / run.folder, metric, run) if run.folder else None
        old_curves = before.get(run.folder)
        if curves is None and old_curves is not None:
            curves = replace(old_curves, arm=run.arm, seed=run.seed)
        if curves is not None:
            all_curves.append(curves)
    rows = [asdict(curves) for curves in all_curves]
    write(path, {"metric": metric, "runs": rows})
    return tuple(all_curves)


def _read_curves(folder: Path, metric: str, arm_run: ArmRun) -> Curves | None:
    """Read a run's curves from its directory; None if that can't be read."""
    try:
        run = Run(folder)
        view = view_of(run)
    except RecordError:
        return None

    def points(name: str) -> tuple[Point, ...]:
        points: list[Point] = []
        if name.startswith("eval/"):
            for line in run.eval_lines:
                value = in_line(line, name)
                if value is not None and math.isfinite(value):
                    points.append((line["step"], value))
        else:
            points += thin_curve(*view.curve(name), MAX_CURVE_POINTS)
        # Four digits are enough for a picture, and keep the file small.
        return tuple((step, float(f"{value:.4g}")) for step, value in points)

    own_metric = curve_of(metric)
    is_drawn_anyway = own_metric in (ACCURACY_METRIC, REWARD_METRIC)
    return Curves(
        arm_run.arm,
        arm_run.seed,
        arm_run.folder,
        accuracy=points(ACCURACY_METRIC),
        reward=points(REWARD_METRIC),
        metric=() if is_drawn_anyway else points(own_metric),
    )


def write(path: Path, value: Mapping[str, Any], indent: int | None = None) -> Path:
    """Write a table as JSON, whole, with its schema."""
    table = plain({"schema": SCHEMA_VERSION, **value})
    text = json.dumps(table, indent=indent, ensure_ascii=False, allow_nan=False)
    write_atomically(path, f"{text}\n".encode())
    return path


def _read(path: Path, parse: Callable[[Any], T]) -> T | None:
    """Read a JSON file and parse its table; None where there is no such file."""
    try:
        return parse(parse_json(read_file(path)))
    except FileNotFoundError:
        return None
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"{type(error).__name__} {error}"
        raise LabError(
            f"{path} could not be read: {reason}. Judge again to write it anew."
        ) from None


def build(kind: type[T], table: Mapping[str, Any]) -> T:
    """Make a dataclass from a table: missing fields take their defaults, unknown keys are
    ignored.
    """
    types_by_field = typing.get_type_hints(kind)
    values: dict[str, Any] = {}
    for part in dataclasses.fields(kind):  # type: ignore[arg-type]
        if part.name in table:
            values[part.name] = _convert(types_by_field[part.name], table[part.name])
    return kind(**values)


def _convert(kind: Any, value: Any) -> Any:
    """Convert a value of JSON to its field's type."""
    origin = typing.get_origin(kind)
    inner = typing.get_args(kind)
    if origin is types.UnionType:
        if value is None:
            return None
        kinds = [option for option in inner if option is not type(None)]
        return _convert(kinds[0], value)
    if origin is tuple:
        if len(inner) == 2 and inner[1] is ...:  # tuple[kind, ...]
            return tuple(_convert(inner[0], item) for item in value)
        return tuple(value)
    if origin is not None and issubclass(origin, Mapping):
        _, item_kind = inner
        return {str(key): _convert(item_kind, item) for key, item in value.items()}
    if kind is float:  # null stands for a number that was not finite
        return math.nan if value is None else float(value)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return kind(value)
    if kind is Interval:
        ends: dict[str, float] = {}
        for name, end in value.items():
            ends[name] = OPEN_ENDS[name] if end is None else end
        return Interval(**ends)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return build(kind, value)
    return value
