"""A run under diagnosis: its view, and what several checks read from it, each computed once."""

from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from uptrend.doctor.curves import LEVEL, RunCurves
from uptrend.doctor.groups import Grouped, grouped
from uptrend.doctor.trend import Collapse, HeldoutChange, find_collapse, heldout_change, judge_trend
from uptrend.records import RecordError, RunView, Trend, TrendKind
from uptrend.records.errors import RecordTooLarge
from uptrend.records.memory import MAX_TABLE, check_size
from uptrend.records.table import RolloutTable

# At most so many steps are read. The first of them follow each other: an epoch's repeats show only
# there.
MOST = 8
FIRST = 3
# Bytes of the rollouts that are read, over all steps.
MOST_BYTES = 2 * MAX_TABLE
# Held-out change above which a run has learned; its whole interval must lie above.
LEARNED = 0.05
# Steps after which a run without any gradient is told so: one step's tasks may all be too hard by
# chance.
CERTAIN_STEPS = 3

T = TypeVar("T")


class Case(RunCurves):
    """One run, with everything that checks share."""

    def __init__(self, view: RunView) -> None:
        super().__init__(view)
        self.large_steps: list[int] = []
        """Steps whose rollouts were left out for their size."""
        self._known: dict[Hashable, Any] = {}

    def once(self, read: Callable[["Case"], T]) -> T:
        """Return a reading of this run, computed at the first call and kept for the next."""
        if read not in self._known:
            self._known[read] = read(self)
        found: T = self._known[read]
        return found

    @cached_property
    def chosen_steps(self) -> tuple[int, ...]:
        """Steps whose rollouts are read: the first, the last, and some between; empty where none
        can be.
        """
        steps = sorted(self.view.rollout_steps) if not self._no_rollouts else []
        if len(steps) <= MOST:
            return tuple(steps)
        rest = np.linspace(FIRST - 1, len(steps) - 1, MOST - FIRST + 1).round().astype(int)[1:]
        return (*steps[:FIRST], *(steps[i] for i in rest))

    @cached_property
    def rows(self) -> list[RolloutTable]:
        """Rollouts of the steps that are read; empty where none were kept."""
        return [
            RolloutTable(step, table)
            for step, table in self._tables.items()
            if table is not None and table.num_rows
        ]

    def rows_with(self, *columns: str) -> list[RolloutTable]:
        """Return the rollouts of the steps that have all of these columns."""
        return [r for r in self.rows if r.has(*columns)]

    @cached_property
    def groups(self) -> list[Grouped]:
        """Rollouts by true groups, of the steps that have group ids and rewards."""
        return [g for g in map(grouped, self.rows) if g is not None]

    @cached_property
    def damaged_steps(self) -> tuple[int, ...]:
        """Steps, of those that are read and done, whose rollouts are damaged."""
        last = int(self.view.steps[-1]) if len(self.view.steps) else -1
        return tuple(step for step, table in self._tables.items() if table is None and step <= last)

    @cached_property
    def trend(self) -> Trend:
        return judge_trend(self, self.collapse, self.heldout)

    @property
    def is_learning(self) -> bool:
        """True where the training reward rises."""
        return self.trend.kind is TrendKind.LEARNING

    @property
    def is_stuck(self) -> bool:
        """True where the training reward surely does not rise."""
        return self.trend.kind in (TrendKind.FLAT, TrendKind.FALLING)

    @cached_property
    def is_certainly_idle(self) -> bool:
        """True where every group of every step was dead and every gradient 0: a fact of few steps,
        not a trend.
        """
        gradient = self.curve("gradient/norm/before")[1]
        dead = self.dead_groups
        return (
            min(len(gradient), len(dead)) >= CERTAIN_STEPS
            and not gradient.any()
            and bool((dead > 0.999).all())
        )

    @cached_property
    def collapse(self) -> Collapse | None:
        """A lasting fall of the reward after progress; None where there is none."""
        return find_collapse(self)

    @cached_property
    def heldout(self) -> HeldoutChange | None:
        """Change of the held-out score from the first evaluation to the last; None where it was not
        measured twice.
        """
        return heldout_change(self.view)

    @property
    def is_learned(self) -> bool:
        """True where held-out tasks show beyond doubt that the model got better, whatever its noisy
        rewards say.
        """
        change = self.heldout
        return change is not None and change.interval is not None and change.interval[0] > LEARNED

    @property
    def has_gained(self) -> bool:
        """True where held-out scores surely rose, however little: only another policy answers fixed
        tasks better.
        """
        change = self.heldout
        return change is not None and change.effect > 0 and change.chance < LEVEL

    def why_no_rollouts(self, columns: Sequence[str] = ()) -> str:
        """Return why rollouts with these columns can't be read; empty where they can."""
        if self._no_rollouts or not self.rows:
            return self._no_rollouts or "the rollouts can't be read"
        missing = [name for name in columns if not any(r.has(name) for r in self.rows)]
        return f"rollouts have no column {' and '.join(missing)}" if missing else ""

    @cached_property
    def _no_rollouts(self) -> str:
        if self.has("warmstart/loss/mean"):
            return "a warm start learns from an expert's rollouts, not from sampled ones"
        return "" if self.view.rollout_steps else "no rollouts were kept"

    @cached_property
    def _tables(self) -> dict[int, Any]:
        tables: dict[int, Any] = {}
        size = 0
        for step in self.chosen_steps:
            try:
                table = self.view.read_rollouts(step)
                size += table.nbytes
                check_size(self.view.source, size, MOST_BYTES)
                tables[step] = table
            except RecordTooLarge:
                self.large_steps.append(step)
            except RecordError:  # damaged, or being written: the others are still worth reading
                tables[step] = None
        return tables
