"""Change of the held-out figure from the first evaluation to the last, with its interval."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from uptrend.doctor.curves import score_of
from uptrend.records import RecordError, RunView
from uptrend.stats.intervals import normal_interval
from uptrend.stats.trend import neighbor_noise

LEARNED = 0.05
"""Held-out change above which a run has learned, whatever its noisy rewards say; its whole interval must lie above."""


@dataclass(frozen=True)
class HeldOutChange:
    """The held-out change of a run."""

    first: float
    """The first evaluation's figure."""
    last: float
    """The last one's."""
    steps: tuple[int, int]
    """After which steps they were."""
    scores: tuple[float, ...]
    """Every evaluation's figure, in order."""
    at: tuple[int, ...]
    """The step of each evaluation."""
    interval: tuple[float, float] | None
    """The change's 95% interval; none where neither counts nor several evaluations give one."""
    tasks: int
    """Number of tasks; 0 where not known."""
    paired: bool
    """True where the same tasks were compared one by one."""

    @property
    def effect(self) -> float:
        """Last less first."""
        return self.last - self.first

    def as_table(self) -> dict[str, Any]:
        """For the trend."""
        return {
            "first": self.first,
            "last": self.last,
            "effect": self.effect,
            "interval": self.interval,
            "tasks": self.tasks,
            "paired": self.paired,
        }


def is_learned(view: RunView) -> bool:
    """Tell whether held-out tasks show beyond doubt that the model got better."""
    change = held_out_change(view)
    return change is not None and change.interval is not None and change.interval[0] > LEARNED


def held_out_change(view: RunView) -> HeldOutChange | None:
    """The held-out change; none with fewer than two evaluations."""
    scored = [(entry, score) for entry in view.evals if (score := score_of(entry)) is not None]
    if len(scored) < 2:
        return None
    (first, before), (last, after) = scored[0], scored[-1]
    scores = tuple(score for _, score in scored)
    at = tuple(int(entry.get("step", 0)) for entry, _ in scored)
    steps = (at[0], at[-1])
    interval, tasks, paired = _paired(view, *steps), int(last.get("tasks") or 0), True
    if interval is None:
        interval, paired = _from_counts(first, last, after - before) or _from_scatter(scores), False
    return HeldOutChange(before, after, steps, scores, at, interval, tasks, paired)


def _paired(view: RunView, first: int, last: int) -> tuple[float, float] | None:
    """From the tasks that changed sides, where the rollouts of both evaluations were kept."""
    try:
        before, after = _right_by_task(view, first), _right_by_task(view, last)
    except (OSError, KeyError, RecordError):  # one torn file must not cost the whole report
        return None
    shared = before.keys() & after.keys()
    if len(shared) < 10:
        return None
    moves = np.array([float(after[task]) - float(before[task]) for task in sorted(shared)])
    error = float(moves.std(ddof=1)) / math.sqrt(len(moves))
    return normal_interval(float(moves.mean()), error)


def _right_by_task(view: RunView, step: int) -> dict[str, bool]:
    """Return by task whether its greedy answer was right: it comes first in the file, and sampled attempts follow."""
    table = view.held_out(step)
    tasks, right = table.column("task").to_pylist(), table.column("correct").to_pylist()
    found = dict[str, bool]()
    for task, is_right in zip(tasks, right, strict=True):
        found.setdefault(task, bool(is_right))
    return found


def _from_counts(first: Mapping[str, Any], last: Mapping[str, Any], effect: float) -> tuple[float, float] | None:
    variance = 0.0
    for entry in (first, last):
        accuracy, tasks = entry.get("accuracy"), entry.get("tasks")
        if not isinstance(accuracy, int | float) or not isinstance(tasks, int) or tasks < 1:
            return None
        # One task more of each kind, so that 0 of 20 has an error too.
        rate = (accuracy * tasks + 1) / (tasks + 2)
        variance += rate * (1 - rate) / tasks
    return normal_interval(effect, math.sqrt(variance))


def _from_scatter(scores: tuple[float, ...]) -> tuple[float, float] | None:
    """From how evaluations scatter about their line, where there are enough of them."""
    if len(scores) < 6:
        return None
    values = np.array(scores)
    return normal_interval(float(values[-1] - values[0]), neighbor_noise(values) * math.sqrt(2))
