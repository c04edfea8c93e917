"""A grid or a list of config values over seeds: it shows where to look, and decides nothing.

The best of many points is the best by chance too. A sweep therefore has no verdict; what it points
to is tested as a hypothesis, on seeds that it has not used.
"""

import itertools
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from uptrend.config.load import parse_value, read_toml, unknown
from uptrend.config.tables import flatten, to_toml
from uptrend.lab import lab_error, texts
from uptrend.lab.measure import is_known, unknown_metric
from uptrend.lab.refuse import RESERVED_KEYS
from uptrend.records import Arm, Interval, LabError, Measured
from uptrend.records.metrics import is_first_step
from uptrend.records.renamed import current
from uptrend.stats.comparison import mcnemar
from uptrend.stats.intervals import student_interval

# Keys of a list's file.
LIST_KEYS = ("title", "recipe", "metric", "seeds", "steps", "grid", "arms")
# Probability that an interval misses, over all comparisons of a sweep; the usual level.
FAMILY_ALPHA = 0.05
# A value up to the next comma; those in brackets (nested once), braces and quotes belong to it.
VALUE_FORM = re.compile(r"""(?:\[(?:[^\[\]]|\[[^]]*\])*\]|\{[^}]*\}|"[^"]*"|'[^']*'|[^,])+""")


@dataclass(frozen=True)
class Sweep:
    """Points to run."""

    title: str
    recipe: Path
    arms: tuple[Arm, ...]  # its points; the others are compared with the first
    seeds: tuple[int, ...]  # the same at every point
    metric: str = "eval/accuracy"
    steps: int = 0  # steps per run; 0 for the recipe's


def grid(sets: Sequence[str]) -> dict[str, list[Any]]:
    """Return values by key from `learning.lr=1e-6,5e-6`; commas in brackets, braces and quotes
    belong to a value.
    """
    values_by_key: dict[str, list[Any]] = {}
    for option in sets:
        key, equals, text = option.partition("=")
        if not equals or not key.strip() or not text.strip():
            raise lab_error("sweep-set", option=option)
        values = VALUE_FORM.findall(text)
        values_by_key[key.strip()] = [parse_value(value.strip()) for value in values]
    return values_by_key


def make(
    recipe: Path | None,
    sets: Sequence[str],
    listed: Path | None,
    seeds: str,
    metric: str,
    steps: int,
) -> Sweep:
    """Return the sweep that a command line and a list's file describe; the command line has the
    last word.
    """
    table = read_toml(listed) if listed else {}
    for key in table:
        if key not in LIST_KEYS:
            raise LabError(f"{listed}: {unknown(key, key, LIST_KEYS, 'A sweep')}")
    if recipe is None and "recipe" not in table:
        raise lab_error("sweep-recipe")
    base = recipe or (listed or Path()).parent / table["recipe"]

    values_by_key = flatten(table.get("grid", {}))
    for key, values in values_by_key.items():
        if not isinstance(values, list) or not values:
            raise LabError(f"grid.{key} = {values!r} should be a list of values to try.")
    values_by_key |= grid(sets)
    arms: list[Arm] = []
    for name, overrides in table.get("arms", {}).items():
        arms.append(Arm(name, flatten(overrides)))
    points = _points(arms, values_by_key)

    metric = current(metric or table.get("metric", "eval/accuracy"))
    if not is_known(metric):
        raise unknown_metric(metric)
    if is_first_step(metric):
        raise LabError(
            f"{metric} has no mean to sweep over. Compare it in a hypothesis: uptrend lab new."
        )
    return Sweep(
        title=table.get("title") or f"{base.stem}: {', '.join(values_by_key)}",
        recipe=base,
        arms=points,
        seeds=parse_seeds(seeds or str(table.get("seeds", "0-4"))),
        metric=metric,
        steps=steps or int(table.get("steps", 0)),
    )


def _points(arms: Sequence[Arm], values_by_key: Mapping[str, Sequence[Any]]) -> tuple[Arm, ...]:
    """Return every arm with every combination of values, the last key's changing fastest; the first
    is the control.
    """
    combinations = list(itertools.product(*values_by_key.values()))
    points: list[Arm] = []
    for arm in arms or [Arm("")]:
        for values in combinations:
            overrides = dict(zip(values_by_key, values, strict=True))
            name = _point_name(arm.name, overrides)
            is_first = not points
            points.append(Arm(name, {**arm.overrides, **overrides}, is_control=is_first))

    for key, reason in RESERVED_KEYS.items():
        if any(key in point.overrides for point in points):
            raise LabError(f"A sweep can't set {key}: {reason}. Seeds are given with --seeds.")
    if len(points) < 2:
        raise lab_error("sweep-points")
    name, count = Counter(point.name for point in points).most_common(1)[0]
    if count > 1:
        raise LabError(f"The sweep has {name} more than once.")
    return tuple(points)


