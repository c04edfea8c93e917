"""Sampling: too cold, too few, cut off, never ending, or from another distribution than the
learner's.
"""

from typing import Any

from benchmarks.faults.fault import Fault, Strength, of_settings, policy
from torch import Tensor

from uptrend.policy.policy import Policy

UNUSED = 0
"""Token that no model here ever says."""


class Unending(Policy):
    """Policy that does not know its stop tokens."""

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """A token that never comes."""
        return (UNUSED,)


class TemperatureIgnored(Policy):
    """Policy that scores tokens at temperature 1, whatever they were sampled at."""

    def logprobs(
        self, hidden_mh: Tensor, targets_m: Tensor, _: float, **how: Any
    ) -> tuple[Tensor, Tensor]:
        """Score at temperature 1."""
        return super().logprobs(hidden_mh, targets_m, 1.0, **how)


class ShapingIgnored(Policy):
    """Policy that scores tokens in the whole distribution, whatever the sampler left out."""

    def logprobs(self, *given: Any, shaping: Any = None, **how: Any) -> tuple[Tensor, Tensor]:
        """Score as if every token could have been drawn."""
        del shaping
        return super().logprobs(*given, **how)


FAULTS = (
    Fault("sampling.temperature-low", (
        Strength("temperature-low", settings={"sampling.temperature": 0.02}, probe="temperature"),
        Strength("0.05", settings={"sampling.temperature": 0.05})), fix=("sampling.temperature",)),
    Fault("sampling.few-generations", (Strength(
        "groups-of-two", settings={"sampling.size": 2, "tasks.reward": "exact"}, probe="group-size"),),
        also=("advantage.dead-groups-low",), fix=("sampling.size",)),
    of_settings("sampling.entropy-collapse", {"learning.entropy": -5.0, "learning.lr": 3e-4}, steps=40, seeds=2,
                fix=("learning.entropy", "learning.clip_high")),
    of_settings("sampling.entropy-explosion", {"learning.entropy": 10.0, "learning.lr": 5e-4}, steps=30, seeds=2,
                fix=("learning.entropy", "sampling.temperature")),
    Fault("sampling.truncated-distribution", (
        Strength("temperature-ignored", policy(TemperatureIgnored), {"sampling.temperature": 0.6}),
        Strength("top-p", policy(ShapingIgnored), {"sampling.top_p": 0.6, "sampling.temperature": 1.0},
                 probe="agreement"),
        Strength("top-k 3", policy(ShapingIgnored), {"sampling.top_k": 3}))),
    Fault("sampling.no-stop", (Strength("stop ids unknown", policy(Unending), {"sampling.max_tokens": 16}),),
          also=("context.completion-truncated", "reward.gold-rejected")),
    of_settings("context.completion-truncated", {"sampling.max_tokens": 1}, {"sampling.max_tokens": 2}, probe="gold"),
    of_settings("context.prompt-truncated", {"sampling.max_prompt": 10}, {"sampling.max_prompt": 20}, probe="gold",
                fix=("sampling.max_prompt", "sampling.context")),
)  # fmt: skip
