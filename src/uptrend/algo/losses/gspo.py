"""GSPO: one importance ratio a rollout (Zheng et al. 2025, arXiv 2507.18071, eq. 5 and 7).

    L = −1/N Σ_i min(s_i A_i, clamp(s_i, 1−ε_low, 1+ε_high) A_i)
    s_i = (π(o_i) / π_old(o_i))^(1/|o_i|) = exp(mean_t log(π/π_old))

Rewards are given to whole rollouts, so the ratio is the whole rollout's too; single tokens whose ratio is
noise (a mixture of experts that routes them elsewhere, say) no longer clip. The ratio is a geometric mean and
stays very near 1: the paper clips at 3e-4 below and 4e-4 above, a thousand times tighter than GRPO.

b = row, t = token.
"""

from torch import Tensor

from uptrend.algo.losses.surrogate import Loss, Terms, clipped_terms, mean_of_rollouts
from uptrend.algo.masks import within
from uptrend.algo.rollouts import rollout_sum


def terms(
    logprobs_bt: Tensor,
    old_bt: Tensor,
    advantages_bt: Tensor,
    mask_bt: Tensor,
    rollouts_b: Tensor,
    clip_low: float,
    clip_high: float,
) -> Terms:
    """The clipped surrogate with the rollout's ratio at each of its tokens."""
    log_ratio_b1 = rollout_sum(within(logprobs_bt - old_bt, mask_bt), rollouts_b)
    tokens_b1 = rollout_sum(mask_bt.long(), rollouts_b).clamp(min=1)
    ratio_bt = (log_ratio_b1 / tokens_b1).exp().expand_as(logprobs_bt)
    return clipped_terms(ratio_bt, advantages_bt, mask_bt, clip_low, clip_high)


GSPO = Loss(mean_of_rollouts, terms, whole_rollouts=True)
