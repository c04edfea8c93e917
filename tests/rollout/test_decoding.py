"""Batches whose size is rounded up: the rows that fill up change nothing, over turns and beside other streams."""

from pathlib import Path

import numpy as np
import torch

from models import encode, make_policy
from talk import speak
from uptrend.rollout.cache import SlotCache
from uptrend.rollout.decoding import Decoding
from uptrend.rollout.inprocess import InProcessSampler
from uptrend.rollout.sampler import Extension, Limits

LIMITS = Limits(max_tokens=9, context=200)
OTHER = Limits(max_tokens=4, context=200)


def on_a_gpu(n: int) -> int:
    """What a GPU would take."""
    return Decoding(torch.device("cuda"), None, SlotCache(1, torch.device("cpu"))).rows_for(n)  # type: ignore[arg-type]


def test_sizes_are_few_and_large_enough() -> None:
    sizes = [on_a_gpu(n) for n in range(1, 257)]
    assert all(n <= size < 2 * max(n, 8) for n, size in enumerate(sizes, 1))
    assert sorted(set(sizes)) == [8, 16, 32, 64, 128, 256]


class Filling(Decoding):
    """Decoding with more rows than a batch needs, as on a GPU."""

    def rows_for(self, n: int) -> int:
        return super().rows_for(n) + 3


def converse(folder: Path, decoding: type[Decoding] = Decoding) -> list[list[Extension]]:
    """Three rounds: seven streams, then four of them beside a new one, then two while others keep waiting."""
    policy = make_policy(folder)
    sampler = InProcessSampler(policy, decoding)
    prompts = [encode(policy, f"{n} and {n * 7} is") for n in range(8)]
    more = encode(policy, "so?")
    rounds = [speak(sampler, [(n, prompts[n], n) for n in range(7)], LIMITS)]
    rounds.append(speak(sampler, [*((n, more, n) for n in (5, 1, 3, 6)), (7, prompts[7], 7)], LIMITS))
    sampler.release(1)
    rounds.append(speak(sampler, [(2, more, 2), (7, more, 7)], OTHER))
    rounds.append(speak(sampler, [(0, more, 0), (4, more, 4), (5, more, 5), (3, more, 3)], LIMITS))
    return rounds


def test_filling_up_changes_nothing(llama_folder: Path) -> None:
    for before, after in zip(converse(llama_folder), converse(llama_folder, Filling), strict=True):
        for a, b in zip(before, after, strict=True):
            assert a.ids.tolist() == b.ids.tolist()
            np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-5)