def _point_name(arm: str, overrides: Mapping[str, Any]) -> str:
    """Name a point by its arm and its values, each with the last part of its key."""
    parts = [arm] if arm else []
    for key, value in overrides.items():
        text = value if isinstance(value, str) else to_toml(value)
        parts.append(f"{key.rpartition('.')[2]}={text}")
    return " ".join(parts).strip() or "as it is"


def parse_seeds(text: str) -> tuple[int, ...]:
    """Return seeds from `0-4`, `0,2,5` or both."""
    seeds: list[int] = []
    for part in text.replace(" ", "").strip("[]").split(","):
        span = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if span is None:
            raise LabError(f"--seeds {text}: write 0-4, or 0,2,5.")
        first = int(span[1])
        last = int(span[2] or first)
        if last < first:
            raise LabError(f"--seeds {text}: write 0-4, or 0,2,5.")
        seeds += range(first, last + 1)
    if len(set(seeds)) < len(seeds):
        raise LabError(
            f"--seeds {text} has a seed more than once: a repeated run is no new evidence."
        )
    return tuple(seeds)


@dataclass(frozen=True)
class SweepRow:
    """One point of a sweep, measured."""

    arm: str
    seeds: tuple[int, ...]  # seeds that finished
    mean: float  # the metric's mean over them
    interval: Interval | None  # interval of the mean, over seeds; None for one seed
    # Difference from the first point, seed by seed, shared among the comparisons; None for one seed
    # or the first.
    difference: Interval | None
    # with one seed: tasks that only this point got right, and only the first
    only: tuple[int, int] | None = None
    p: float | None = None  # with one seed: McNemar's, about these two models alone


def rows(sweep: Sweep, measured: Sequence[Measured]) -> list[SweepRow]:
    """Return every point that has a finished run, with its intervals."""
    runs_by_arm: dict[str, dict[int, Measured]] = {arm.name: {} for arm in sweep.arms}
    for run in measured:
        if run.arm in runs_by_arm:
            runs_by_arm[run.arm][run.seed] = run
    first_arm = sweep.arms[0].name
    first_runs = runs_by_arm[first_arm]
    # Shared among the comparisons (Bonferroni).
    alpha = FAMILY_ALPHA / max(1, len(sweep.arms) - 1)

    sweep_rows: list[SweepRow] = []
    for name, runs in runs_by_arm.items():
        if not runs:
            continue
        values = np.array([run.value for run in runs.values()])
        common_seeds: list[int] = []
        if name != first_arm:
            common_seeds = [seed for seed in runs if seed in first_runs]
        difference = None
        if len(common_seeds) > 1:
            differences = [runs[seed].value - first_runs[seed].value for seed in common_seeds]
            difference = student_interval(np.array(differences), alpha)
        only = None
        if len(common_seeds) == len(runs) == 1:
            seed = common_seeds[0]
            only = _count_moves(runs[seed].tasks, first_runs[seed].tasks)
        row = SweepRow(
            arm=name,
            seeds=tuple(runs),
            mean=float(values.mean()),
            interval=student_interval(values) if len(values) > 1 else None,
            difference=difference,
            only=only,
            p=mcnemar(*only) if only else None,
        )
        sweep_rows.append(row)
    return sweep_rows


def _count_moves(
    tasks: Mapping[str, float], first_tasks: Mapping[str, float]
) -> tuple[int, int] | None:
    """Count common tasks on which one model did better, and the first; None without any."""
    common = tasks.keys() & first_tasks.keys()
    if not common:
        return None
    n_better = sum(tasks[task] > first_tasks[task] for task in common)
    n_worse = sum(tasks[task] < first_tasks[task] for task in common)
    return n_better, n_worse


def best(sweep: Sweep, sweep_rows: Sequence[SweepRow]) -> str:
    """Return the conclusion to draw, in a sentence."""
    comparable = [row for row in sweep_rows if math.isfinite(row.mean)]
    if len(comparable) < 2:
        return texts("sweep")["too-few"]
    top = max(comparable, key=lambda row: row.mean)
    kind = "one-seed" if len(sweep.seeds) == 1 else "best"
    unused_seed = max(sweep.seeds) + 1
    return texts("sweep")[kind].format(top=top, count=len(comparable), next=unused_seed)
