"""Dr. GRPO: a constant in place of the rollout's length (Liu et al. 2025, arXiv 2503.20783).

    L = −1/(N · max_tokens) Σ_i Σ_t min(r_it A_i, clamp(r_it, 1−ε_low, 1+ε_high) A_i)      r = π/π_old

With no length in the denominator, no length is favored, neither within a step nor between steps. The paper
also drops the division by the group's deviation, which favors tasks that are almost always or almost never
solved: use it with `scale = "none"`. Gradients are smaller than GRPO's by about mean length / max_tokens.

b = row, t = token.
"""

from torch import Tensor

from uptrend.algo.losses.surrogate import Loss, token_terms
from uptrend.algo.rollouts import count_rollouts


def weights(mask_bt: Tensor, rollouts_b: Tensor, max_tokens: int) -> Tensor:
    """1 / (rollouts · the most tokens that a rollout may have)."""
    return mask_bt / (count_rollouts(rollouts_b) * max_tokens)


DR_GRPO = Loss(weights, token_terms)
