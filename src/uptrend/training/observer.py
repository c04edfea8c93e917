"""How others watch the loop without the loop knowing them: the doctor, the terminal view and trackers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from uptrend.records import Evaluation, Rollout, Run


@dataclass(frozen=True)
class StepRecord:
    """What an observer is shown after each step; step 0 is the evaluation before the first one."""

    step: int
    """Which step."""
    metrics: dict[str, Any]
    """Its metrics line; empty for step 0."""
    rollouts: Sequence[Rollout]
    """Its rollouts, with all that the learner computed on them; empty for step 0."""
    evaluation: Evaluation | None
    """The evaluation after it, if there was one."""


@dataclass(frozen=True)
class Stop:
    """An observer's wish to end the run after this step."""

    reason: str
    """Why, in one sentence."""


class Observer(Protocol):
    """Called by the loop, on its thread: be quick."""

    def before(self, run: Run) -> None:
        """The run directory exists and nothing has been sampled yet."""

    def step(self, record: StepRecord) -> Stop | None:
        """A step is done."""

    def after(self, run: Run) -> None:
        """The run has ended, however it ended."""
