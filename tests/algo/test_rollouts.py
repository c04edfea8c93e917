"""Sums over rollouts of several rows."""

import torch

from uptrend.algo.masks import count_rollouts, rollout_sum


def test_rows_of_a_rollout_share_its_sum() -> None:
    values = torch.tensor([[1.0, 2.0], [10.0, 0.0], [5.0, 5.0], [0.5, 0.0]])
    rollouts = torch.tensor([30, 4, 30, 99])
    assert rollout_sum(values, rollouts).tolist() == [[13.0], [10.0], [13.0], [0.5]]
    assert count_rollouts(rollouts) == 3


def test_the_sum_has_a_gradient() -> None:
    values = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    rollouts = torch.tensor([1, 0, 1, 1])
    assert torch.autograd.gradcheck(lambda x: rollout_sum(x, rollouts) ** 2, values)
