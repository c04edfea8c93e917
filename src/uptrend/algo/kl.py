"""Estimates of the distance between learner and reference, from one sampled token each.

With d = log π(token) − log π_ref(token), tokens sampled from π (Schulman 2020, "Approximating KL
Divergence", http://joschu.net/blog/kl-approx.html):

    k1 = d                      unbiased, but noisy and often negative
    k2 = d² / 2                 biased, never negative
    k3 = exp(−d) − 1 + d        unbiased, never negative; GRPO's choice (Shao et al. 2024, eq. 4)

As losses, on-policy, they pull differently: k2's gradient is d · ∇ log π, whose mean is the gradient of
KL(π ‖ π_ref); k3's is (1 − exp(−d)) · ∇ log π, whose mean is the gradient of KL(π_ref ‖ π). TRL 1.16
multiplies k3 by π/π_old unless told not to (DeepSeek-V3.2 2025, arXiv 2512.02556); on-policy that is k2's
gradient exactly.

Where each acts: k2 and k3 in the loss, k1 in the reward. k1 in the loss would do nothing but add noise: its
gradient is ∇ log π, and Σ_tokens π · ∇ log π = ∇ Σ_tokens π = ∇ 1 = 0. Subtracted from the reward, k1
multiplies ∇ log π instead, and E[d · ∇ log π] is the gradient of KL(π ‖ π_ref).

b = row, t = token.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from uptrend.algo.masks import within


def k1(learner_bt: Tensor, reference_bt: Tensor) -> Tensor:
    """Return log(π/π_ref): unbiased, of either sign."""
    return learner_bt - reference_bt


def k2(learner_bt: Tensor, reference_bt: Tensor) -> Tensor:
    """Return half the squared log-ratio."""
    return (learner_bt - reference_bt) ** 2 / 2


def k3(learner_bt: Tensor, reference_bt: Tensor) -> Tensor:
    """Return π_ref/π − 1 − log(π_ref/π): k1 with a control variate, so never negative."""
    back_bt = reference_bt - learner_bt
    return torch.expm1(back_bt) - back_bt


ESTIMATORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3}


def kl_penalty(learner_bt: Tensor, reference_bt: Tensor, mask_bt: Tensor) -> Tensor:
    """Return each row's Σ_t k1, no gradient: beta times this is taken from the reward, before advantages."""
    return within(k1(learner_bt, reference_bt), mask_bt).sum(dim=1).detach()
