"""Interface through which others watch the loop: the doctor, the terminal view and trackers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from uptrend.records import Evaluation, Rollout, Run, Stop

__all__ = ["Observer", "StepRecord", "Stop"]


@dataclass(frozen=True)
class StepRecord:
    """Step as an observer sees it; step 0 is the evaluation before the first one."""

    step: int
    metrics: dict[str, Any]  # its metrics line; empty for step 0
    # Its rollouts, with everything that the learner computed on them; empty for step 0.
    rollouts: Sequence[Rollout]
    evaluation: Evaluation | None  # on the held-out set; None if none was due
    # Evaluations on further held-out sets, by label.
    sets: Mapping[str, Evaluation] = field(default_factory=dict)


class Observer(Protocol):
    """Called by the loop, on its thread: be quick."""

    def before(self, run: Run) -> None:
        """Called when the run directory exists and nothing has been sampled yet."""

    def step(self, record: StepRecord) -> Stop | None:
        """Called after each step; return a Stop to end the run here."""

    def after(self, run: Run) -> None:
        """Called when the run has ended, however it ended."""
