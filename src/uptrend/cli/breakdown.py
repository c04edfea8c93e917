"""What an evaluation's rollouts earned, family by family and part by part, with 95% intervals.

A part that is only ever 0 or 1 is a fraction, and gets Wilson's interval. The others get the percentile
bootstrap: tasks are drawn again with replacement, 2,000 times, and the interval holds the middle 95% of the means
(Efron 1979). What could not be scored counts as not correct, and has neither reward nor parts.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from uptrend.records import Rollout
from uptrend.stats.formatting import NONE, estimate
from uptrend.stats.intervals import bootstrap_mean, wilson

ALL = "all"
"""The row over all families."""


@dataclass(frozen=True)
class Mean:
    """A mean over tasks."""

    mean: float
    """The mean."""
    low: float
    """Where its 95% interval begins."""
    high: float
    """And where it ends."""

    def __str__(self) -> str:
        return estimate(self.mean, self.low, self.high, is_share=False)


@dataclass(frozen=True)
class Breakdown:
    """One family's figures."""

    family: str
    """Which family, or all of them."""
    tasks: int
    """How many of its tasks were played."""
    failed: int
    """How many of them could not be scored."""
    correct: Mean
    """The share that was answered rightly; what could not be scored was not."""
    reward: Mean | None
    """The reward of those that were scored; None where none was."""
    parts: dict[str, Mean]
    """Each part of the reward, likewise."""

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)


def break_down(rollouts: Sequence[Rollout]) -> list[Breakdown]:
    """A row a family, in the order of their names, and one over all."""
    fractions = _fractions(rollouts)
    families = sorted({rollout.family for rollout in rollouts})
    rows = [_row(family, [r for r in rollouts if r.family == family], fractions) for family in families]
    return [*rows, _row(ALL, rollouts, fractions)]


def has_parts(rows: Iterable[Breakdown]) -> bool:
    """Whether rewards are made of several parts, so that there is something to break down."""
    return any(len(row.parts) > 1 for row in rows)


def breakdown_table(rows: Sequence[Breakdown]) -> Table:
    """For people: a column a family, a line a part."""
    table = Table("", *(row.family for row in rows), box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    table.add_row("tasks", *(str(row.tasks) for row in rows))
    if any(row.failed for row in rows):
        table.add_row("not scored", *(str(row.failed) for row in rows))
    table.add_row("correct", *(str(row.correct) for row in rows))
    table.add_row("reward", *(_cell(row.reward) for row in rows))
    for name in dict.fromkeys(name for row in rows for name in row.parts):
        table.add_row(name.replace("_", " "), *(_cell(row.parts.get(name)) for row in rows))
    return table


def _row(family: str, rollouts: Sequence[Rollout], fractions: frozenset[str]) -> Breakdown:
    rewards = [r.reward for r in rollouts if r.reward is not None]
    right = np.array([r.reward is not None and r.reward.correct for r in rollouts], np.float64)
    values: dict[str, list[float]] = {}
    for part in (part for reward in rewards for part in reward.parts):
        values.setdefault(part.name, []).append(part.value)
    return Breakdown(
        family=family,
        tasks=len(rollouts),
        failed=len(rollouts) - len(rewards),
        correct=_mean(right, is_fraction=True),
        reward=_mean(np.array([reward.total for reward in rewards]), is_fraction=False) if rewards else None,
        parts={name: _mean(np.array(found), is_fraction=name in fractions) for name, found in values.items()},
    )


def _mean(values: NDArray[np.float64], *, is_fraction: bool) -> Mean:
    low, high = wilson(int(values.sum()), len(values)) if is_fraction else bootstrap_mean(values)
    return Mean(float(values.mean()) if len(values) else 0.0, low, high)


def _fractions(rollouts: Sequence[Rollout]) -> frozenset[str]:
    """The parts that are only 0 or 1; over all families, so that a part has one kind of interval in all rows."""
    parts = [part for r in rollouts if r.reward is not None for part in r.reward.parts]
    between = {part.name for part in parts if part.value not in (0.0, 1.0)}
    return frozenset(part.name for part in parts) - between


def _cell(mean: Mean | None) -> str:
    return NONE if mean is None else str(mean)
