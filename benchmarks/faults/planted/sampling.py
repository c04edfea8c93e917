"""Sampling: too cold, too few, cut off, never ending, or from another distribution than the
learner's.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

from benchmarks.faults.fault import Alter, Fault, Strength, of_settings, policy, wrapped
from benchmarks.faults.planted.sync import SamplerWrapper
from torch import Tensor

from uptrend.policy.policy import Policy
from uptrend.rollout.inprocess import InProcessSampler
from uptrend.rollout.sampler import Extension, Limits
from uptrend.training.components import RunContext

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


class FilesApplied(SamplerWrapper):
    """Server that takes settings from the model's own generation config, and tells nobody what it
    left out.
    """

    def __init__(self, trained: Policy, **settings: float) -> None:
        super().__init__(InProcessSampler(trained))
        self._settings = settings

    async def extend(self, stream: int, ids: Sequence[int], limits: Limits, seed: int) -> Extension:
        """Sample with the settings of the model's files."""
        limits = replace(limits, **self._settings)  # type: ignore[arg-type]
        return replace(await super().extend(stream, ids, limits, seed), support=None)


def _files_with(**settings: float) -> Alter:
    """Give the model a generation config with these settings, and a sampler that applies them."""

    def alter(context: RunContext) -> RunContext:
        core = context.policy.core
        core.generation_config = deepcopy(core.generation_config)
        core.generation_config.do_sample = True  # else the others are refused when it is saved
        for name, value in settings.items():
            setattr(core.generation_config, name, value)
        sample = wrapped(sampler=lambda _: lambda trained: FilesApplied(trained, **settings))
        return sample(context)

    return alter


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
    Fault("sampling.hidden-settings", (
        Strength("top-k 3 of the files", _files_with(top_k=3), probe="agreement"),
        Strength("penalty 1.5 of the files", _files_with(repetition_penalty=1.5), probe="agreement"))),
    Fault("sampling.no-stop", (Strength("stop ids unknown", policy(Unending), {"sampling.max_tokens": 16}),),
          also=("context.completion-truncated", "reward.gold-rejected")),
    of_settings("context.completion-truncated", {"sampling.max_tokens": 1}, {"sampling.max_tokens": 2}, probe="gold"),
    of_settings("context.prompt-truncated", {"sampling.max_prompt": 10}, {"sampling.max_prompt": 20}, probe="gold",
                fix=("sampling.max_prompt", "sampling.context")),
)  # fmt: skip
