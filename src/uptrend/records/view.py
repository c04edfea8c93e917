"""A run as checks see it: curves under one set of names, and rollouts where they were kept.

Whoever trained it, a run becomes a view: our own directory through `view_of`, another trainer's log
through an importer. Metrics have the names of records/metrics.toml; other names are translated on
the way in.
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
    """The step of each logged point, ascending."""
    metrics: Mapping[str, Floats]
    """Each metric by Uptrend's name, one value per point; NaN where the point lacks it or where it
    is not finite.
    """
    nonfinite: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """The steps where a metric was written down as NaN or infinite."""
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
    """The steps whose rollouts were kept."""
    read_rollouts: Callable[[int], pa.Table] = _no_rollouts
    """The rollouts of a step with the columns of `records.schema`; null where the trainer did not
    keep one.
    """
    read_heldout: Callable[[int], pa.Table] = _no_rollouts
    """The rollouts of the evaluation after a step."""
    unknown: Mapping[str, Floats] = field(default_factory=dict)
    columns: Mapping[str, Floats] = field(default_factory=dict)
    """Every numeric column of another trainer's log under its own name, known or not."""
    runs_in_log: int = 1
    """Runs that the log held one after the other; this is one of them."""
    notes: tuple[str, ...] = ()
    """Sentences on how the log was read: restarts split, repeated values dropped, torn lines."""

    def has(self, *metrics: str) -> bool:
        """True where each of these metrics has at least one finite value."""
        return all(
            name in self.metrics and bool(np.isfinite(self.metrics[name]).any()) for name in metrics
        )

    def curve(self, metric: str) -> tuple[NDArray[np.int64], Floats]:
        """The steps and values of a metric where it is finite; two empty arrays where there is
        none.
        """
        if metric not in self.metrics:
            return self.steps[:0], np.zeros(0)
        values = self.metrics[metric]
        finite = np.isfinite(values)
        return self.steps[finite], values[finite]

    def value(self, key: str, default: Any = None) -> Any:
        """A config value by its dotted key, if it is known."""
        return value_at(self.config, key, default)

    def parts(self) -> list[str]:
        """The names of the reward's components whose means were logged."""
        head = "reward/part/"
        tail = "/mean"
        return [
            name[len(head) : -len(tail)]
            for name in self.metrics
            if name.startswith(head) and name.endswith(tail)
        ]


def value_at(config: Mapping[str, Any], key: str, default: Any = None) -> Any:
    """Return a value of a nested table by its dotted key; the default where it has none."""
    table: Any = config
    for part in key.split("."):
        if not isinstance(table, Mapping) or part not in table:
            return default
        table = table[part]
    return table


def values_of(lines: Sequence[Mapping[str, Any]], key: str) -> Floats:
    """Return a metric by line, NaN where a line has no number of this name."""
    return np.array([_number(line.get(key)) for line in lines], dtype=np.float64)


def view_of(run: Run) -> RunView:
    """A run directory as a view."""
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
    """Make a view from metrics lines with Uptrend's names: one dictionary per step, null or NaN
    where not finite.
    """
    keys = list(dict.fromkeys(key for line in lines for key in line if key != "step"))
    check_cells(str(rest.get("source", "The run")), len(lines), len(keys))
    metrics = {key: values_of(lines, key) for key in keys}
    nonfinite = {
        key: tuple(
            int(line["step"])
            for line in lines
            if key in line and not np.isfinite(_number(line[key]))
        )
        for key in keys
        if must_be_finite(key)
    }
    return RunView(
        trainer=trainer,
        steps=np.array([line["step"] for line in lines], dtype=np.int64),
        metrics=metrics,
        nonfinite={key: steps for key, steps in nonfinite.items() if steps},
        **rest,
    )


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else float("nan")
