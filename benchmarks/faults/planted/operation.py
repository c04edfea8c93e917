"""A run as a whole: it collapses, is resumed wrongly, or its processes drift apart."""

from pathlib import Path
from typing import Any

from benchmarks.faults.fault import Fault, Strength, learner, of_parts, wrapped

from uptrend.policy.optimizer import Optimizer
from uptrend.policy.policy import Policy
from uptrend.policy.weights import digest
from uptrend.records import Run, RunDirectory
from uptrend.training.components import RunContext
from uptrend.training.observer import StepRecord


class TwoProcesses:
    """Observer that writes digests of two processes, the second of which missed a broadcast."""

    def __init__(self, context: RunContext) -> None:
        self._flat = context.policy.flat

    def before(self, run: Run) -> None:
        """Open the run's event log."""
        self._directory = RunDirectory(run.path)

    def step(self, record: StepRecord) -> None:
        """Write both digests of a step."""
        first = self._flat.values.data[:1]
        own = first.clone()
        for process in (0, 1) if record.step else ():
            first.copy_(own + process)
            self._directory.event(
                "digest", step=record.step, process=process, digest=digest(self._flat)
            )
        first.copy_(own)

    def after(self, run: Run) -> None:
        """Do nothing."""


def _jumping(rate: Any) -> Any:
    """Multiply the rate by 100 in the middle of the run."""
    return lambda learning, step: rate(learning, step) * (100.0 if step >= 20 else 1.0)


def _forgetful(restore: Any) -> Any:
    """Restore the step and the place in the data, and not the weights."""

    def run(path: Path, policy: Policy, optimizer: Optimizer) -> Any:
        before = policy.flat.values.data.clone()
        state = restore(path, policy, optimizer)
        policy.flat.values.data.copy_(before)
        return state

    return run


FAULTS = (
    Fault("run.ranks-diverge", (Strength("planted", observers=lambda context: [TwoProcesses(context)]),)),
    Fault("run.collapsed", (Strength("rate × 100 at step 20", learner(schedule=_jumping)),), steps=40, seeds=2,
          also=("optimizer.lr-large",)),
    of_parts("run.resume-jump", wrapped(restore=_forgetful), {"learning.lr": 5e-4, "checkpoints.every": 25}, steps=45,
             seeds=2, resumed_at=25),
)  # fmt: skip
