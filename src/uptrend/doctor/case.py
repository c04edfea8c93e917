"""A run under diagnosis: its view, and what several checks read from its curves and rollouts, each
computed once.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from uptrend.doctor.groups import GroupedRollouts, group_rollouts
from uptrend.doctor.trend import (
    REWARD_METRIC,
    SIGNIFICANCE_LEVEL,
    Collapse,
    HeldoutChange,
    find_collapse,
    heldout_change,
    judge_trend,
)
from uptrend.records import Evidence, RecordError, RunView, Trend, TrendKind
from uptrend.records.errors import RecordTooLarge
from uptrend.records.files import MAX_TABLE_BYTES, check_size
from uptrend.records.table import RolloutTable
from uptrend.records.view import Floats
from uptrend.stats.trend import TrendTest, end, measure_trend, neighbor_noise, start

# At most so many steps are read. The first of them follow each other: an epoch's repeats show only
# there.
MAX_STEPS_READ = 8
FIRST_STEPS_READ = 3
# Bytes of the rollouts that are read, over all steps.
MAX_BYTES_READ = 2 * MAX_TABLE_BYTES
# Held-out change above which a run has learned; its whole interval must lie above.
MIN_LEARNED_CHANGE = 0.05
# Steps after which a run without any gradient is told so: one step's tasks may all be too hard by
# chance.
MIN_IDLE_STEPS = 3

T = TypeVar("T")


@dataclass(frozen=True)
class CurveSummary:
    """Finite values of a metric over a run; levels are medians of their points."""

    metric: str
    values: Floats
    initial: float
    """Level of the first twentieth: before fast changes."""
    first: float
    """Level of the first quarter."""
    last: float
    """Level of the last quarter."""
    step: int
    """The last step that has it."""
    trend: TrendTest | None
    """Its straight trend, where there are enough points."""

    @property
    def rises(self) -> bool:
        """True where it rose for certain."""
        return (
            self.trend is not None and self.trend.p < SIGNIFICANCE_LEVEL and self.trend.effect > 0
        )

    @property
    def falls(self) -> bool:
        """True where it fell for certain."""
        return (
            self.trend is not None and self.trend.p < SIGNIFICANCE_LEVEL and self.trend.effect < 0
        )


class Case:
    """One run, with everything that checks share."""

    def __init__(self, view: RunView) -> None:
        self.view = view
        self.curve = view.curve
        self.value = view.value
        self.has = view.has
        self.large_steps: list[int] = []
        """Steps whose rollouts were left out for their size."""
        self._known: dict[Hashable, Any] = {}
        self._summaries: dict[str, CurveSummary | None] = {}

    def cached(self, read: Callable[["Case"], T]) -> T:
        """Return a reading of this run, computed at the first call and kept for the next."""
        if read not in self._known:
            self._known[read] = read(self)
        found: T = self._known[read]
        return found

    def summary(self, metric: str) -> CurveSummary | None:
        """Return a metric's course over the run; None where it was not logged."""
        if metric not in self._summaries:
            steps, values = self.curve(metric)
            self._summaries[metric] = None
            if len(values):
                levels = start(values, 0.05), start(values), end(values)
                self._summaries[metric] = CurveSummary(
                    metric, values, *levels, int(steps[-1]), measure_trend(values)
                )
        return self._summaries[metric]

    def evidence(self, metric: str, text: str) -> Evidence:
        """Return the last level of a metric that was logged as evidence."""
        course = self.summary(metric)
        assert course is not None
        return Evidence(text, course.last, metric, course.step)

    @cached_property
    def cut_by_length(self) -> Floats:
        """Share of rollouts that ended by length, one value per point; 0 where only other endings
        are named.
        """
        metrics = self.view.metrics
        own = metrics.get("sampling/ended/length/share", np.full(len(self.view.steps), np.nan))
        others = [
            v
            for k, v in metrics.items()
            if k.startswith("sampling/ended/") and k.endswith("/share")
        ]
        known = np.isfinite(np.array(others)).any(axis=0) if others else np.isfinite(own)
        return np.where(np.isfinite(own), own, 0.0)[known]

    @cached_property
    def dead_groups(self) -> Floats:
        """Share of groups without spread, one value per point."""
        if self.has("advantage/dead/share"):
            return self.curve("advantage/dead/share")[1]
        if self.has("advantage/dead_low/share", "advantage/dead_high/share"):
            both = (
                self.view.metrics["advantage/dead_low/share"]
                + self.view.metrics["advantage/dead_high/share"]
            )
            return np.asarray(both[np.isfinite(both)])
        # A mean deviation of exactly 0 means that every group of the step was dead; anything above,
        # that one lived.
        return (np.abs(self.curve("reward/group_std/mean")[1]) < 1e-6).astype(np.float64)

    @cached_property
    def rollout_spread(self) -> float:
        """Distance between rewards of single rollouts: the unit in which a change of the mean is
        measured.
        """
        for metric in ("reward/std", "reward/group_std/mean"):
            values = self.curve(metric)[1]
            if len(values) and float(values.mean()) > 0:
                return float(values.mean())
        rewards, tops, bottoms = (
            self.curve(metric)[1] for metric in (REWARD_METRIC, "reward/max", "reward/min")
        )
        if len(tops) and len(bottoms) and float(tops.mean()) > float(bottoms.mean()):
            return float(tops.mean() - bottoms.mean()) / 2
        if len(tops) and len(rewards):
            # The most spread that rewards with this mean can have between these bounds: that of
            # right or wrong.
            mean = float(rewards.mean())
            low = min(0.0, float(rewards.min()))
            return math.sqrt(max(0.0, (float(tops.max()) - mean) * (mean - low)))
        # A step's mean is of four rollouts at least.
        return 2 * neighbor_noise(rewards)

    @cached_property
    def reward_range(self) -> tuple[float, float]:
        """The least and the largest reward that is known of; a reward that is never negative may be
        0.
        """
        values = np.concatenate(
            [self.curve(metric)[1] for metric in (REWARD_METRIC, "reward/min", "reward/max")]
        )
        return min(float(values.min()), 0.0), float(values.max())

    def scaled_reward(self, value: float) -> float:
        """Place a reward between the least and the largest seen: 0 at the bottom, 1 at the top."""
        low, high = self.reward_range
        return (value - low) / (high - low) if high > low else 0.5

    @cached_property
    def kl_weight(self) -> float:
        """Weight of the KL penalty, as the config says or the loss shows; 0 where nothing shows
        one.
        """
        told = self.value("learning.kl.beta")
        return (
            float(told)
            if isinstance(told, int | float)
            else max(0.0, self._loss_ratio("kl/reference/mean"))
        )

    @cached_property
    def entropy_weight(self) -> float:
        """Weight of the entropy bonus, negative where low entropy is paid; 0 where nothing shows
        one.
        """
        told = self.value("learning.entropy")
        return (
            float(told)
            if isinstance(told, int | float)
            else -self._loss_ratio("learner/entropy/mean")
        )

    def _loss_ratio(self, metric: str) -> float:
        """Return the ratio of the loss to a metric that it follows all run long; 0 where it does
        not.
        """
        # loss = policy part + beta · KL − bonus · entropy. With centered advantages and one update
        # per batch the policy part is 0 by construction, so such a loss shows a weight that nobody
        # logged.
        if not self.has("loss/total", metric):
            return 0.0
        loss = self.view.metrics["loss/total"]
        values = self.view.metrics[metric]
        both = np.isfinite(loss) & np.isfinite(values)
        x = values[both]
        y = loss[both]
        if len(x) < 10 or np.ptp(x) == 0 or np.ptp(y) == 0 or abs(np.corrcoef(x, y)[0, 1]) < 0.95:
            return 0.0
        slope = float(x @ y / (x @ x))
        # A line through the origin may leave a tenth of the loss, in squares, unexplained.
        return slope if float(np.sum((y - slope * x) ** 2)) < 0.1 * float(y @ y) else 0.0

    @cached_property
    def steps_read(self) -> tuple[int, ...]:
        """Steps whose rollouts are read: the first, the last, and some between; empty where none
        can be.
        """
        steps = sorted(self.view.rollout_steps) if not self._no_rollouts else []
        if len(steps) <= MAX_STEPS_READ:
            return tuple(steps)
        rest = (
            np.linspace(FIRST_STEPS_READ - 1, len(steps) - 1, MAX_STEPS_READ - FIRST_STEPS_READ + 1)
            .round()
            .astype(int)[1:]
        )
        return (*steps[:FIRST_STEPS_READ], *(steps[i] for i in rest))

    @cached_property
    def tables(self) -> list[RolloutTable]:
        """Rollouts of the steps that are read; empty where none were kept."""
        return [
            RolloutTable(step, table)
            for step, table in self._tables.items()
            if table is not None and table.num_rows
        ]

    def tables_with(self, *columns: str) -> list[RolloutTable]:
        """Return the rollouts of the steps that have all of these columns."""
        return [r for r in self.tables if r.has(*columns)]

    @cached_property
    def grouped_steps(self) -> list[GroupedRollouts]:
        """Rollouts by true groups, of the steps that have group ids and rewards."""
        return [g for g in map(group_rollouts, self.tables) if g is not None]

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
            min(len(gradient), len(dead)) >= MIN_IDLE_STEPS
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
    def has_learned(self) -> bool:
        """True where held-out tasks show beyond doubt that the model got better, whatever its noisy
        rewards say.
        """
        change = self.heldout
        return (
            change is not None
            and change.interval is not None
            and change.interval[0] > MIN_LEARNED_CHANGE
        )

    @property
    def has_gained(self) -> bool:
        """True where held-out scores surely rose, however little: only another policy answers fixed
        tasks better.
        """
        change = self.heldout
        return change is not None and change.effect > 0 and change.chance < SIGNIFICANCE_LEVEL

    def why_no_rollouts(self, columns: Sequence[str] = ()) -> str:
        """Return why rollouts with these columns can't be read; empty where they can."""
        if self._no_rollouts or not self.tables:
            return self._no_rollouts or "the rollouts can't be read"
        missing = [name for name in columns if not any(r.has(name) for r in self.tables)]
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
        for step in self.steps_read:
            try:
                table = self.view.read_rollouts(step)
                size += table.nbytes
                check_size(self.view.source, size, MAX_BYTES_READ)
                tables[step] = table
            except RecordTooLarge:
                self.large_steps.append(step)
            except RecordError:  # damaged, or being written: the others are still worth reading
                tables[step] = None
        return tables
