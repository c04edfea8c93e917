"""Advantages: a rollout's reward compared with the others of its group.

    GRPO   A_i = (r_i − mean(r)) / (std(r) + 1e-4)          Shao et al. 2024, arXiv 2402.03300
    RLOO   A_i = r_i − mean of the others' rewards          Ahmadian et al. 2024, arXiv 2402.14740
    none   A_i = r_i − mean(r)                              Dr. GRPO, Liu et al. 2025, arXiv 2503.20783

A reward of NaN means that the rollout could not be scored: its group's statistics leave it out, and
its advantage is 0.

n = rollout, g = group.
"""  # noqa: E501 (a table)

import torch
from torch import Tensor

from uptrend.config.schema import Baseline, Scale

# Added to a deviation before dividing by it; TRL's value, so that results can be compared.
DEVIATION_EPSILON = 1e-4


def advantages(rewards_n: Tensor, groups_n: Tensor, *, scale: Scale, baseline: Baseline) -> Tensor:
    """Return each rollout's advantage over its group; 0 where the group's rewards are all equal."""
    # By id, never by position: a failed, dropped or reordered rollout must not shift its neighbors
    # into another group.
    index_n = torch.unique(groups_n, return_inverse=True)[1]
    is_scored_n = ~rewards_n.isnan()
    rewards_n = rewards_n.masked_fill(~is_scored_n, 0)

    # The group's statistics, at each of its rollouts.
    count_n = _group_sum(is_scored_n.to(rewards_n.dtype), index_n).clamp(min=1)
    others_n = (count_n - 1).clamp(min=1)
    mean_n = _group_sum(rewards_n, index_n) / count_n
    centered_n = (rewards_n - mean_n).masked_fill(~is_scored_n, 0)
    deviation_n = (_group_sum(centered_n**2, index_n) / others_n).sqrt()

    if baseline == "leave_one_out":  # r_i − (Σr − r_i)/(G−1) is (r_i − mean)·G/(G−1)
        centered_n = centered_n * count_n / others_n
    if scale == "group":
        centered_n = centered_n / (deviation_n + DEVIATION_EPSILON)
    elif scale == "batch" and is_scored_n.sum() > 1:
        centered_n = centered_n / (rewards_n[is_scored_n].std() + DEVIATION_EPSILON)

    # Where all rewards are equal, rounding of the mean leaves about 1e-8, which 1/DEVIATION_EPSILON
    # would make visible.
    empty_g = rewards_n.new_zeros(len(index_n))
    scored_index = index_n[is_scored_n]
    scored_rewards = rewards_n[is_scored_n]
    low_g = empty_g.scatter_reduce(0, scored_index, scored_rewards, "amin", include_self=False)
    high_g = empty_g.scatter_reduce(0, scored_index, scored_rewards, "amax", include_self=False)
    return centered_n.masked_fill((low_g == high_g)[index_n], 0)


def _group_sum(values_n: Tensor, index_n: Tensor) -> Tensor:
    """Return the sum over all rollouts of a group, at each of them."""
    groups = int(index_n.max()) + 1 if len(index_n) else 0
    sums_g = values_n.new_zeros(groups).index_add(0, index_n, values_n)
    return sums_g[index_n]
