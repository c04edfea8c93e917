"""The gap between who sampled the tokens and who learns from them.

A sampler in another precision, with other kernels or with older weights gives other probabilities than the
learner does for the same tokens. Their ratio corrects the expectation, and truncating it bounds the
variance, at the price of a little bias (Ionides 2008, "Truncated Importance Sampling"):

    token      w_t = min(π_learner(t) / π_sampler(t), cap)
    sequence   w   = min(Π_t π_learner(t) / π_sampler(t), cap)      over all trained tokens of the rollout

b = row, t = token.
"""

import torch
from torch import Tensor

from uptrend.algo.masks import within
from uptrend.algo.rollouts import rollout_sum
from uptrend.config.schema import Correction


def correction_weights(
    learner_bt: Tensor,
    sampler_bt: Tensor,
    mask_bt: Tensor,
    rollouts_b: Tensor,
    *,
    level: Correction,
    cap: float,
) -> Tensor:
    """Factor of each token's policy term: [B, T], no gradient."""
    log_ratio_bt = within(learner_bt - sampler_bt, mask_bt).detach()
    if level == "none":
        return torch.ones_like(log_ratio_bt)
    if level == "sequence":
        log_ratio_bt = rollout_sum(log_ratio_bt, rollouts_b).expand_as(log_ratio_bt)
    return log_ratio_bt.exp().clamp(max=cap)
