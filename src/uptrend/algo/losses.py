"""The losses. Each is Σ_bt weight_bt · term_bt; they differ in the two factors.

`weights` sees all rows of one optimizer update at once and does all counting (tokens, lengths, rollouts); `terms`
sees one micro-batch and holds all gradients. So a micro-batch never needs to know how many others there are.

The clipped surrogate is PPO's (Schulman et al. 2017, arXiv 1707.06347), with r = π/π_old:

    term = −min(r · A, clamp(r, 1 − clip_low, 1 + clip_high) · A)

    grpo     1/N Σ_i 1/|o_i| Σ_t term          Shao et al. 2024, arXiv 2402.03300, eq. 3
    dapo     1/Σ_i|o_i| Σ_i Σ_t term           Yu et al. 2025, arXiv 2503.14476, eq. 8
    bnpo     the same; the name that TRL uses
    dr_grpo  1/(N · max_tokens) Σ_i Σ_t term   Liu et al. 2025, arXiv 2503.20783
    gspo     1/N Σ_i term with one ratio per rollout, exp(mean_t log r)    Zheng et al. 2025, arXiv 2507.18071
    cispo    −1/Σ_i|o_i| Σ_i Σ_t stop_gradient(min(r, clip_high)) A log π  MiniMax-M1 2025, arXiv 2506.13585

b = row, t = token. A new loss is one entry in `LOSSES`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from uptrend.algo.masks import count_rollouts, rollout_sum, within


@dataclass(frozen=True)
class Terms:
    """Each token's part of a loss; 0 and False outside the mask."""

    loss_bt: Tensor
    """The term to be weighted and summed; the only field with a gradient."""
    ratio_bt: Tensor
    """π / π_old, before clipping."""
    clipped_low_bt: Tensor
    """True where the lower clip cuts the gradient."""
    clipped_high_bt: Tensor
    """True where the upper clip cuts the gradient."""


@dataclass(frozen=True)
class Loss:
    """Two functions; all losses are called alike, so some ignore a parameter."""

    weights: Callable[[Tensor, Tensor, int], Tensor]
    """(mask_bt, rollouts_b, max_tokens) over a whole update -> each token's weight, 0 outside the mask."""
    terms: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, float, float], Terms]
    """(logprobs_bt, old_bt, advantages_bt, mask_bt, rollouts_b, clip_low, clip_high) -> Terms."""
    whole_rollouts: bool = False
    """True where all rows of a rollout have to be in the same micro-batch."""


def mean_of_rollouts(mask_bt: Tensor, rollouts_b: Tensor, _max_tokens: int) -> Tensor:
    """Return 1 / (rollouts · tokens of this rollout): the mean over rollouts of each one's token mean."""
    # Every rollout is counted, also those with nothing to train: leaving some out must not make the rest count more.
    tokens_b1 = rollout_sum(mask_bt.long(), rollouts_b).clamp(min=1)
    return mask_bt / (tokens_b1 * count_rollouts(rollouts_b))


def mean_of_tokens(mask_bt: Tensor, _rollouts_b: Tensor, _max_tokens: int) -> Tensor:
    """Return 1 / trained tokens of the update."""
    return mask_bt / mask_bt.sum().clamp(min=1)


def fixed_length(mask_bt: Tensor, rollouts_b: Tensor, max_tokens: int) -> Tensor:
    """Return 1 / (rollouts · the most tokens that a rollout may have)."""
    return mask_bt / (count_rollouts(rollouts_b) * max_tokens)


def token_terms(
    logprobs_bt: Tensor,
    old_bt: Tensor,
    advantages_bt: Tensor,
    mask_bt: Tensor,
    _rollouts_b: Tensor,
    clip_low: float,
    clip_high: float,
) -> Terms:
    """Clip each token by its own ratio."""
    ratio_bt = within(logprobs_bt - old_bt, mask_bt).exp()
    return clipped_terms(ratio_bt, advantages_bt, mask_bt, clip_low, clip_high)


