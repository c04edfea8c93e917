"""A run as checks see it: curves under one set of names, and rollouts if they were kept.

Runs of all trainers become views: our own directory through `view_of`, another trainer's log
through an importer. Metrics have the names of records/metrics.toml; importers translate other
names.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from uptrend.records.files import check_cells
from uptrend.records.metrics import must_be_finite
from uptrend.records.run import Run
from uptrend.records.schema import ROLLOUT_SCHEMA

Floats = NDArray[np.float64]


def _no_rollouts(_: int) -> pa.Table:
    return ROLLOUT_SCHEMA.empty_table()


@dataclass(frozen=True)
class RunView:
    """One run, read."""

    source: str
    trainer: str
    """uptrend, trl, verl, prime-rl, verifiers, tinker, or unknown."""
    name: str
    steps: NDArray[np.int64]
    """Step of each logged point, ascending."""
    metrics: Mapping[str, Floats]
    """Metrics by Uptrend's name, one value per point; NaN where the point lacks it or where it is
    not finite.
    """
    nonfinite: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Steps by metric that was logged as NaN or infinite there."""
    evals: tuple[Mapping[str, Any], ...] = ()
    """Evaluations in order, with the keys of evals.jsonl as far as known: step, accuracy, reward,
    tasks, correct.
    """
    config: Mapping[str, Any] = field(default_factory=dict)
    """Known part of the config, as the nested table of a recipe: {"sampling": {"size": 8}, …}."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """Rest of run.json: task hashes, versions. Of other trainers `raw`: their settings as far as
    known, as they are.
    """
    events: tuple[Mapping[str, Any], ...] = ()
    rollout_steps: tuple[int, ...] = ()
    """Steps whose rollouts were kept."""
    read_rollouts: Callable[[int], pa.Table] = _no_rollouts
    """Reader of the rollouts of a step, with the columns of `records.schema`; null for those that
    the trainer did not keep.
    """
    read_heldout: Callable[[int], pa.Table] = _no_rollouts
    """Reader of the rollouts of the evaluation after a step."""
    unknown: Mapping[str, Floats] = field(default_factory=dict)
    """Numeric columns of another trainer's log that are no known metric."""
    columns: Mapping[str, Floats] = field(default_factory=dict)
    """Every numeric column of another trainer's log under its own name, known or not."""
    runs_in_log: int = 1
    """Number of runs in the log, one after the other; this is one of them."""
    notes: tuple[str, ...] = ()
    """Sentences on how the log was read: restarts split, repeated values dropped, torn lines."""

    def has(self, *metrics: str) -> bool:
        """Return True if each of these metrics has at least one finite value."""
        for metric in metrics:
            if metric not in self.metrics or not np.isfinite(self.metrics[metric]).any():
                return False
        return True

    def curve(self, metric: str) -> tuple[NDArray[np.int64], Floats]:
        """Return the steps and values of a metric where it is finite; empty arrays for an unknown
        metric.
        """
        if metric not in self.metrics:
            return self.steps[:0], np.zeros(0)
        values = self.metrics[metric]
        is_finite = np.isfinite(values)
        return self.steps[is_finite], values[is_finite]

    def value(self, key: str, default: Any = None) -> Any:
        """Return a config value by its dotted key; the default if it is unknown."""
        return value_at(self.config, key, default)

    def parts(self) -> list[str]:
        """Return the names of the reward's parts whose means were logged."""
        prefix = "reward/part/"
        suffix = "/mean"
        names = []
        for metric in self.metrics:
            if metric.startswith(prefix) and metric.endswith(suffix):
                names.append(metric[len(prefix) : -len(suffix)])
        return names


def value_at(config: Mapping[str, Any], key: str, default: Any = None) -> Any:
    """Return a value of a nested table by its dotted key; the default if the table lacks it."""
    table: Any = config
    for part in key.split("."):
        if not isinstance(table, Mapping) or part not in table:
            return default
        table = table[part]
    return table


# Decimals of numbers that a trainer rounded when it printed them, and different numbers with at
# most so many, from which a log's zeros are rounded too: verl once printed three, as MLX does.
MAX_ROUNDED_DECIMALS = 4
MIN_ROUNDED_NUMBERS = 8
# Size below which a number that is not 0 was printed in scientific notation.
MIN_ROUNDED = 1e-4


def are_rounded(columns: Mapping[str, Floats]) -> bool:
    """Return True for columns whose numbers all have a few decimals; those in scientific notation,
    such as a learning rate, may have more.
    """
    fractions: set[float] = set()
    for values in columns.values():
        sizes = np.abs(values[np.isfinite(values)])
        fractions.update(sizes[(sizes % 1 > 0) & (sizes >= MIN_ROUNDED)].tolist())
    if len(fractions) < MIN_ROUNDED_NUMBERS:
        return False
    return all(round(number, MAX_ROUNDED_DECIMALS) == number for number in fractions)


def values_of(lines: Sequence[Mapping[str, Any]], key: str) -> Floats:
    """Return a metric by line, NaN where a line has no number of this name."""
    return np.array([_number(line.get(key)) for line in lines], dtype=np.float64)


def view_of(run: Run) -> RunView:
    """Return a run directory as a view."""
    return from_lines(
        run.metric_lines,
        trainer=str(run.info.get("trainer", "uptrend")),
        source=str(run.path),
        name=run.name,
        config=run.config,
        info={key: value for key, value in run.info.items() if key != "config"},
        evals=tuple(run.eval_lines),
        events=tuple(run.events),
        rollout_steps=tuple(run.rollout_steps),
        read_rollouts=run.rollouts,
        read_heldout=run.eval_rollouts,
        notes=tuple(run.notes),
    )


def from_lines(lines: list[dict[str, Any]], trainer: str = "uptrend", **rest: Any) -> RunView:
    """Return a view of metrics lines with Uptrend's names: one dictionary per step, null or NaN
    for values that are not finite.
    """
    keys = list(dict.fromkeys(key for line in lines for key in line if key != "step"))
    check_cells(str(rest.get("source", "The run")), len(lines), len(keys))
    metrics: dict[str, Floats] = {}
    nonfinite: dict[str, tuple[int, ...]] = {}
    for key in keys:
        values = values_of(lines, key)
        metrics[key] = values
        if must_be_finite(key):
            broken_steps = []
            for line, is_finite in zip(lines, np.isfinite(values), strict=True):
                if key in line and not is_finite:  # a line without the key is NaN too
                    broken_steps.append(int(line["step"]))
            if broken_steps:
                nonfinite[key] = tuple(broken_steps)
    steps = np.array([line["step"] for line in lines], dtype=np.int64)
    return RunView(trainer=trainer, steps=steps, metrics=metrics, nonfinite=nonfinite, **rest)


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else float("nan")
