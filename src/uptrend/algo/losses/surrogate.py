"""What a loss is, and the parts that several of them share.

A loss is Σ_bt weight_bt · term_bt. `weights` sees all rows of one optimizer update at once and holds all
counting (tokens, lengths, rollouts); `terms` sees one micro-batch and holds all gradients. So a micro-batch
never needs to know how many others there are.

The clipped surrogate is PPO's (Schulman et al. 2017, arXiv 1707.06347):

    term = −min(ratio · A, clamp(ratio, 1 − clip_low, 1 + clip_high) · A)      ratio = π / π_old

b = row, t = token.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from uptrend.algo.masks import within
from uptrend.algo.rollouts import count_rollouts, rollout_sum


@dataclass(frozen=True)
class Terms:
    """What a loss makes of each token of a micro-batch; 0 and False outside the mask."""

    loss_bt: Tensor
    """The term to be weighted and summed; the only field with a gradient."""
    ratio_bt: Tensor
    """π / π_old, before clipping."""
    clipped_low_bt: Tensor
    """Where the lower clip cuts the gradient."""
    clipped_high_bt: Tensor
    """Where the upper clip cuts the gradient."""


@dataclass(frozen=True)
class Loss:
    """Two functions; parameters that one loss does not use are there so that all are called alike."""

    weights: Callable[[Tensor, Tensor, int], Tensor]
    """(mask_bt, rollouts_b, max_tokens) over a whole update -> each token's weight, 0 outside the mask."""
    terms: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, float, float], Terms]
    """(logprobs_bt, old_bt, advantages_bt, mask_bt, rollouts_b, clip_low, clip_high) -> Terms."""
    whole_rollouts: bool = False
    """Whether all rows of a rollout have to be in the same micro-batch."""


def mean_of_rollouts(mask_bt: Tensor, rollouts_b: Tensor, _max_tokens: int) -> Tensor:
    """The mean over rollouts of each one's token mean: 1 / (rollouts · tokens of this rollout)."""
    tokens_b1 = rollout_sum(mask_bt.long(), rollouts_b).clamp(min=1)
    return mask_bt / (tokens_b1 * count_rollouts(rollouts_b))


def mean_of_tokens(mask_bt: Tensor, _rollouts_b: Tensor, _max_tokens: int) -> Tensor:
    """The mean over all trained tokens of the update: 1 / tokens."""
    return mask_bt / mask_bt.sum().clamp(min=1)


def token_terms(
    logprobs_bt: Tensor,
    old_bt: Tensor,
    advantages_bt: Tensor,
    mask_bt: Tensor,
    _rollouts_b: Tensor,
    clip_low: float,
    clip_high: float,
) -> Terms:
    """PPO's clipped surrogate with each token's own ratio."""
    ratio_bt = within(logprobs_bt - old_bt, mask_bt).exp()
    return clipped_terms(ratio_bt, advantages_bt, mask_bt, clip_low, clip_high)


def clipped_terms(ratio_bt: Tensor, advantages_bt: Tensor, mask_bt: Tensor, clip_low: float, clip_high: float) -> Terms:
    """PPO's clipped surrogate for ratios that are already made."""
    advantages_bt = within(advantages_bt, mask_bt)
    clamped_bt = ratio_bt.clamp(1 - clip_low, 1 + clip_high)
    return Terms(
        loss_bt=-torch.minimum(ratio_bt * advantages_bt, clamped_bt * advantages_bt),
        ratio_bt=within(ratio_bt, mask_bt).detach(),
        clipped_low_bt=(ratio_bt < 1 - clip_low) & (advantages_bt < 0),
        clipped_high_bt=(ratio_bt > 1 + clip_high) & (advantages_bt > 0),
    )
