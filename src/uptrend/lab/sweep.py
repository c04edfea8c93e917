"""A grid or a list of config values over seeds: to look where something is, not to decide whether
it is there.

Whoever takes the best of many has chosen by chance too. A sweep has no verdict; what it points to
is tested as a hypothesis, on seeds that it has not used.
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
from uptrend.lab.refuse import RESERVED
from uptrend.records import Arm, Interval, LabError, Measured
from uptrend.records.metrics import first_step
from uptrend.records.renamed import current
from uptrend.stats.comparison import mcnemar
from uptrend.stats.intervals import student_interval

# Keys of a list's file.
KEYS = ("title", "recipe", "metric", "seeds", "steps", "grid", "arms")
ALPHA = 0.05
# A value up to the next comma; those in brackets (nested once), braces and quotes belong to it.
VALUE = re.compile(r"""(?:\[(?:[^\[\]]|\[[^]]*\])*\]|\{[^}]*\}|"[^"]*"|'[^']*'|[^,])+""")


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
    found = dict[str, list[Any]]()
    for each in sets:
        key, equals, text = each.partition("=")
        if not equals or not key.strip() or not text.strip():
            raise lab_error("sweep-set", each=each)
        found[key.strip()] = [parse_value(part.strip()) for part in VALUE.findall(text)]
    return found


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
        if key not in KEYS:
            raise LabError(f"{listed}: {unknown(key, key, KEYS, 'A sweep')}")
    if recipe is None and "recipe" not in table:
        raise lab_error("sweep-recipe")
    base = recipe or (listed or Path()).parent / table["recipe"]
    values = flatten(table.get("grid", {}))
    for key, tried in values.items():
        if not isinstance(tried, list) or not tried:
            raise LabError(f"grid.{key} = {tried!r} should be a list of values to try.")
    values |= grid(sets)
    arms = _points(
        [Arm(name, flatten(each)) for name, each in table.get("arms", {}).items()], values
    )
    metric = current(metric or table.get("metric", "eval/accuracy"))
    if not is_known(metric):
        raise unknown_metric(metric)
    if first_step(metric):
        raise LabError(
            f"{metric} has no mean to sweep over. Compare it in a hypothesis: uptrend lab new."
        )
    title = table.get("title") or f"{base.stem}: {', '.join(values)}"
    chosen = parse_seeds(seeds or str(table.get("seeds", "0-4")))
    return Sweep(title, base, arms, chosen, metric, steps or int(table.get("steps", 0)))


def _points(arms: Sequence[Arm], values: Mapping[str, Sequence[Any]]) -> tuple[Arm, ...]:
    # Every arm with every combination of values, the last key's changing fastest; the first is the
    # control.
    found = list[Arm]()
    for arm, each in itertools.product(arms or [Arm("")], itertools.product(*values.values())):
        point = dict(zip(values, each, strict=True))
        said = {
            key: value if isinstance(value, str) else to_toml(value) for key, value in point.items()
        }
        name = " ".join(
            [arm.name, *(f"{key.rpartition('.')[2]}={value}" for key, value in said.items())]
        ).strip()
        found.append(Arm(name or "as it is", {**arm.overrides, **point}, is_control=not found))
    for key, why in RESERVED.items():
        if any(key in arm.overrides for arm in found):
            raise LabError(f"A sweep can't set {key}: {why}. Seeds are given with --seeds.")
    if len(found) < 2:
        raise lab_error("sweep-points")
    name, count = Counter(arm.name for arm in found).most_common(1)[0]
    if count > 1:
        raise LabError(f"The sweep has {name} more than once.")
    return tuple(found)


def parse_seeds(text: str) -> tuple[int, ...]:
    """Return seeds from `0-4`, `0,2,5` or both."""
    seeds = list[int]()
    for part in text.replace(" ", "").strip("[]").split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if match is None or (match[2] and int(match[2]) < int(match[1])):
            raise LabError(f"--seeds {text}: write 0-4, or 0,2,5.")
        seeds += range(int(match[1]), int(match[2] or match[1]) + 1)
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
    by_arm = {
        arm.name: {run.seed: run for run in measured if run.arm == arm.name} for arm in sweep.arms
    }
    first = by_arm[sweep.arms[0].name]
    shared = ALPHA / max(1, len(sweep.arms) - 1)
    found = list[SweepRow]()
    for name, runs in by_arm.items():
        values = np.array([run.value for run in runs.values()])
        both = [seed for seed in runs if seed in first and first is not runs]
        differences = np.array([runs[seed].value - first[seed].value for seed in both])
        interval = student_interval(values) if len(values) > 1 else None
        difference = student_interval(differences, shared) if len(both) > 1 else None
        only = None
        if len(both) == len(runs) == 1:
            one = runs[both[0]].tasks
            other = first[both[0]].tasks
            moves = [one[task] - other[task] for task in one.keys() & other.keys()]
            only = (sum(m > 0 for m in moves), sum(m < 0 for m in moves)) if moves else None
        if runs:
            p = mcnemar(*only) if only else None
            found.append(
                SweepRow(name, tuple(runs), float(values.mean()), interval, difference, only, p)
            )
    return found


def best(sweep: Sweep, found: Sequence[SweepRow]) -> str:
    """Return the conclusion to draw, in a sentence."""
    known = [row for row in found if math.isfinite(row.mean)]
    kind = "too-few" if len(known) < 2 else "one-seed" if len(sweep.seeds) == 1 else "best"
    top = max(known, key=lambda row: row.mean, default=None)
    return texts("sweep")[kind].format(top=top, count=len(known), next=max(sweep.seeds) + 1)
