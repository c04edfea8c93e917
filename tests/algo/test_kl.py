"""KL estimators against the exact divergence, and their gradients against exact ones."""

import pytest
import torch
from torch import Tensor

from uptrend.algo import ESTIMATORS, kl_penalty


@pytest.fixture
def logits() -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    both = torch.randn(2, 12, generator=g, dtype=torch.float64)
    return both[0].requires_grad_(), both[1]


def expected(name: str, policy: Tensor, reference: Tensor) -> Tensor:
    """The estimator's mean over tokens sampled from the policy, exactly: the sampling carries no gradient."""
    learner, other = policy.log_softmax(0), reference.log_softmax(0)
    return (learner.exp().detach() * ESTIMATORS[name](learner, other)).sum()


def exact(policy: Tensor, reference: Tensor) -> Tensor:
    """KL(policy ‖ reference)."""
    learner, other = policy.log_softmax(0), reference.log_softmax(0)
    return (learner.exp() * (learner - other)).sum()


@pytest.mark.parametrize("name", ["k1", "k3"])
def test_k1_and_k3_are_unbiased(name: str, logits: tuple[Tensor, Tensor]) -> None:
    torch.testing.assert_close(expected(name, *logits), exact(*logits))


def test_k2_agrees_for_small_moves(logits: tuple[Tensor, Tensor]) -> None:
    near = logits[1] + 0.01 * logits[0].detach()
    assert float(expected("k2", near, logits[1])) == pytest.approx(float(exact(near, logits[1])), rel=0.02)


def test_k2_and_k3_are_never_negative() -> None:
    d = torch.linspace(-3, 3, 101, dtype=torch.float64)
    assert (ESTIMATORS["k2"](d, torch.zeros_like(d)) >= 0).all()
    assert (ESTIMATORS["k3"](d, torch.zeros_like(d)) >= 0).all()
    assert (ESTIMATORS["k1"](d, torch.zeros_like(d)) < 0).any()


def test_hand_computed() -> None:
    learner, reference = torch.tensor([0.5]).log(), torch.tensor([0.25]).log()
    two = float(torch.tensor(2.0).log())
    for name, value in {"k1": two, "k2": two**2 / 2, "k3": 0.5 - 1 + two}.items():
        assert float(ESTIMATORS[name](learner, reference)) == pytest.approx(value)


def test_gradients_in_the_loss(logits: tuple[Tensor, Tensor]) -> None:
    """k1: none in expectation. k2: that of KL(π ‖ ref). k3: that of KL(ref ‖ π)."""
    policy, reference = logits
    (k1,) = torch.autograd.grad(expected("k1", policy, reference), policy)
    (k2,) = torch.autograd.grad(expected("k2", policy, reference), policy)
    (k3,) = torch.autograd.grad(expected("k3", policy, reference), policy)
    (reverse,) = torch.autograd.grad(exact(policy, reference), policy)
    (forward,) = torch.autograd.grad(exact(reference, policy), policy)
    torch.testing.assert_close(k1, torch.zeros_like(k1))
    torch.testing.assert_close(k2, reverse)
    torch.testing.assert_close(k3, forward)


@pytest.mark.parametrize("name", ["k1", "k2", "k3"])
def test_gradients_by_finite_differences(name: str) -> None:
    learner = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    reference = torch.randn(3, 4, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: ESTIMATORS[name](x, reference), learner)


def test_penalty_sums_k1_over_trained_tokens_without_gradient() -> None:
    learner = torch.tensor([[-1.0, -2.0, 50.0], [-1.0, -1.0, -1.0]], requires_grad=True)
    reference = torch.tensor([[-1.5, -1.0, float("nan")], [-1.0, -2.0, -4.0]])
    mask = torch.tensor([[True, True, False], [False, True, True]])
    penalty = kl_penalty(learner, reference, mask)
    assert penalty.tolist() == [-0.5, 4.0]
    assert not penalty.requires_grad
