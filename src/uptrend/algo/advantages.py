"""Advantages: a rollout's reward compared with the others of its group.

    GRPO   A_i = (r_i − mean(r)) / (std(r) + 1e-4)          Shao et al. 2024, arXiv 2402.03300
    RLOO   A_i = r_i − mean of the others' rewards          Ahmadian et al. 2024, arXiv 2402.14740
    none   A_i = r_i − mean(r)                              Dr. GRPO, Liu et al. 2025, arXiv 2503.20783

A reward of NaN means that the rollout could not be scored: it counts for nothing in its group's
statistics, and its advantage is 0.

n = rollout, g = group.
"""  # noqa: E501 (a table)

import torch
from torch import Tensor

from uptrend.config.schema import Baseline, Scale

# Added to a deviation before dividing by it; TRL's value, so that results can be compared.
EPSILON = 1e-4


def advantages(rewards_n: Tensor, groups_n: Tensor, *, scale: Scale, baseline: Baseline) -> Tensor:
    """Return each rollout's advantage over its group; 0 where the group's rewards are all equal."""
    # By id, never by position: a failed, dropped or reordered rollout must not shift its neighbors
    # into another group.
    index_n = torch.unique(groups_n, return_inverse=True)[1]
    scored_n = ~rewards_n.isnan()
    rewards_n = rewards_n.masked_fill(~scored_n, 0)
    count_n = _group_sum(scored_n.to(rewards_n.dtype), index_n).clamp(min=1)
    centered_n = rewards_n - _group_sum(rewards_n, index_n) / count_n
    centered_n = centered_n.masked_fill(~scored_n, 0)
    deviation_n = (_group_sum(centered_n**2, index_n) / (count_n - 1).clamp(min=1)).sqrt()
    if baseline == "leave_one_out":  # r_i − (Σr − r_i)/(G−1) is (r_i − mean)·G/(G−1)
        centered_n = centered_n * count_n / (count_n - 1).clamp(min=1)
    if scale == "group":
        centered_n = centered_n / (deviation_n + EPSILON)
    elif scale == "batch" and scored_n.sum() > 1:
        centered_n = centered_n / (rewards_n[scored_n].std() + EPSILON)
    # Rounding of the mean leaves about 1e-8, which 1/EPSILON would make visible.
    empty_g = rewards_n.new_zeros(len(index_n))
    scored = (index_n[scored_n], rewards_n[scored_n])
    low_g, high_g = (
        empty_g.scatter_reduce(0, *scored, kind, include_self=False) for kind in ("amin", "amax")
    )
    return centered_n.masked_fill((low_g == high_g)[index_n], 0)


def _group_sum(values_n: Tensor, index_n: Tensor) -> Tensor:
    groups = int(index_n.max()) + 1 if len(index_n) else 0
    return values_n.new_zeros(groups).index_add(0, index_n, values_n)[index_n]
