"""The sampler's side: old weights, some weights, a stale cache, another arithmetic."""

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from benchmarks.faults.fault import Fault, Strength, of_plant
from benchmarks.faults.planted.known import known
from tests.doctor.planted_faults import swapped

from uptrend.policy.policy import Policy
from uptrend.rollout.inprocess import InProcessSampler
from uptrend.training import loop


def _lagging(steps: int) -> Any:
    """A sampler that is given the weights of some updates ago."""

    def wrap(sampler: Any) -> Any:  # noqa: ARG001
        def make(policy: Policy) -> Any:
            model = copy.deepcopy(policy.model).requires_grad_(False)
            late = InProcessSampler(replace(policy, model=model, reference=None))
            queue: list[tuple[int, dict[str, torch.Tensor]]] = []
            load = late.load

            def behind(tensors: Any, version: int) -> None:  # noqa: ARG001
                queue.append((version, {n: p.detach().clone() for n, p in policy.model.named_parameters()}))
                if len(queue) > steps:
                    number, state = queue.pop(0)
                    with torch.no_grad():
                        for name, weight in model.named_parameters():
                            weight.copy_(state[name])
                    load((), number)

            late.load = behind  # type: ignore[method-assign]
            return late

        return make

    return lambda: swapped(loop, "InProcessSampler", wrap)


def _rough(spread: float) -> Any:
    """The sampler's arithmetic is not the learner's: its log-probabilities are off by noise."""

    def wrap(finish: Any) -> Any:
        chance = np.random.default_rng(0)

        def run(self: Any, stream: Any, ids: Any, logprobs: Any, budget: int, limits: Any) -> Any:
            noise = chance.normal(0, spread, np.shape(logprobs)).astype(np.float32)
            return finish(self, stream, ids, np.minimum(logprobs + noise, 0), budget, limits)

        return run

    return lambda: swapped(InProcessSampler, "_finish", wrap)


FAULTS = (
    Fault("sync.stale-weights", (known("weights-not-sent"), known("copy-not-renewed"))),
    Fault("sync.partial", (known("mlp-not-sent"),)),
    Fault("sync.prefix-cache", (known("prefix-cache"),)),
    of_plant("sync.off-policy", _lagging(4), {"learning.lr": 5e-4}, steps=12, also=("sync.stale-weights",)),
    Fault("precision.mismatch", (Strength("0.6 nats", _rough(0.6)), Strength("0.25 nats", _rough(0.25)))),
    Fault("policy.dropout-on", (known("dropout-on"),)),
)
