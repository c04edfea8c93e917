"""CISPO: clip the importance weight, keep every token's gradient (MiniMax-M1 2025, arXiv 2506.13585).

    L = −1/Σ_i|o_i| Σ_i Σ_t stop_gradient(min(r_it, clip_high)) A_i log π(o_it)      r = π/π_old

PPO's clip silences a token once its ratio leaves the range, and the rare tokens that turn a chain of thought
("However", "Wait") leave it first. Here they keep learning, with a bounded weight. The bound is on the ratio
itself (5, say, not 1 + ε), and as in the paper there is none below: `clip_low` is unused.

b = row, t = token.
"""

from torch import Tensor

from uptrend.algo.losses.surrogate import Loss, Terms, mean_of_tokens
from uptrend.algo.masks import within


def terms(
    logprobs_bt: Tensor,
    old_bt: Tensor,
    advantages_bt: Tensor,
    mask_bt: Tensor,
    _rollouts_b: Tensor,
    _clip_low: float,
    clip_high: float,
) -> Terms:
    """REINFORCE with a bounded, detached weight; the bound holds for advantages of either sign."""
    logprobs_bt, advantages_bt = within(logprobs_bt, mask_bt), within(advantages_bt, mask_bt)
    ratio_bt = within(logprobs_bt.detach() - old_bt, mask_bt).exp()
    clipped_bt = (ratio_bt > clip_high) & (advantages_bt != 0)
    return Terms(
        loss_bt=-ratio_bt.clamp(max=clip_high) * advantages_bt * logprobs_bt,
        ratio_bt=within(ratio_bt, mask_bt),
        clipped_low_bt=clipped_bt.new_zeros(clipped_bt.shape),
        clipped_high_bt=clipped_bt,
    )


CISPO = Loss(mean_of_tokens, terms)
