"""Importance weights from sampler to learner."""

import math

import pytest
import torch

from uptrend.algo import correction_weights

NAN = math.nan
LEARNER = torch.tensor([[0.5, 0.9, 0.3], [0.2, 0.4, 0.1]], dtype=torch.float64).log().requires_grad_()
SAMPLER = torch.tensor([[0.25, 0.3, NAN], [0.4, 0.5, NAN]], dtype=torch.float64).log()
MASK = torch.tensor([[True, True, False], [True, True, False]])
APART = torch.tensor([0, 1])


def weights(level: str, cap: float, rollouts: torch.Tensor = APART) -> list[list[float]]:
    result = correction_weights(LEARNER, SAMPLER, MASK, rollouts, level=level, cap=cap)
    assert not result.requires_grad
    assert result.shape == LEARNER.shape
    return result.tolist()


def near(rows: list[list[float]]) -> list[object]:
    return [pytest.approx(row) for row in rows]


def test_tokens_are_weighted_by_their_own_ratio_up_to_the_cap() -> None:
    assert weights("token", 2.5) == near([[2, 2.5, 1], [0.5, 0.8, 1]])


def test_sequences_are_weighted_by_the_product() -> None:
    assert weights("sequence", 100) == near([[6, 6, 6], [0.4, 0.4, 0.4]])
    assert weights("sequence", 2) == near([[2, 2, 2], [0.4, 0.4, 0.4]])


def test_a_rollouts_rows_have_one_product() -> None:
    assert weights("sequence", 100, torch.tensor([3, 3])) == near([[2.4] * 3] * 2)


def test_none_weighs_nothing() -> None:
    assert weights("none", 2) == [[1.0] * 3] * 2


def test_a_long_sequence_saturates_at_the_cap_and_not_at_infinity() -> None:
    far = torch.full((1, 2000), 5.0)
    ones = torch.ones(1, 2000, dtype=torch.bool)
    result = correction_weights(far, -far, ones, torch.tensor([0]), level="sequence", cap=2.0)
    assert (result == 2).all()
