"""Each loss and KL estimate by hand, against exact values and by finite differences; rollouts of
several rows.
"""

import math

import pytest
import torch
from torch import Tensor

from uptrend.algo import ESTIMATORS, LOSSES, Terms, kl_penalty
from uptrend.algo.losses import Clips
from uptrend.algo.masks import number_rollouts

from .cases import MAX_TOKENS, NAMES, learning_for, make_case

MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [0, 1, 0, 1], [0, 0, 0, 0]]).bool()
ROLLOUTS = torch.tensor([0, 1, 0, 2])
WEIGHTS = {  # rollout 0 has six tokens in two rows, rollout 1 has two, rollout 2 none
    "grpo": (1 / 18, 1 / 6),
    "bnpo": (1 / 8, 1 / 8),
    "dr_grpo": (1 / 36, 1 / 36),
    "dapo": (1 / 8, 1 / 8),
    "gspo": (1 / 18, 1 / 6),
    "cispo": (1 / 8, 1 / 8),
}


@pytest.mark.parametrize("name", LOSSES)
def test_weights_by_hand_where_a_rollout_has_two_rows(name: str) -> None:
    assert tuple(LOSSES) == tuple(WEIGHTS) == NAMES
    weights = LOSSES[name].weights(MASK, *number_rollouts(ROLLOUTS, MASK), MAX_TOKENS)
    first, second = WEIGHTS[name]
    torch.testing.assert_close(weights, MASK * torch.tensor([first, second, first, 0.0])[:, None])
    order = torch.tensor([2, 0, 3, 1])
    others = number_rollouts(100 - 7 * ROLLOUTS[order], MASK)
    shuffled = LOSSES[name].weights(MASK[order], *others, MAX_TOKENS)
    assert shuffled.equal(weights[order])
    none = torch.zeros(2, 3, dtype=torch.bool)
    assert (LOSSES[name].weights(none, *number_rollouts(torch.tensor([0, 1]), none), 8) == 0).all()


def terms_and_gradient(
    name: str, ratios: list[float], advantages: list[float], high: float, most: float = 0.0
) -> tuple[Terms, Tensor]:
    """Return terms of tokens whose old probability is 0.1, each a rollout's only one, and their
    gradient.
    """
    logprobs = (0.1 * torch.tensor(ratios, dtype=torch.float64)).log()[:, None].requires_grad_()
    old, mask = (
        torch.full_like(logprobs, math.log(0.1)),
        torch.ones_like(logprobs, dtype=torch.bool),
    )
    given, each = (
        torch.tensor(advantages, dtype=torch.float64)[:, None],
        number_rollouts(torch.arange(len(ratios)), mask),
    )
    terms = LOSSES[name].terms(logprobs, old, given, mask, *each, Clips(0.2, high, most))
    return terms, torch.autograd.grad(terms.loss_bt.sum(), logprobs)[0][:, 0]


@pytest.mark.parametrize("name", [n for n in NAMES if n != "cispo"])
def test_the_clip_acts_only_where_it_holds_the_policy_back(name: str) -> None:
    ratios = [0.5, 0.5, 1.0, 2.0, 2.0]
    terms, gradient = terms_and_gradient(name, ratios, [1.0, -1.0, 3.0, 1.0, -1.0], 0.3)
    assert terms.loss_bt[:, 0].tolist() == pytest.approx([-0.5, 0.8, -3.0, -1.3, 2.0])
    assert terms.clipped_low_bt[:, 0].tolist() == [False, True, False, False, False]
    assert terms.clipped_high_bt[:, 0].tolist() == [False, False, False, True, False]
    assert terms.ratio_bt[:, 0].tolist() == pytest.approx(ratios)
    assert not terms.ratio_bt.requires_grad
    assert gradient.tolist() == pytest.approx([-0.5, 0, -3, 0, 2])


def test_two_sided_clipping_bounds_what_a_negative_advantage_can_add() -> None:
    terms, gradient = terms_and_gradient(
        "grpo", [3.0, 9.0, 9.0, 0.5], [-1.0, -1.0, 1.0, -1.0], 0.3, most=4.0
    )
    assert terms.loss_bt[:, 0].tolist() == pytest.approx([3.0, 4.0, -1.3, 0.8])
    assert terms.clipped_high_bt[:, 0].tolist() == [False, True, True, False]
    assert terms.clipped_low_bt[:, 0].tolist() == [False, False, False, True]
    assert gradient.tolist() == pytest.approx([3, 0, 0, 0])
    assert terms.ratio_bt[1, 0] == pytest.approx(9.0), "the ratio is told as it is"


def test_cispo_keeps_the_gradient_of_every_token() -> None:
    ratios = [0.5, 2.0, 8.0, 8.0, 8.0]
    terms, gradient = terms_and_gradient("cispo", ratios, [1.0, -1.0, 1.0, -2.0, 0.0], 5.0)
    logs = [math.log(0.1 * r) for r in ratios]
    assert terms.loss_bt[:, 0].tolist() == pytest.approx(
        [-0.5 * logs[0], 2 * logs[1], -5 * logs[2], 10 * logs[3], 0]
    )
    assert terms.clipped_high_bt[:, 0].tolist() == [False, False, True, True, False]
    assert not terms.clipped_low_bt.any()
    assert gradient.tolist() == pytest.approx([-0.5, 2, -5, 10, 0])


