"""A run as checks see it: curves under one set of names, and rollouts if they were kept.

Runs of all trainers become views: our own directory through `view_of`, another trainer's log
through an importer. Metrics have the names of records/metrics.toml; importers translate other
names.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from uptrend.records.files import check_cells
from uptrend.records.metrics import must_be_finite, split_source
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


def taskset_names(config: Mapping[str, Any]) -> str | None:
    """Return the name of a run's taskset, or the names of several; None if it is unknown."""
    tasks = config.get("tasks")
    tables = tasks if isinstance(tasks, list) else [tasks]
    names = [table.get("name") for table in tables if isinstance(table, Mapping)]
    known = [name for name in names if isinstance(name, str)]
    return " + ".join(dict.fromkeys(known)) or None


# Metrics that are recorded for each of several sources alone, by the beginnings of their keys.
SOURCE_METRICS = ("reward/", "advantage/", "sampling/", "commands/")


def source_views(view: RunView) -> dict[str, RunView]:
    """Return a view of each of a run's several sources alone, by label: its metrics, rollouts,
    evaluations and settings, beside what all share. Empty for a run with one source.
    """
    tasks_info = view.info.get("tasks")
    sources = tasks_info.get("sources") if isinstance(tasks_info, Mapping) else None
    if not isinstance(sources, list):
        return {}
    views: dict[str, RunView] = {}
    for source in sources:
        label = source.get("label") if isinstance(source, Mapping) else None
        if isinstance(label, str):
            views[label] = _source_view(view, label, source)
    return views


def _source_view(view: RunView, label: str, source: Mapping[str, Any]) -> RunView:
    """Return a view of one source; `source` is its entry in run.json."""
    metrics: dict[str, Floats] = {}
    for key, values in view.metrics.items():
        of_source, metric = split_source(key)
        is_shared = not of_source and not key.startswith(SOURCE_METRICS)
        if is_shared or of_source == label:
            metrics[metric] = values
    nonfinite = {}
    for key, steps in view.nonfinite.items():
        of_source, metric = split_source(key)
        if of_source == label:
            nonfinite[metric] = steps
    evals = [_set_of(line, label) for line in view.evals]
    tables = view.config.get("tasks")
    own_tables = [
        table
        for table in (tables if isinstance(tables, list) else [])
        if isinstance(table, Mapping) and table.get("label") == label
    ]
    eval_info = _set_of(view.info.get("eval"), label)
    return replace(
        view,
        metrics=metrics,
        nonfinite=nonfinite,
        evals=tuple(line for line in evals if line is not None),
        config={**view.config, "tasks": own_tables[0] if own_tables else {}},
        info={**view.info, "tasks": source, "eval": eval_info or {}},
        events=tuple(_event_of(event, label) for event in view.events),
        read_rollouts=lambda step: _rows_of(view.read_rollouts(step), label),
        read_heldout=lambda step: _rows_of(view.read_heldout(step), label),
    )


def _set_of(table: Any, label: str) -> Mapping[str, Any] | None:
    """Return the part of an evaluation, or of its entry in run.json, that is about one set."""
    sets = table.get("sets") if isinstance(table, Mapping) else None
    own = sets.get(label) if isinstance(sets, Mapping) else None
    return own if isinstance(own, Mapping) else None


def _event_of(event: Mapping[str, Any], label: str) -> Mapping[str, Any]:
    """Return an event without the probes of other sources."""
    probes = event.get("probes")
    if not isinstance(probes, list):
        return event
    own = [
        probe
        for probe in probes
        if isinstance(probe, Mapping) and probe.get("source") in (None, "", label)
    ]
    return {**event, "probes": own}


def _rows_of(table: pa.Table, label: str) -> pa.Table:
    if "source" not in table.column_names:
        return table.slice(0, 0)
    return table.filter(pc.equal(table["source"], label))


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
