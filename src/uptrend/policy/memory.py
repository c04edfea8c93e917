"""Memory that is free, and how many tokens of a pass fit into it, measured on the model itself.

For a micro-batch, a forward and a backward pass are run on two small ones. What a token more costs
is their difference, and what is left of the free memory is divided by it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from uptrend.records.machine import free_memory

# Tokens of the first measurement, and the most that a micro-batch gets. More are no faster: on a
# CPU from far fewer on.
FIRST_TOKENS = 1024
MAX_TOKENS = {"cuda": 1 << 17, "cpu": 1 << 14}
# Share of the free memory that is used: what was measured is not all that can come.
USED_SHARE = 0.7
# On a GPU, bytes that are left to the sampler, whose cache and graphs still grow after the first
# step.
SAMPLER_BYTES = 1 << 30


@dataclass(frozen=True)
class Fitted:
    """Result of a measurement."""

    tokens: int  # tokens per micro-batch
    # true where activations are recomputed, because a rollout did not fit otherwise
    gradient_checkpointing: bool
    bytes_per_token: int  # memory that a token more takes
    free_gib: float  # memory that was free


def free_bytes(device: torch.device) -> float:
    """Return the memory that is free: of the device on a GPU, of this machine or container on a
    CPU.
    """
    if device.type != "cuda":
        return free_memory()
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return float(torch.cuda.mem_get_info(device)[0] + unused)


def learner_memory(device: torch.device) -> float:
    """Return the memory that is free for the learner."""
    return free_bytes(device) - (SAMPLER_BYTES if device.type == "cuda" else 0)


def max_tokens_that_fit(
    run: Callable[[int], int], device: torch.device, free: float
) -> tuple[int, int]:
    """Return the tokens that fit, 0 where even few do not, and bytes per token.

    `run(n)` makes a pass over at least n tokens, and returns how many they were.
    """
    try:
        few, small = bytes_of(run, FIRST_TOKENS, device)
        more, large = bytes_of(run, 2 * FIRST_TOKENS, device)
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return 0, 0
    each = max(1.0, (large - small) / (more - few))
    fits = few + (USED_SHARE * free - small) / each
    return max(0, int(min(fits, MAX_TOKENS[device.type]))), round(each)


def bytes_of(run: Callable[[int], int], tokens: int, device: torch.device) -> tuple[int, int]:
    """Make a pass; return its tokens and the memory it took at its peak (on a CPU, what it kept for
    its way back).
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        ran = run(tokens)
        torch.cuda.synchronize(device)
        return ran, torch.cuda.max_memory_allocated(device) - before
    saved_bytes: dict[int, int] = {}

    def save(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        saved_bytes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        ran = run(tokens)
    return ran, sum(saved_bytes.values())