def test_gspo_has_one_ratio_over_all_rows_of_a_rollout() -> None:
    logs = torch.tensor([[0.3, -0.1, 9.0], [0.2, 9.0, 0.4], [0.6, 0.0, 9.0]], dtype=torch.float64)
    mask = torch.tensor([[True, True, False], [True, False, True], [True, True, False]])
    rollouts = number_rollouts(torch.tensor([5, 6, 5]), mask)
    terms = LOSSES["gspo"].terms(
        logs, 0 * logs, torch.ones_like(logs), mask, *rollouts, Clips(10.0, 10.0)
    )
    first, second = math.exp((0.3 - 0.1 + 0.6 + 0.0) / 4), math.exp((0.2 + 0.4) / 2)
    torch.testing.assert_close(
        terms.ratio_bt, mask * torch.tensor([[first], [second], [first]], dtype=torch.float64)
    )


@pytest.mark.parametrize("name", NAMES)
def test_gradients_by_finite_differences(name: str) -> None:
    case, learning = make_case(11, [0, 1, 1, 2, 0, 3]), learning_for(name)
    rest = (
        case.old_bt,
        case.advantages_bt,
        case.mask_bt,
        *number_rollouts(case.rollouts_b, case.mask_bt),
    )
    logprobs = case.logprobs_bt.clone().requires_grad_()
    if (
        name == "cispo"
    ):  # its weight is detached, so they do not apply: unclipped, r · A · ∇log π is ∇(r · A)
        LOSSES[name].terms(logprobs, *rest, Clips(0.2, 1e9)).loss_bt.sum().backward()
        expected = -(case.logprobs_bt - case.old_bt).exp() * case.advantages_bt * case.mask_bt
        torch.testing.assert_close(logprobs.grad, expected)
    else:
        clips = Clips.of(learning)
        assert torch.autograd.gradcheck(
            lambda x: LOSSES[name].terms(x, *rest, clips).loss_bt, logprobs
        )


@pytest.mark.parametrize("name", NAMES)
def test_what_lies_outside_the_mask_does_not_matter(name: str) -> None:
    case, learning = make_case(2, [0, 1, 2, 3]), learning_for(name)
    results = []
    for junk in (0.0, 1e4, float("nan")):
        filled = [
            x.masked_fill(~case.mask_bt, junk)
            for x in (case.logprobs_bt, -case.old_bt, case.advantages_bt)
        ]
        logprobs = filled[0].requires_grad_()
        rollouts = number_rollouts(case.rollouts_b, case.mask_bt)
        given = (logprobs, -filled[1], filled[2], case.mask_bt, *rollouts)
        terms = LOSSES[name].terms(*given, Clips.of(learning))
        results.append(
            [*vars(terms).values(), torch.autograd.grad(terms.loss_bt.sum(), logprobs)[0]]
        )
    for other in results[1:]:
        assert all(a.equal(b) for a, b in zip(results[0], other, strict=True))
    assert (results[0][0][~case.mask_bt] == 0).all()


LOGITS = torch.randn(2, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def expected(name: str, policy: Tensor, reference: Tensor) -> Tensor:
    """Return the estimator's mean over tokens sampled from the policy, exactly: the sampling
    carries no gradient.
    """
    learner, other = policy.log_softmax(0), reference.log_softmax(0)
    return (learner.exp().detach() * ESTIMATORS[name](learner, other)).sum()


def exact(policy: Tensor, reference: Tensor) -> Tensor:
    """Return KL(policy ‖ reference)."""
    learner, other = policy.log_softmax(0), reference.log_softmax(0)
    return (learner.exp() * (learner - other)).sum()


def test_estimates_of_the_divergence() -> None:
    policy, reference = LOGITS
    for name in ("k1", "k3"):  # unbiased
        torch.testing.assert_close(expected(name, policy, reference), exact(policy, reference))
    near = reference + 0.01 * policy  # k2 agrees for small moves
    assert float(expected("k2", near, reference)) == pytest.approx(
        float(exact(near, reference)), rel=0.02
    )
    d = torch.linspace(-3, 3, 101, dtype=torch.float64)
    assert [
        name
        for name, estimate in ESTIMATORS.items()
        if (estimate(d, torch.zeros_like(d)) < 0).any()
    ] == ["k1"]
    half, two = torch.tensor([0.5, 0.25]).log(), math.log(2)
    for name, value in {"k1": two, "k2": two**2 / 2, "k3": 0.5 - 1 + two}.items():
        assert float(ESTIMATORS[name](*half)) == pytest.approx(value)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_gradients_of_the_estimates(name: str) -> None:
    """In expectation k1 has none, k2 that of KL(π ‖ ref), k3 that of KL(ref ‖ π)."""
    policy, reference = LOGITS[0].clone().requires_grad_(), LOGITS[1]
    toward = {
        "k1": 0 * policy.sum(),
        "k2": exact(policy, reference),
        "k3": exact(reference, policy),
    }[name]
    ours, theirs = (
        torch.autograd.grad(x, policy)[0] for x in (expected(name, policy, reference), toward)
    )
    torch.testing.assert_close(ours, theirs)
    assert torch.autograd.gradcheck(lambda x: ESTIMATORS[name](x, reference), policy)


def test_penalty_sums_k1_over_trained_tokens_without_gradient() -> None:
    learner = torch.tensor([[-1.0, -2.0, 50.0], [-1.0, -1.0, -1.0]], requires_grad=True)
    reference = torch.tensor([[-1.5, -1.0, float("nan")], [-1.0, -2.0, -4.0]])
    penalty = kl_penalty(
        learner, reference, torch.tensor([[True, True, False], [False, True, True]])
    )
    assert penalty.tolist() == [-0.5, 4.0]
    assert not penalty.requires_grad


@pytest.mark.parametrize("name", sorted({*LOSSES} - {"dr_grpo"}))
def test_weights_of_one_trained_token_sum_to_one(name: str) -> None:
    mask = torch.tensor([[False, True, False]])
    assert (
        float(LOSSES[name].weights(mask, *number_rollouts(torch.tensor([0]), mask), 8).sum()) == 1.0
    )
