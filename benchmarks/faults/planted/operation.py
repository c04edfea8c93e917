"""What happens to a run as a whole: it collapses, or is resumed wrongly."""

from typing import Any

import torch
from benchmarks.faults.fault import Fault, Strength, of_plant
from tests.doctor.planted_faults import swapped

from uptrend.policy.measure import digest
from uptrend.training import learner, loop


def _jumping(at: int, by: float) -> Any:
    """A schedule that multiplies the rate in the middle of the run."""

    def wrap(rate: Any) -> Any:
        return lambda learning, step: rate(learning, step) * (by if step >= at else 1.0)

    return lambda: swapped(learner, "learning_rate", wrap)


def _forgetful(load: Any) -> Any:
    """A resume that restores the step and the place in the data, and not the weights."""

    def run(path: Any, policy: Any, optimizer: Any) -> Any:
        before = policy.flat.values.data.clone()
        state = load(path, policy, optimizer)
        policy.flat.values.data.copy_(before)
        return state

    return run


def _two_processes(tell: Any) -> Any:
    """A second process missed a broadcast; both write the fingerprints of their weights down after every step."""

    def run(parts: Any, record: Any) -> Any:
        flat = parts.policy.flat
        for process in (0, 1) if record.step else ():
            with torch.no_grad():
                flat.values.data[0] += process
                parts.directory.event("digest", step=record.step, process=process, digest=digest(flat))
                flat.values.data[0] -= process
        return tell(parts, record)

    return run


FAULTS = (
    of_plant("run.ranks-diverge", lambda: swapped(loop, "tell_observers", _two_processes)),
    Fault("run.collapsed", (Strength("rate × 100 at step 20", _jumping(20, 100.0)),), steps=40, seeds=2,
          also=("optimizer.lr-large",)),
    of_plant("run.resume-jump", lambda: swapped(loop, "load_checkpoint", _forgetful),
             {"learning.lr": 5e-4, "checkpoints.every": 25}, steps=45, seeds=2),
)  # fmt: skip
RESUMED_AT = {"run.resume-jump": 25}
"""Faults of resuming: the step at which the run is interrupted."""
