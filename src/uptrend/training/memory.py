"""Room for a micro-batch: as many tokens as free memory holds, measured on the model itself.

A forward and a backward pass are run on two small micro-batches. What a token more costs is their difference, and what
is left of the free memory is divided by it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from uptrend.policy.memory import free_bytes

# Tokens of the first measurement, and the most that a micro-batch gets. More are no faster: on a CPU from far fewer on.
FIRST = 1024
MOST = {"cuda": 1 << 17, "cpu": 1 << 14}
# Part of the free memory that is used: what was measured is not all that can come.
SHARE = 0.7
# On a GPU, bytes that are left to the sampler, whose cache and graphs still grow after the first step.
SAMPLER = 1 << 30


@dataclass(frozen=True)
class Fitted:
    """Result of a measurement."""

    tokens: int  # tokens per micro-batch
    gradient_checkpointing: bool  # true where activations are recomputed, because a rollout did not fit otherwise
    bytes_per_token: int  # memory that a token more takes
    free_gib: float  # memory that was free


def room_for(run: Callable[[int], int], device: torch.device, free: float) -> tuple[int, int]:
    """Return the tokens that fit, 0 where even few do not, and bytes per token.

    `run(n)` makes a pass over at least n tokens, and returns how many they were.
    """
    try:
        (few, small), (more, large) = (bytes_of(run, tokens, device) for tokens in (FIRST, 2 * FIRST))
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return 0, 0
    each = max(1.0, (large - small) / (more - few))
    fits = few + (SHARE * free - small) / each
    return max(0, int(min(fits, MOST[device.type]))), round(each)


def bytes_of(run: Callable[[int], int], tokens: int, device: torch.device) -> tuple[int, int]:
    """Make a pass; return its tokens and the memory it took at its peak (on a CPU, what it kept for its way back)."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        ran = run(tokens)
        torch.cuda.synchronize(device)
        return ran, torch.cuda.max_memory_allocated(device) - before
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        ran = run(tokens)
    return ran, sum(kept.values())


def room(device: torch.device) -> float:
    """Return the memory that is free for the learner."""
    return free_bytes(device) - (SAMPLER if device.type == "cuda" else 0)
