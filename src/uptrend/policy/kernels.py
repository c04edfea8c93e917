"""Triton kernels of the learner: one pass over a chunk of logits each, in place of torch's dozen.

m = token, v = vocabulary.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

# Words of the vocabulary that a program loads at once.
BLOCK_SIZE = 4096


@triton.jit
def _reduce(Z, Y, LOGPROB, ENTROPY, TOTAL, stride, v: tl.constexpr, BLOCK: tl.constexpr):
    """Add up exp(z) and z exp(z) of a row, with a running maximum."""
    m = tl.program_id(0)
    row = Z + m.to(tl.int64) * stride
    top = -float("inf")
    mass = 0.0
    weighted = 0.0  # sum of exp(z - top) (z - top)
    for start in range(0, v, BLOCK):
        at = start + tl.arange(0, BLOCK)
        z = tl.load(row + at, mask=at < v, other=-float("inf"))
        higher = tl.maximum(top, tl.max(z, 0))
        fade = tl.exp(top - higher)
        p = tl.exp(z - higher)
        weighted = fade * weighted + tl.where(mass > 0, fade * mass * (top - higher), 0.0)
        weighted += tl.sum(tl.where(at < v, p * (z - higher), 0.0), 0)
        mass = fade * mass + tl.sum(p, 0)
        top = higher
    total = top + tl.log(mass)
    chosen = tl.load(row + tl.load(Y + m))
    tl.store(LOGPROB + m, chosen - total)
    tl.store(TOTAL + m, total)
    tl.store(ENTROPY + m, tl.log(mass) - weighted / mass)


@triton.jit
def _grad(
    Z,
    Y,
    TOTAL,
    ENTROPY,
    BY_LOGPROB,
    BY_ENTROPY,
    OUT,
    stride,
    v: tl.constexpr,
    HAS_LOGPROB: tl.constexpr,
    HAS_ENTROPY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Compute a block of a row of the gradient by the logits."""
    m = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    z = tl.load(Z + m.to(tl.int64) * stride + at, mask=at < v, other=-float("inf"))
    logp = z - tl.load(TOTAL + m)
    p = tl.exp(logp)
    grad = tl.zeros_like(p)
    if HAS_LOGPROB:
        by_logprob = tl.load(BY_LOGPROB + m)
        grad = by_logprob * (tl.where(at == tl.load(Y + m), 1.0, 0.0) - p)
    if HAS_ENTROPY:
        grad -= tl.load(BY_ENTROPY + m) * tl.where(p > 0, p * (logp + tl.load(ENTROPY + m)), 0.0)
    tl.store(OUT + m.to(tl.int64) * stride + at, grad.to(OUT.dtype.element_ty), mask=at < v)


def reduce(z: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the targets' log-probabilities, the entropies and the logarithms of the sums."""
    logprob, entropy, total = torch.empty(3, len(z), device=z.device)
    _reduce[(len(z),)](
        z, y, logprob, entropy, total, z.stride(0), z.shape[1], BLOCK_SIZE, num_warps=8
    )
    return logprob, entropy, total


def grad_logits(
    z: Tensor,
    y: Tensor,
    total: Tensor,
    entropy: Tensor,
    grad_logprob: Tensor | None,
    grad_entropy: Tensor | None,
) -> Tensor:
    """Return the gradient by the logits, in bf16."""
    out = torch.empty_like(z, dtype=torch.bfloat16)
    grid = len(z), triton.cdiv(z.shape[1], BLOCK_SIZE)
    # A gradient that is not there is not read: any tensor stands in for it.
    _grad[grid](
        z,
        y,
        total,
        entropy,
        total if grad_logprob is None else grad_logprob.contiguous(),
        total if grad_entropy is None else grad_entropy.contiguous(),
        out,
        z.stride(0),
        z.shape[1],
        grad_logprob is not None,
        grad_entropy is not None,
        BLOCK_SIZE,
        num_warps=8,
    )
    return out
