"""What a sweep's runs say: a row a point, with intervals over seeds, or with one seed about two models."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from uptrend.lab.sweep import Sweep
from uptrend.records import Interval, Measured
from uptrend.stats.comparison import mcnemar
from uptrend.stats.intervals import paired_interval

ALPHA = 0.05


@dataclass(frozen=True)
class SweepRow:
    """One point of a sweep, measured."""

    arm: str
    """Its values."""
    seeds: tuple[int, ...]
    """Seeds that finished."""
    mean: float
    """The metric's mean over them."""
    interval: Interval | None
    """Of the mean, over seeds; none for one seed."""
    difference: Interval | None
    """Against the first point, seed by seed, shared among the comparisons; none for one seed or the first."""
    only: tuple[int, int] | None = None
    """With one seed: tasks that only this point got right, and only the first."""
    p: float | None = None
    """With one seed: McNemar's, about these two models alone."""


def rows(sweep: Sweep, measured: Sequence[Measured]) -> list[SweepRow]:
    """Every point that has a finished run, with its intervals."""
    by_arm = {arm.name: {run.seed: run for run in measured if run.arm == arm.name} for arm in sweep.arms}
    first = by_arm[sweep.arms[0].name]
    shared = ALPHA / max(1, len(sweep.arms) - 1)
    return [_row(name, runs, first, shared) for name, runs in by_arm.items() if runs]


def _row(name: str, runs: Mapping[int, Measured], first: Mapping[int, Measured], alpha: float) -> SweepRow:
    values = np.array([run.value for run in runs.values()])
    both = [seed for seed in runs if seed in first and first is not runs]
    differences = np.array([runs[seed].value - first[seed].value for seed in both])
    interval = paired_interval(values) if len(values) > 1 else None
    difference = paired_interval(differences, alpha) if len(both) > 1 else None
    row = SweepRow(name, tuple(runs), float(values.mean()), interval, difference)
    if len(both) != 1 or len(runs) != 1:
        return row
    only = _only(runs[both[0]], first[both[0]])
    return row if only is None else SweepRow(name, row.seeds, row.mean, None, None, only, mcnemar(*only))


def _only(one: Measured, other: Measured) -> tuple[int, int] | None:
    """Tasks that one got more of than the other, each way; none where nothing is known by task."""
    tasks = one.tasks.keys() & other.tasks.keys()
    moves = [one.tasks[task] - other.tasks[task] for task in tasks]
    return (sum(m > 0 for m in moves), sum(m < 0 for m in moves)) if tasks else None


def best(sweep: Sweep, found: Sequence[SweepRow]) -> str:
    """What to make of it, in a sentence."""
    known = [row for row in found if math.isfinite(row.mean)]
    if len(known) < 2:
        return "Too few points finished to compare."
    top = max(known, key=lambda row: row.mean)
    if len(sweep.seeds) == 1:
        return (
            f"The highest is {top.arm}, with one seed a point: that is about these models and not about the settings. "
            "Run --seeds 0-4 at least."
        )
    return (
        f"The highest mean is {top.arm}'s. The best of {len(known)} is the best by chance too: test it as a hypothesis "
        f"on seeds from {max(sweep.seeds) + 1} on before you believe it."
    )
