"""The curves behind a verdict: read from run directories, thinned, and kept beside it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from uptrend.doctor.curves import REWARD, thinned
from uptrend.lab.journal.entry import ArmRun
from uptrend.lab.journal.stored import SCHEMA, asdict, build, read_json, write_json
from uptrend.lab.measure import in_line
from uptrend.records import LabError, RecordError, Run
from uptrend.records.view import view_of

POINTS = 100
"""How many points are kept of a curve."""
ACCURACY = "eval/accuracy"

Point = tuple[float, float]


@dataclass(frozen=True)
class Curves:
    """One run's curves: step and value."""

    arm: str
    """Which arm."""
    seed: int
    """Which seed."""
    folder: str
    """Its run directory, relative to the lab's folder."""
    accuracy: tuple[Point, ...] = ()
    """Held-out accuracy."""
    reward: tuple[Point, ...] = ()
    """The mean training reward."""
    metric: tuple[Point, ...] = ()
    """The hypothesis's own metric, where it is neither."""


def keep_curves(path: Path, lab: Path, metric: str, runs: Sequence[ArmRun]) -> tuple[Curves, ...]:
    """Write the curves of these runs; of one whose folder is gone, those that were written before."""
    before = {curves.folder: curves for curves in read_curves(path)}
    kept = list[Curves]()
    for run in runs:
        found = _read_run(lab / run.folder, run, metric) if run.folder else None
        found = found or before.get(run.folder)
        if found is not None:
            kept.append(replace(found, arm=run.arm, seed=run.seed))
    write_json(path, {"schema": SCHEMA, "metric": metric, "runs": [asdict(curves) for curves in kept]}, None)
    return tuple(kept)


def read_curves(path: Path) -> tuple[Curves, ...]:
    """The curves that were written beside a verdict; nothing where there are none."""
    table = read_json(path) or {}
    try:
        return tuple(build(Curves, row) for row in table.get("runs", []))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise LabError(f"{path} holds no curves: {type(error).__name__} {error}. Judge again.") from None


def _read_run(folder: Path, told: ArmRun, metric: str) -> Curves | None:
    try:
        run = Run(folder)
        view = view_of(run)
    except RecordError:
        return None
    reward = thinned(*view.curve(REWARD), POINTS)
    kinds = _held_out(run.eval_lines, ACCURACY), reward, _own(run, metric)
    return Curves(told.arm, told.seed, told.folder, *(_rounded(points) for points in kinds))


def _own(run: Run, metric: str) -> tuple[Point, ...]:
    """The curve of a metric that is not shown anyway."""
    if metric in (ACCURACY, REWARD):
        return ()
    if metric.startswith("eval/"):
        return _held_out(run.eval_lines, metric)
    return thinned(*view_of(run).curve(metric), POINTS)


def _held_out(lines: Sequence[dict[str, Any]], metric: str) -> tuple[Point, ...]:
    """A held-out metric by step, where evaluations have it."""
    found = [(line["step"], in_line(line, metric)) for line in lines]
    return tuple((step, value) for step, value in found if value is not None and np.isfinite(value))


def _rounded(points: Sequence[Point]) -> tuple[Point, ...]:
    return tuple((step, float(f"{value:.4g}")) for step, value in points)


@dataclass(frozen=True)
class Series:
    """One arm's curves of one kind, and their mean."""

    arm: str
    """Which arm."""
    seeds: tuple[tuple[Point, ...], ...]
    """A line a seed."""
    mean: tuple[Point, ...]
    """The mean over seeds at the steps that all of them have."""


def by_arm(curves: Sequence[Curves], kind: str, arms: Sequence[str]) -> list[Series]:
    """The curves of one kind (accuracy, reward or metric) by arm; arms without any are left out."""
    found = list[Series]()
    for arm in arms:
        lines = tuple(getattr(c, kind) for c in curves if c.arm == arm and getattr(c, kind))
        if lines:
            found.append(Series(arm, lines, _mean(lines)))
    return found


def _mean(lines: Sequence[Sequence[Point]]) -> tuple[Point, ...]:
    tables = [dict(line) for line in lines]
    shared = sorted(set.intersection(*(set(table) for table in tables)))
    return tuple((step, sum(table[step] for table in tables) / len(tables)) for step in shared)
