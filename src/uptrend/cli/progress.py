"""What a terminal view knows of a run while it trains."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from uptrend.cli.summary import HeldOutSummary, held_out
from uptrend.records import Run
from uptrend.training.observer import StepRecord


@dataclass
class RunProgress:
    """A run so far."""

    clock: Callable[[], float] = time.monotonic
    """Seconds; for the time left."""
    title: str = ""
    """The run's name, model and taskset."""
    start: int = 0
    """The step whose weights it began with."""
    steps: int = 0
    """The step that it shall end with."""
    metrics: list[dict[str, Any]] = field(default_factory=list)
    """Its metrics lines, those from before a resume included."""
    evaluations: list[HeldOutSummary] = field(default_factory=list)
    """Its evaluations, likewise."""
    _began: tuple[float, int] | None = None
    _latest: tuple[float, int] | None = None

    def begin(self, run: Run) -> None:
        """Start from what the run directory holds."""
        config = run.config
        self.title = f"{run.name} · {config['model']['name']} · {config['tasks']['name']}"
        self.start, self.steps = run.start, run.steps or 0
        self.metrics = list(run.metric_lines)
        self.evaluations = held_out(run)

    def add(self, record: StepRecord) -> None:
        """Take in what the loop showed."""
        if record.metrics:
            self.metrics.append(record.metrics)
        if record.evaluation is not None:
            self.evaluations.append(HeldOutSummary.of(record.evaluation))
        self._latest = self.clock(), self.step
        self._began = self._began or self._latest

    @property
    def step(self) -> int:
        """The last step done."""
        return int(self.metrics[-1]["step"]) if self.metrics else self.start

    @property
    def seconds_left(self) -> float | None:
        """How long the rest will take at the pace so far; None until there is a pace."""
        if self._began is None or self._latest is None or self._latest[1] <= self._began[1]:
            return None
        (start, first), (now, step) = self._began, self._latest
        pace = (now - start) / (step - first)
        return max(0.0, pace * (self.steps - step) - (self.clock() - now))

    def curve(self, key: str) -> list[float | None]:
        """A metric, one value a step."""
        return [line.get(key) for line in self.metrics]

    def last(self, key: str) -> float | None:
        """A metric's last value."""
        return self.metrics[-1].get(key) if self.metrics else None

    @property
    def before(self) -> HeldOutSummary | None:
        """The evaluation before the first step."""
        return next((e for e in self.evaluations if e.step == self.start), None)

    @property
    def after(self) -> HeldOutSummary | None:
        """The last evaluation of a trained model."""
        return next((e for e in reversed(self.evaluations) if e.step > self.start), None)
