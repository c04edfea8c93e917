"""The penalty for leaving the reference: too heavy, of the wrong sign, or against the wrong
model.
"""

from dataclasses import replace
from typing import Any

from benchmarks.faults.fault import Fault, Strength, learner, of_settings, policy
from benchmarks.faults.planted.signal import HARD
from torch import Tensor

from uptrend.config import Learning
from uptrend.policy.policy import Policy


class OtherReference(Policy):
    """Policy whose reference is another model."""

    def hidden(self, *given: Any, reference: bool = False) -> Tensor:
        """Stretch the reference's hidden states."""
        return super().hidden(*given, reference=reference) * (1.2 if reference else 1.0)


def _negated(objective: Any) -> Any:
    """Compute KL with the wrong sign, in the loss and in the metrics."""

    def run(logprobs: Tensor, entropy: Tensor, part: Any, learning: Learning) -> Any:
        kl = replace(learning.kl, beta=-learning.kl.beta)
        loss, sums = objective(logprobs, entropy, part, replace(learning, kl=kl))
        return loss, replace(sums, kl=-sums.kl)

    return run


def _detached(objective: Any) -> Any:
    """Compute KL for the metrics alone: the loss has a penalty without a gradient."""

    def run(logprobs: Tensor, entropy: Tensor, part: Any, learning: Learning) -> Any:
        _, sums = objective(logprobs, entropy, part, learning)
        kl = replace(learning.kl, beta=0.0)
        loss, _ = objective(logprobs, entropy, part, replace(learning, kl=kl))
        return loss, sums

    return run


FAULTS = (
    Fault("kl.sign", (Strength("kl-negated", learner(objective=_negated), {
        "learning.kl.beta": 0.5, "learning.skip_dead": False}, probe="kl-sign"),)),
    Fault("kl.no-gradient", (Strength("kl-detached", learner(objective=_detached), {
        "learning.kl.beta": 0.5, "learning.skip_dead": False}, probe="kl-sign"),), also=("kl.runaway",)),
    Fault("kl.reference", (Strength("other-reference", policy(OtherReference), {
        "learning.kl.beta": 0.1, "learning.skip_dead": False}, probe="reference"),)),
    of_settings("kl.strangles", {"learning.kl.beta": 50.0}, {"learning.kl.beta": 10.0}, steps=40, seeds=2),
    Fault("kl.dead-group-pull", (Strength("hard tasks", settings={**HARD, "learning.kl.beta": 0.5}),), steps=15,
          also=("advantage.dead-groups-low",), fix=("learning.kl.beta", "tasks.", "sampling.size")),
    of_settings("kl.runaway", {"learning.kl.beta": 1e-4, "learning.lr": 3e-3}, steps=40, seeds=2,
                also=("optimizer.lr-large",), fix=("learning.kl.beta", "learning.lr")),
)  # fmt: skip
