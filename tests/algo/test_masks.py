"""Masks: who is seen, who is trained, and sums over rollouts of several rows."""

import torch

from uptrend.algo import attended_mask, loss_mask
from uptrend.algo.masks import number_rollouts, rollout_sum, within
from uptrend.records import Role

P, M, T = Role
ROLES = torch.tensor([[P, M, T, M, P], [P, M, M, M, M]], dtype=torch.int8)
REAL = torch.tensor([[1, 1, 1, 1, 0], [1, 1, 1, 0, 0]])


def test_every_real_token_is_seen_and_only_the_models_are_trained() -> None:
    assert attended_mask(REAL).equal(REAL.bool())
    trained = torch.tensor([[0, 1, 0, 1, 0], [0, 1, 1, 0, 0]]).bool()
    assert loss_mask(ROLES, REAL, torch.tensor([False, False])).equal(trained)
    assert not loss_mask(ROLES, REAL, torch.tensor([False, True]))[
        1
    ].any()  # left out, and still seen


def test_nothing_outside_a_mask_reaches_sum_or_gradient() -> None:
    values = torch.tensor([[1.0, float("nan"), float("inf")]], requires_grad=True)
    inside = within(values, torch.tensor([[True, False, False]]))
    inside.exp().sum().backward()
    assert inside.tolist() == [[1.0, 0.0, 0.0]]
    assert values.grad is not None
    assert values.grad[0, 1:].tolist() == [0.0, 0.0]


def test_rows_of_a_rollout_share_its_sum_and_its_gradient() -> None:
    values = torch.tensor(
        [[1.0, 2.0], [10.0, 0.0], [5.0, 5.0], [0.5, 0.0]], dtype=torch.float64, requires_grad=True
    )
    rollouts, count = number_rollouts(torch.tensor([30, 4, 30, 99]), values)
    assert count == 3
    sums = rollout_sum(values, rollouts, count)
    assert sums.tolist() == [[13.0] * 2, [10.0] * 2, [13.0] * 2, [0.5] * 2]
    assert torch.autograd.gradcheck(lambda x: rollout_sum(x, rollouts, count) ** 2, values)
