"""Masks: who is seen, who is trained."""

import torch

from uptrend.algo import attention_mask, loss_mask
from uptrend.algo.masks import within
from uptrend.records import Role

P, M, T = Role.PROMPT, Role.MODEL, Role.TOOL
ROLES = torch.tensor([[P, M, T, M, P], [P, M, M, M, M]], dtype=torch.int8)
REAL = torch.tensor([[1, 1, 1, 1, 0], [1, 1, 1, 0, 0]])


def test_every_real_token_is_seen_whoever_wrote_it() -> None:
    assert attention_mask(REAL).dtype == torch.bool
    assert attention_mask(REAL).equal(REAL.bool())


def test_only_the_models_real_tokens_are_trained() -> None:
    mask = loss_mask(ROLES, REAL, torch.tensor([False, False]))
    assert mask.equal(torch.tensor([[0, 1, 0, 1, 0], [0, 1, 1, 0, 0]]).bool())


def test_rows_left_out_are_seen_but_not_trained() -> None:
    assert not loss_mask(ROLES, REAL, torch.tensor([False, True]))[1].any()
    assert attention_mask(REAL)[1].any()


def test_nothing_outside_a_mask_reaches_sum_or_gradient() -> None:
    values = torch.tensor([[1.0, float("nan"), float("inf")]], requires_grad=True)
    inside = within(values, torch.tensor([[True, False, False]]))
    inside.exp().sum().backward()
    assert inside.tolist() == [[1.0, 0.0, 0.0]]
    assert values.grad is not None
    assert values.grad[0, 1:].tolist() == [0.0, 0.0]
