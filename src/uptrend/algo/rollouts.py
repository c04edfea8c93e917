"""Sums over whole rollouts, which may have several rows.

A chat template that rewrites history splits one rollout into several sequences. It is still one attempt
with one reward, so where a formula says "sequence" (a length, a sequence's probability) it means all rows.

b = row, t = token.
"""

import torch
from torch import Tensor


def count_rollouts(rollouts_b: Tensor) -> int:
    """How many different rollouts the rows belong to."""
    return int(torch.unique(rollouts_b).numel())


def rollout_sum(values_bt: Tensor, rollouts_b: Tensor) -> Tensor:
    """The sum over all tokens of a rollout, at each of its rows: [B, 1]."""
    numbers, index_b = torch.unique(rollouts_b, return_inverse=True)
    values_b = values_bt.sum(dim=1)
    return values_b.new_zeros(numbers.numel()).index_add(0, index_b, values_b)[index_b][:, None]
