"""The sampler's side: old weights, some weights, a stale cache, other arithmetic."""

from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.faults.fault import Alter, Fault, Strength, of_parts, policy, wrapped
from torch import Tensor
from torch.nn import functional

from uptrend.policy.policy import Policy
from uptrend.rollout.inprocess import InProcessSampler
from uptrend.rollout.sampler import Extension, Limits, Sampler


class SamplerWrapper:
    """Sampler that passes everything on; subclasses spoil one method."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    async def extend(self, stream: int, ids: Sequence[int], limits: Limits, seed: int) -> Extension:
        """See Sampler."""
        return await self._sampler.extend(stream, ids, limits, seed)

    def release(self, stream: int) -> None:
        """See Sampler."""
        self._sampler.release(stream)

    async def load(self, weights: Iterable[tuple[str, Tensor]] | Path, version: int) -> None:
        """See Sampler."""
        await self._sampler.load(weights, version)


class Deaf(SamplerWrapper):
    """Never loads: its fused copy of the weights is not renewed."""

    async def load(self, weights: Iterable[tuple[str, Tensor]] | Path, version: int) -> None:
        """Ignore new weights."""


class Detached(SamplerWrapper):
    """Server with weights of its own, `behind` updates late, that leaves out tensors with a word of
    `without`.
    """

    def __init__(self, trained: Policy, behind: int = 0, without: tuple[str, ...] = ()) -> None:
        self._trained, self._model = trained.model, deepcopy(trained.model).requires_grad_(False)
        self._behind, self._without = behind, without
        self._sent: list[tuple[int, dict[str, Tensor]]] = []
        super().__init__(InProcessSampler(replace(trained, model=self._model, reference=None)))

    async def load(self, weights: Iterable[tuple[str, Tensor]] | Path, version: int) -> None:
        """Take the weights that were current `behind` calls ago."""
        self._sent.append(
            (version, {n: p.detach().clone() for n, p in self._trained.named_parameters()})
        )
        if len(self._sent) > self._behind:
            version, state = self._sent.pop(0)
            with torch.no_grad():
                for name, weight in self._model.named_parameters():
                    if not any(word in name for word in self._without):
                        weight.copy_(state[name])
            await self._sampler.load(weights, version)


class Frozen(Detached):
    """Server that takes note of new versions and keeps the base model."""

    async def load(self, weights: Iterable[tuple[str, Tensor]] | Path, version: int) -> None:
        """Take the number, and not the weights."""
        await self._sampler.load(weights, version)


class PrefixCaching(InProcessSampler):
    """Sampler with a prefix cache that no new weights empty."""

    def __init__(self, trained: Policy) -> None:
        super().__init__(trained)
        self._kept: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}

    def prefill(
        self, ids_q: Tensor, positions_q: Tensor, cells_q: Tensor, starts_n: Tensor, *rest: Any
    ) -> tuple[Tensor, ...]:
        """Take what is known of a context from the cache, whatever weights computed it."""
        (logits,) = super().prefill(ids_q, positions_q, cells_q, starts_n, *rest)
        for n, (start, stop) in enumerate(pairwise(starts_n.tolist())):
            if stop > start and not positions_q[start]:
                cells = cells_q[start:stop]
                own = logits[n].clone(), self.cache.pool[:, :, :, cells]
                logits[n], self.cache.pool[:, :, :, cells] = self._kept.setdefault(
                    tuple(ids_q[start:stop].tolist()), own
                )
        return (logits,)


class Rough(SamplerWrapper):
    """Sampler whose arithmetic is not the learner's: its log-probabilities are off by noise."""

    def __init__(self, sampler: Sampler, spread: float) -> None:
        super().__init__(sampler)
        self._spread, self._random = spread, np.random.default_rng(0)

    async def extend(self, stream: int, ids: Sequence[int], limits: Limits, seed: int) -> Extension:
        """Add noise to the log-probabilities."""
        said = await super().extend(stream, ids, limits, seed)
        noise = self._random.normal(0, self._spread, len(said.logprobs)).astype(np.float32)
        return replace(said, logprobs=np.minimum(said.logprobs + noise, 0))


class DropoutOn(Policy):
    """Policy with dropout that stays on while learning."""

    def hidden(self, *given: Any, reference: bool = False) -> Tensor:
        """Drop a tenth of the hidden states."""
        return functional.dropout(
            super().hidden(*given, reference=reference), 0.1, torch.is_grad_enabled()
        )


def sampler(make: Callable[[Policy], Sampler]) -> Alter:
    """Sample with another sampler."""
    return wrapped(sampler=lambda _: make)


def _rough(spread: float) -> Alter:
    return sampler(lambda trained: Rough(InProcessSampler(trained), spread))


frozen = sampler(Frozen)
"""The inference server serves the base model throughout."""

FAULTS = (
    Fault("sync.stale-weights", (
        Strength("weights-not-sent", frozen, probe="synchronize"),
        Strength("copy-not-renewed", sampler(lambda trained: Deaf(InProcessSampler(trained))), probe="synchronize"))),
    Fault("sync.partial", (Strength("mlp-not-sent", sampler(
        lambda trained: Detached(trained, without=("gate_proj", "up_proj"))), probe="synchronize"),)),
    Fault("sync.prefix-cache", (Strength("prefix-cache", sampler(PrefixCaching), probe="synchronize"),)),
    of_parts("sync.off-policy", sampler(lambda trained: Detached(trained, behind=4)), {"learning.lr": 5e-4}, steps=12,
             also=("sync.stale-weights",)),
    Fault("precision.mismatch", (Strength("0.6 nats", _rough(0.6)), Strength("0.25 nats", _rough(0.25)))),
    Fault("policy.dropout-on", (Strength("dropout-on", policy(DropoutOn), probe="dropout"),)),
)  # fmt: skip
