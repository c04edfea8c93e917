"""Asking a sampler, and what a turn's log-probabilities should be, computed by hand."""

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from uptrend.rollout.inprocess import InProcessSampler
from uptrend.rollout.sampler import Extension, Limits, Sampler

Ask = tuple[int, Sequence[int], int]  # a stream, what it hears, and its seed


class PrefillCounter(InProcessSampler):
    """Counts the tokens that go through a prefill on a CPU: what sharing saves."""

    prefilled = 0

    def prefill(self, ids_q: Tensor, *about: Any) -> tuple[Tensor, ...]:
        self.prefilled += len(ids_q)
        return super().prefill(ids_q, *about)


def speak(sampler: Sampler, asks: Sequence[Ask], limits: Limits) -> list[Extension]:
    """What the model says to all of them, asked at once."""

    async def all_of_them() -> list[Extension]:
        return list(
            await asyncio.gather(*(sampler.extend(s, ids, limits, seed) for s, ids, seed in asks))
        )

    return asyncio.run(all_of_them())


def distribution(logits: Tensor, limits: Limits, context: Sequence[int] = ()) -> np.ndarray:
    """The probabilities that a token is drawn from, by definition: penalty, temperature, top-k,
    top-p, min-p.
    """
    z = logits.double().numpy().copy()
    seen = z[list(dict.fromkeys(context))]
    penalty = limits.repetition_penalty
    z[list(dict.fromkeys(context))] = np.where(seen > 0, seen / penalty, seen * penalty)
    z /= limits.temperature or 1.0
    p = np.exp(z - z.max())
    order = np.argsort(-p, kind="stable")
    if limits.top_k:
        p[order[limits.top_k :]] = 0
    p /= p.sum()
    if limits.width:
        p[order[limits.width :]] = 0
        p[p < limits.min_p * p.max()] = 0
    if limits.top_p < 1:  # at 1 all stay, also those that no longer count in a sum of floats
        before = np.concatenate([[0.0], np.cumsum(p[order])[:-1]])
        p[order[before >= limits.top_p]] = 0
    return p / p.sum()


def expected_logprobs(
    logits: Tensor, ids: Sequence[int], said: Sequence[int], limits: Limits
) -> np.ndarray:
    """The log-probabilities of the last tokens of `ids`, from the logits after each token of
    them.
    """
    first = len(ids) - len(said)
    return np.array(
        [
            np.log(distribution(logits[at - 1], limits, ids[:at])[ids[at]])
            for at in range(first, len(ids))
        ]
    )
