"""A run under diagnosis: its view, and readings of its curves and rollouts that several checks
share, each computed once.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from uptrend.doctor.groups import GroupedRollouts, group_rollouts
from uptrend.doctor.trend import (
    MIN_TREND_POINTS,
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
from uptrend.records.view import Floats, are_rounded
from uptrend.stats.trend import TrendTest, end, measure_trend, neighbor_noise, start

# Steps whose rollouts are read. The first of them follow each other, because only there do repeats
# within an epoch show.
MAX_STEPS_READ = 8
FIRST_STEPS_READ = 3
# Bytes of the rollouts that are read, over all steps.
MAX_BYTES_READ = 2 * MAX_TABLE_BYTES

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
    """Last step that has a value."""
    trend: TrendTest | None
    """Straight trend; None with too few points."""

    @property
    def rises(self) -> bool:
        """True if it rose for certain."""
        line = self.trend
        return line is not None and line.p < SIGNIFICANCE_LEVEL and line.effect > 0

    @property
    def falls(self) -> bool:
        """True if it fell for certain."""
        line = self.trend
        return line is not None and line.p < SIGNIFICANCE_LEVEL and line.effect < 0


# Part of a curve that is its beginning, before fast changes.
INITIAL_SHARE = 0.05
# Points below which the time of a change is not judged, and deviations of noise that a change must
# exceed.
MIN_ONSET_POINTS = 4
ONSET_DEVIATIONS = 3.0
# Standard deviation within groups that is 0 up to rounding.
MAX_DEAD_DEVIATION = 1e-6
# Rollouts whose mean is a point of the reward curve, at the least.
MIN_ROLLOUTS_PER_POINT = 4
# A loss follows a metric all run long if it has this many points of both, correlates with it, and a
# line through the origin leaves no more than this part of its squares unexplained.
MIN_LOSS_POINTS = 10
MIN_LOSS_CORRELATION = 0.95
MAX_UNEXPLAINED_LOSS = 0.1
# Held-out change above which a run has learned; its whole interval must lie above.
MIN_LEARNED_CHANGE = 0.05
# Steps from which on a run without any gradient is certainly idle: the tasks of one step may all be
# too hard by chance.
MIN_IDLE_STEPS = 3
# Share of dead groups that is all of them up to rounding.
ALL_GROUPS_SHARE = 0.999


class Case:
    """One run, with everything that checks share."""

    def __init__(self, view: RunView) -> None:
        self.view = view
        self.curve = view.curve
        self.value = view.value
        self.has = view.has
        self._readings: dict[Hashable, Any] = {}
        self._summaries: dict[str, CurveSummary | None] = {}

    def cached(self, read: Callable[["Case"], T]) -> T:
        """Return a reading of this run, computed at the first call."""
        if read not in self._readings:
            self._readings[read] = read(self)
        reading: T = self._readings[read]
        return reading

    def summary(self, metric: str) -> CurveSummary | None:
        """Return the summary of a metric's curve; None if it was not logged."""
        if metric not in self._summaries:
            self._summaries[metric] = self._summarize(metric)
        return self._summaries[metric]

    def _summarize(self, metric: str) -> CurveSummary | None:
        steps, values = self.curve(metric)
        if not len(values):
            return None
        return CurveSummary(
            metric,
            values,
            initial=start(values, INITIAL_SHARE),
            first=start(values),
            last=end(values),
            step=int(steps[-1]),
            trend=measure_trend(values),
        )

    def evidence(self, metric: str, text: str) -> Evidence:
        """Return evidence with the last level of a metric that was logged."""
        summary = self.summary(metric)
        assert summary is not None
        return Evidence(text, summary.last, metric, summary.step)

    def onset(self, metric: str) -> int:
        """Return the first step from which a metric stays nearer to its last level than to its
        first value; 0 where it was there from the first, before any update.
        """
        steps, values = self.curve(metric)
        if len(values) < MIN_ONSET_POINTS:
            return 0
        last = end(values)
        noise = neighbor_noise(values)
        if abs(last - values[0]) <= ONSET_DEVIATIONS * noise:
            return 0
        # A median of three points: one stray point is no return.
        padded = np.pad(values, 1, mode="edge")
        smooth = np.median([padded[:-2], padded[1:-1], padded[2:]], axis=0)
        is_early = np.abs(smooth - last) >= np.abs(smooth - values[0])
        early_points = np.flatnonzero(is_early)
        point = int(early_points[-1]) + 1 if len(early_points) else 1
        return int(steps[min(point, len(steps) - 1)])

    @cached_property
    def is_excerpt(self) -> bool:
        """True for a few lines of another trainer's log: too few for a trend, and pasted because
        they look like the others.
        """
        is_log = self.view.trainer != "uptrend" and not self.view.rollout_steps
        return is_log and 0 < len(self.view.steps) < MIN_TREND_POINTS

    @cached_property
    def has_rounded_zeros(self) -> bool:
        """True for a log whose numbers all have a few decimals: a 0 in it may be a small number."""
        return are_rounded(self.view.columns)

    @cached_property
    def cut_by_length(self) -> Floats:
        """Share of rollouts that ended by length, one value per point; 0 where only other endings
        are named.
        """
        ending_shares: list[Floats] = []
        for name, values in self.view.metrics.items():
            if name.startswith("sampling/ended/") and name.endswith("/share"):
                ending_shares.append(values)
        if not ending_shares:
            return np.zeros(0)
        is_known = np.isfinite(ending_shares).any(axis=0)
        unknown = np.full(len(self.view.steps), np.nan)
        length_share = self.view.metrics.get("sampling/ended/length/share", unknown)
        return np.where(np.isfinite(length_share), length_share, 0.0)[is_known]

    @cached_property
    def dead_groups(self) -> Floats:
        """Share of groups without spread, one value per point."""
        if self.has("advantage/dead/share"):
            return self.curve("advantage/dead/share")[1]
        if self.has("advantage/dead_low/share", "advantage/dead_high/share"):
            low = self.view.metrics["advantage/dead_low/share"]
            high = self.view.metrics["advantage/dead_high/share"]
            either = low + high
            return np.asarray(either[np.isfinite(either)])
        # A mean deviation of exactly 0 means that every group of the step was dead; anything above,
        # that one lived.
        deviation = self.curve("reward/group_std/mean")[1]
        if not len(deviation) and self.has("reward/min", "reward/max"):
            # Nor can a group differ where the lowest reward of the step is the highest. Of other
            # steps nothing is known, so that one such step is needed for them to count as live.
            span = self.view.metrics["reward/max"] - self.view.metrics["reward/min"]
            span = span[np.isfinite(span)]
            deviation = span if (span < MAX_DEAD_DEVIATION).any() else span[:0]
        return (np.abs(deviation) < MAX_DEAD_DEVIATION).astype(np.float64)

    @cached_property
    def rollout_spread(self) -> float:
        """Standard deviation between rewards of single rollouts, in which a change of the mean is
        measured; estimated if it was not logged.
        """
        for metric in ("reward/std", "reward/group_std/mean"):
            values = self.curve(metric)[1]
            if len(values) and float(values.mean()) > 0:
                return float(values.mean())

        rewards = self.curve(REWARD_METRIC)[1]
        highest = self.curve("reward/max")[1]
        lowest = self.curve("reward/min")[1]
        if len(highest) and len(lowest) and float(highest.mean()) > float(lowest.mean()):
            return float(highest.mean() - lowest.mean()) / 2
        if len(highest) and len(rewards):
            # The largest deviation of rewards with this mean between these bounds is that of right
            # or wrong: √((high - mean)(mean - low)).
            mean = float(rewards.mean())
            high = float(highest.max())
            low = min(0.0, float(rewards.min()))
            return math.sqrt(max(0.0, (high - mean) * (mean - low)))
        # The noise of a mean is that of single rollouts / √(rollouts).
        return math.sqrt(MIN_ROLLOUTS_PER_POINT) * neighbor_noise(rewards)

    @cached_property
    def reward_range(self) -> tuple[float, float]:
        """Lowest and highest reward that are known; a reward that is never negative may be 0."""
        curves = [self.curve(metric)[1] for metric in (REWARD_METRIC, "reward/min", "reward/max")]
        values = np.concatenate(curves)
        return min(float(values.min()), 0.0), float(values.max())

    def scaled_reward(self, value: float) -> float:
        """Return a reward as its height in the range of the run: 0 at the bottom, 1 at the top."""
        low, high = self.reward_range
        return (value - low) / (high - low) if high > low else 0.5

    @cached_property
    def kl_weight(self) -> float:
        """Weight of the KL penalty, from the config or else from the loss; 0 if neither shows
        one.
        """
        beta = self.value("learning.kl.beta")
        if isinstance(beta, int | float):
            return float(beta)
        return max(0.0, self._loss_ratio("kl/reference/mean"))

    @cached_property
    def entropy_weight(self) -> float:
        """Weight of the entropy bonus, from the config or else from the loss; 0 if neither shows
        one. It is negative where low entropy is paid.
        """
        weight = self.value("learning.entropy")
        if isinstance(weight, int | float):
            return float(weight)
        return -self._loss_ratio("learner/entropy/mean")

    def _loss_ratio(self, metric: str) -> float:
        """Return the ratio of the loss to a metric that it follows all run long; 0 if it does
        not.
        """
        # loss = policy part + beta · KL − bonus · entropy. With centered advantages and one update
        # per batch the policy part is 0 by construction, so such a loss shows a weight that was not
        # logged.
        if not self.has("loss/total", metric):
            return 0.0
        loss = self.view.metrics["loss/total"]
        values = self.view.metrics[metric]
        has_both = np.isfinite(loss) & np.isfinite(values)
        x = values[has_both]
        y = loss[has_both]
        if len(x) < MIN_LOSS_POINTS or np.ptp(x) == 0 or np.ptp(y) == 0:
            return 0.0
        if abs(np.corrcoef(x, y)[0, 1]) < MIN_LOSS_CORRELATION:
            return 0.0
        slope = float(x @ y / (x @ x))
        unexplained = float(np.sum((y - slope * x) ** 2))
        return slope if unexplained < MAX_UNEXPLAINED_LOSS * float(y @ y) else 0.0

    @cached_property
    def tables(self) -> list[RolloutTable]:
        """Rollouts of the steps that are read, one table per step; empty if none were kept."""
        return [
            RolloutTable(step, table)
            for step, table in self._table_by_step.items()
            if table is not None and table.num_rows
        ]

    def tables_with(self, *columns: str) -> list[RolloutTable]:
        """Return the rollouts of the steps that have all of these columns."""
        return [table for table in self.tables if table.has(*columns)]

    @cached_property
    def grouped_steps(self) -> list[GroupedRollouts]:
        """Rollouts by true groups, of the steps that have group ids and rewards."""
        steps = map(group_rollouts, self.tables)
        return [step for step in steps if step is not None]

    @cached_property
    def steps_read(self) -> tuple[int, ...]:
        """Steps whose rollouts are read: the first, the last, and some between; empty if none can
        be.
        """
        steps = sorted(self.view.rollout_steps) if not self._no_rollouts else []
        if len(steps) <= MAX_STEPS_READ:
            return tuple(steps)
        # The others lie evenly between the last of the first steps, which is left out, and the end.
        count = MAX_STEPS_READ - FIRST_STEPS_READ + 1
        places = np.linspace(FIRST_STEPS_READ - 1, len(steps) - 1, count).round().astype(int)[1:]
        return (*steps[:FIRST_STEPS_READ], *(steps[place] for place in places))

    @cached_property
    def damaged_steps(self) -> tuple[int, ...]:
        """Steps, of those that are read and done, whose rollouts are damaged."""
        last = int(self.view.steps[-1]) if len(self.view.steps) else -1
        return tuple(
            step for step, table in self._table_by_step.items() if table is None and step <= last
        )

    @property
    def large_steps(self) -> tuple[int, ...]:
        """Steps whose rollouts are left out for their size."""
        return tuple(step for step in self.steps_read if step not in self._table_by_step)

    def why_no_rollouts(self, columns: Sequence[str] = ()) -> str:
        """Return why rollouts with these columns can't be read; empty if they can."""
        if self._no_rollouts or not self.tables:
            return self._no_rollouts or "the rollouts can't be read"
        missing = [name for name in columns if not self.tables_with(name)]
        return f"rollouts have no column {' and '.join(missing)}" if missing else ""

    @cached_property
    def _no_rollouts(self) -> str:
        if self.has("warmstart/loss/mean"):
            return "a warm start learns from an expert's rollouts, not from sampled ones"
        return "" if self.view.rollout_steps else "no rollouts were kept"

    @cached_property
    def _table_by_step(self) -> dict[int, pa.Table | None]:
        """Rollouts of each step; None if they are damaged, absent if they are too large."""
        tables: dict[int, pa.Table | None] = {}
        size_bytes = 0
        for step in self.steps_read:
            try:
                table = self.view.read_rollouts(step)
                size_bytes += table.nbytes
                check_size(self.view.source, size_bytes, MAX_BYTES_READ)
                tables[step] = table
            except RecordTooLarge:
                continue
            except RecordError:  # damaged, or being written: the others are still worth reading
                tables[step] = None
        return tables

    @cached_property
    def trend(self) -> Trend:
        """Trend of the training reward."""
        return judge_trend(self)

    @property
    def is_learning(self) -> bool:
        """True if the training reward rises."""
        return self.trend.kind is TrendKind.LEARNING

    @property
    def is_stuck(self) -> bool:
        """True if the training reward surely does not rise."""
        return self.trend.kind in (TrendKind.FLAT, TrendKind.FALLING)

    @cached_property
    def is_certainly_idle(self) -> bool:
        """True if every group of every step was dead and every gradient 0: a fact of few steps,
        not a trend.
        """
        gradient = self.curve("gradient/norm/before")[1]
        dead = self.dead_groups
        if min(len(gradient), len(dead)) < MIN_IDLE_STEPS:
            return False
        return not gradient.any() and bool((dead > ALL_GROUPS_SHARE).all())

    @cached_property
    def collapse(self) -> Collapse | None:
        """Lasting fall of the reward after progress; None if there was none."""
        return find_collapse(self)

    @cached_property
    def heldout(self) -> HeldoutChange | None:
        """Change of the held-out score from the first evaluation to the last; None if it was not
        measured twice.
        """
        return heldout_change(self.view)

    @property
    def has_learned(self) -> bool:
        """True if held-out tasks show beyond doubt that the model got better, whatever its noisy
        rewards say.
        """
        change = self.heldout
        if change is None or change.interval is None:
            return False
        return change.interval[0] > MIN_LEARNED_CHANGE

    @property
    def has_gained(self) -> bool:
        """True if held-out scores surely rose, however little: only another policy answers fixed
        tasks better.
        """
        change = self.heldout
        return change is not None and change.effect > 0 and change.chance < SIGNIFICANCE_LEVEL
