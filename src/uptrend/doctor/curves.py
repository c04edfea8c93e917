"""Readings of a run's curves that several checks share, each computed once."""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from uptrend.records import Evidence, RunView
from uptrend.records.view import Floats
from uptrend.stats.trend import TrendTest, end, measure_trend, neighbor_noise, start

REWARD = "reward/mean"
# A trend with a smaller p-value is taken for one.
LEVEL = 0.05


@dataclass(frozen=True)
class Curve:
    """Finite values of a metric over a run; levels are medians of their points."""

    metric: str
    values: Floats
    begin: float
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
        return self.trend is not None and self.trend.p < LEVEL and self.trend.effect > 0

    @property
    def falls(self) -> bool:
        """True where it fell for certain."""
        return self.trend is not None and self.trend.p < LEVEL and self.trend.effect < 0


class RunCurves:
    """The curves of one run."""

    def __init__(self, view: RunView) -> None:
        self.view = view
        self.curve = view.curve
        self.value = view.value
        self.has = view.has
        self._courses: dict[str, Curve | None] = {}

    def course(self, metric: str) -> Curve | None:
        """Return a metric's course over the run; None where it was not logged."""
        if metric not in self._courses:
            steps, values = self.curve(metric)
            self._courses[metric] = None
            if len(values):
                levels = start(values, 0.05), start(values), end(values)
                self._courses[metric] = Curve(
                    metric, values, *levels, int(steps[-1]), measure_trend(values)
                )
        return self._courses[metric]

    def evidence(self, metric: str, text: str) -> Evidence:
        """Return the last level of a metric that was logged as evidence."""
        course = self.course(metric)
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
            self.curve(metric)[1] for metric in (REWARD, "reward/max", "reward/min")
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
            [self.curve(metric)[1] for metric in (REWARD, "reward/min", "reward/max")]
        )
        return min(float(values.min()), 0.0), float(values.max())

    def height(self, value: float) -> float:
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


def trend_until(view: RunView, metric: str, step: int, after: int = -1) -> TrendTest | None:
    """Return a metric's trend up to a step, and after another: the steps that held-out scores are
    compared over.
    """
    steps, values = view.curve(metric)
    return measure_trend(values[(steps > after) & (steps <= step)])
