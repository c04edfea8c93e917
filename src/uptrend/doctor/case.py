"""A run under diagnosis: its view, and what several checks read from it, each computed once."""

from collections.abc import Sequence
from functools import cached_property

from uptrend.doctor import collapse, curves, held_out, kept, penalties, trend
from uptrend.doctor.rows import Rows
from uptrend.records import RunView, Trend
from uptrend.records.view import Floats


class Case:
    """One run, with everything that checks share."""

    def __init__(self, view: RunView) -> None:
        self.view = view
        self._curves: dict[str, curves.Curve | None] = {}

    def course(self, metric: str) -> curves.Curve | None:
        """Return a metric's course over the run; None where it was not logged."""
        if metric not in self._curves:
            self._curves[metric] = curves.course(self.view, metric)
        return self._curves[metric]

    @cached_property
    def rows(self) -> list[Rows]:
        """Rollouts of the steps that are read (the first, the last and some between); empty where none were kept."""
        return kept.read_rows(self.view)

    @cached_property
    def trend(self) -> Trend:
        """Trend of the training reward."""
        return trend.trend_of(self.view)

    @cached_property
    def collapse(self) -> collapse.Collapse | None:
        """A lasting fall of the reward after progress; None where there is none."""
        return collapse.find_collapse(self.view)

    @cached_property
    def held_out(self) -> held_out.HeldOutChange | None:
        """Change of the held-out score from the first evaluation to the last; None where it was not measured twice."""
        return held_out.held_out_change(self.view)

    @cached_property
    def is_learned(self) -> bool:
        """True where the task is as good as solved."""
        return held_out.is_learned(self.view)

    @cached_property
    def dead_groups(self) -> Floats:
        """Share of groups without spread, one value per point."""
        return curves.dead_groups(self.view)

    @cached_property
    def cut_by_length(self) -> Floats:
        """Share of rollouts that ended by length, one value per point."""
        return curves.cut_by_length(self.view)

    @cached_property
    def rollout_spread(self) -> float:
        """Distance between rewards of single rollouts: the unit in which a change of the mean is measured."""
        return curves.rollout_spread(self.view)

    @cached_property
    def kl_weight(self) -> float:
        """Weight of the KL penalty; 0 where it is unknown."""
        return penalties.kl_weight(self.view)

    @cached_property
    def entropy_weight(self) -> float:
        """Weight of the entropy bonus; 0 where it is unknown."""
        return penalties.entropy_weight(self.view)

    def why_no_rollouts(self, columns: Sequence[str] = ()) -> str:
        """Return why rollouts with these columns can't be read; empty where they can."""
        lacking = kept.cannot_tell(self.view, [""], *columns)
        return lacking[0].needs if lacking else ""
