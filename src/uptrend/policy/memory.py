"""Memory that is free, and how many tokens of a pass fit into it, measured on the model itself.

A forward and a backward pass are run on two small micro-batches. The memory of one more token is
their difference, and the rest of the free memory is divided by it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from uptrend.records.machine import free_memory

# Tokens of the first measurement, and maximum tokens of a micro-batch. More are no faster: on a CPU
# from far fewer on.
FIRST_TOKENS = 1024
MAX_TOKENS = {"cuda": 1 << 17, "cpu": 1 << 14}
# Share of the free memory that is used: a pass may take more than the measured ones.
USED_SHARE = 0.7
# On a GPU, bytes that are left to the sampler, whose cache and graphs still grow after the first
# step.
SAMPLER_BYTES = 1 << 30


@dataclass(frozen=True)
class MemoryFit:
    """Tokens that fit into memory, as measured."""

    tokens: int  # tokens per micro-batch
    # True where activations are recomputed, because a rollout did not fit otherwise.
    gradient_checkpointing: bool
    bytes_per_token: int  # memory of one more token
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
        few_tokens, few_bytes = bytes_of(run, FIRST_TOKENS, device)
        more_tokens, more_bytes = bytes_of(run, 2 * FIRST_TOKENS, device)
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return 0, 0
    bytes_per_token = max(1.0, (more_bytes - few_bytes) / (more_tokens - few_tokens))
    fitting = few_tokens + (USED_SHARE * free - few_bytes) / bytes_per_token
    tokens = max(0, int(min(fitting, MAX_TOKENS[device.type])))
    return tokens, round(bytes_per_token)


def bytes_of(run: Callable[[int], int], tokens: int, device: torch.device) -> tuple[int, int]:
    """Make a pass; return its tokens and its peak memory, on a CPU that of tensors saved for the
    backward pass.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        actual_tokens = run(tokens)
        torch.cuda.synchronize(device)
        return actual_tokens, torch.cuda.max_memory_allocated(device) - before
    saved_bytes: dict[int, int] = {}

    def save(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        saved_bytes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        actual_tokens = run(tokens)
    return actual_tokens, sum(saved_bytes.values())