def rollout_terms(
    logprobs_bt: Tensor,
    old_bt: Tensor,
    advantages_bt: Tensor,
    mask_bt: Tensor,
    rollouts_b: Tensor,
    clip_low: float,
    clip_high: float,
) -> Terms:
    """Clip all tokens of a rollout by the geometric mean of their ratios."""
    log_ratio_b1 = rollout_sum(within(logprobs_bt - old_bt, mask_bt), rollouts_b)
    tokens_b1 = rollout_sum(mask_bt.long(), rollouts_b).clamp(min=1)
    ratio_bt = (log_ratio_b1 / tokens_b1).exp().expand_as(logprobs_bt)
    return clipped_terms(ratio_bt, advantages_bt, mask_bt, clip_low, clip_high)


def clipped_terms(ratio_bt: Tensor, advantages_bt: Tensor, mask_bt: Tensor, clip_low: float, clip_high: float) -> Terms:
    """Return PPO's clipped surrogate for given ratios."""
    advantages_bt = within(advantages_bt, mask_bt)
    clamped_bt = ratio_bt.clamp(1 - clip_low, 1 + clip_high)
    return Terms(
        loss_bt=-torch.minimum(ratio_bt * advantages_bt, clamped_bt * advantages_bt),
        ratio_bt=within(ratio_bt, mask_bt).detach(),
        clipped_low_bt=(ratio_bt < 1 - clip_low) & (advantages_bt < 0),
        clipped_high_bt=(ratio_bt > 1 + clip_high) & (advantages_bt > 0),
    )


def bounded_terms(
    logprobs_bt: Tensor,
    old_bt: Tensor,
    advantages_bt: Tensor,
    mask_bt: Tensor,
    _rollouts_b: Tensor,
    _clip_low: float,
    clip_high: float,
) -> Terms:
    """Weight each token's log-probability by its ratio, detached and at most `clip_high`."""
    logprobs_bt, advantages_bt = within(logprobs_bt, mask_bt), within(advantages_bt, mask_bt)
    ratio_bt = within(logprobs_bt.detach() - old_bt, mask_bt).exp()
    clipped_bt = (ratio_bt > clip_high) & (advantages_bt != 0)
    return Terms(
        loss_bt=-ratio_bt.clamp(max=clip_high) * advantages_bt * logprobs_bt,
        ratio_bt=within(ratio_bt, mask_bt),
        clipped_low_bt=clipped_bt.new_zeros(clipped_bt.shape),
        clipped_high_bt=clipped_bt,
    )


LOSSES: dict[str, Loss] = {
    # Every rollout counts the same, so a token of a short answer weighs more: long wrong answers are punished least.
    "grpo": Loss(mean_of_rollouts, token_terms),
    # In TRL the mean is over a micro-batch and depends on how rows are split. Here weights always cover the whole
    # update, which leaves DAPO's weighting; the name is kept for recipes that use it.
    "bnpo": Loss(mean_of_tokens, token_terms),
    # No length in the denominator, so none is favored. The paper also drops the division by the group's deviation,
    # which favors tasks that are almost always or almost never solved: use it with scale = "none".
    "dr_grpo": Loss(fixed_length, token_terms),
    # Every token counts the same: long wrong answers are punished in full. The paper's other ideas are options of
    # any loss: clip-higher (clip_high = 0.28), dynamic sampling (sampling.resample), overlong filtering
    # (mask_truncated).
    "dapo": Loss(mean_of_tokens, token_terms),
    # Rewards are given to whole rollouts, so the ratio is the rollout's too: single tokens with a noisy ratio (from a
    # mixture of experts) no longer clip. The mean ratio stays near 1: the paper clips at 3e-4 and 4e-4.
    "gspo": Loss(mean_of_rollouts, rollout_terms, whole_rollouts=True),
    # PPO's clip silences a token once its ratio leaves the range, and the rare tokens that turn a chain of thought
    # ("However", "Wait") leave it first. Here they keep learning with a bounded weight. The bound is on the ratio
    # itself (5, say, not 1 + ε), and there is none below.
    "cispo": Loss(mean_of_tokens, bounded_terms),
}
