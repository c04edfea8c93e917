"""Importance weights from sampler to learner, and how far apart the two are."""

import math

import pytest
import torch

from uptrend.algo import correction_weights, effective_sample_size, mean_ratio, mismatch_kl

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


def test_figures_by_hand() -> None:
    ratio = [2.0, 3.0, 0.5, 0.8]
    squares = sum(r * r for r in ratio)
    assert effective_sample_size(LEARNER, SAMPLER, MASK) == pytest.approx(sum(ratio) ** 2 / (4 * squares))
    assert mean_ratio(LEARNER, SAMPLER, MASK) == pytest.approx(sum(ratio) / 4)
    kl = sum(r - 1 - math.log(r) for r in ratio) / 4
    assert mismatch_kl(LEARNER, SAMPLER, MASK) == pytest.approx(kl)


def test_the_same_policy_is_no_mismatch_and_neither_is_no_token() -> None:
    assert effective_sample_size(LEARNER, LEARNER, MASK) == pytest.approx(1)
    assert mean_ratio(LEARNER, LEARNER, MASK) == 1
    assert mismatch_kl(LEARNER, LEARNER, MASK) == 0
    nothing = torch.zeros_like(MASK)
    assert effective_sample_size(LEARNER, SAMPLER, nothing) == 1
    assert mean_ratio(LEARNER, SAMPLER, nothing) == 1
    assert mismatch_kl(LEARNER, SAMPLER, nothing) == 0


def test_mismatch_is_the_divergence_of_learner_from_sampler() -> None:
    g = torch.Generator().manual_seed(0)
    sampler, learner = torch.randn(2, 20, generator=g, dtype=torch.float64).log_softmax(1)
    exact = float((sampler.exp() * (sampler - learner)).sum())
    drawn = torch.multinomial(sampler.exp(), 200_000, replacement=True, generator=g)[None]
    mask = torch.ones_like(drawn, dtype=torch.bool)
    assert mismatch_kl(learner[drawn], sampler[drawn], mask) == pytest.approx(exact, rel=0.02)
    assert mean_ratio(learner[drawn], sampler[drawn], mask) == pytest.approx(1, abs=0.01)
