"""Each loss by hand and by finite differences; rollouts of several rows."""

import math

import pytest
import torch
from torch import Tensor

from uptrend.algo import LOSSES, Terms

from .cases import MAX_TOKENS, NAMES, learning_for, make_case

MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [0, 1, 0, 1], [0, 0, 0, 0]]).bool()
ROLLOUTS = torch.tensor([0, 1, 0, 2])
WEIGHTS = {  # rollout 0 has six tokens in two rows, rollout 1 has two, rollout 2 none
    "grpo": (1 / 18, 1 / 6),
    "gspo": (1 / 18, 1 / 6),
    "bnpo": (1 / 8, 1 / 8),
    "dapo": (1 / 8, 1 / 8),
    "cispo": (1 / 8, 1 / 8),
    "dr_grpo": (1 / 36, 1 / 36),
}


def terms_of(name: str, ratios: list[float], advantages: list[float], low: float, high: float) -> Terms:
    """One row of tokens whose old probability is 0.1, each a rollout's only token."""
    logprobs = (0.1 * torch.tensor(ratios, dtype=torch.float64)).log()[:, None].requires_grad_()
    old = torch.full_like(logprobs, math.log(0.1))
    mask = torch.ones_like(logprobs, dtype=torch.bool)
    given = torch.tensor(advantages, dtype=torch.float64)[:, None]
    return LOSSES[name].terms(logprobs, old, given, mask, torch.arange(len(ratios)), low, high)


def gradient(name: str, ratios: list[float], advantages: list[float], low: float, high: float) -> list[float]:
    """The gradient of each token's term by its log-probability."""
    logprobs = (0.1 * torch.tensor(ratios, dtype=torch.float64)).log()[:, None].requires_grad_()
    old = torch.full_like(logprobs, math.log(0.1))
    mask = torch.ones_like(logprobs, dtype=torch.bool)
    given = torch.tensor(advantages, dtype=torch.float64)[:, None]
    rollouts = torch.arange(len(ratios))
    LOSSES[name].terms(logprobs, old, given, mask, rollouts, low, high).loss_bt.sum().backward()
    assert logprobs.grad is not None
    return logprobs.grad[:, 0].tolist()


def test_the_names_are_those_of_the_config() -> None:
    assert tuple(LOSSES) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_weights_by_hand_where_a_rollout_has_two_rows(name: str) -> None:
    weights = LOSSES[name].weights(MASK, ROLLOUTS, MAX_TOKENS)
    first, second = WEIGHTS[name]
    expected = MASK * torch.tensor([first, second, first, 0.0])[:, None]
    torch.testing.assert_close(weights, expected)


@pytest.mark.parametrize("name", NAMES)
def test_weights_do_not_depend_on_rows_or_on_numbers(name: str) -> None:
    order = torch.tensor([2, 0, 3, 1])
    straight = LOSSES[name].weights(MASK, ROLLOUTS, MAX_TOKENS)
    shuffled = LOSSES[name].weights(MASK[order], 100 - 7 * ROLLOUTS[order], MAX_TOKENS)
    assert shuffled.equal(straight[order])


@pytest.mark.parametrize("name", NAMES)
def test_nothing_to_train_is_a_loss_of_zero(name: str) -> None:
    assert (LOSSES[name].weights(torch.zeros(2, 3, dtype=torch.bool), torch.tensor([0, 1]), 8) == 0).all()


@pytest.mark.parametrize("name", ["grpo", "bnpo", "dr_grpo", "dapo", "gspo"])
def test_the_clip_acts_only_where_it_holds_the_policy_back(name: str) -> None:
    ratios, advantages = [0.5, 0.5, 1.0, 2.0, 2.0], [1.0, -1.0, 3.0, 1.0, -1.0]
    terms = terms_of(name, ratios, advantages, 0.2, 0.3)
    assert terms.loss_bt[:, 0].tolist() == pytest.approx([-0.5, 0.8, -3.0, -1.3, 2.0])
    assert terms.clipped_low_bt[:, 0].tolist() == [False, True, False, False, False]
    assert terms.clipped_high_bt[:, 0].tolist() == [False, False, False, True, False]
    assert terms.ratio_bt[:, 0].tolist() == pytest.approx(ratios)
    assert not terms.ratio_bt.requires_grad
    assert gradient(name, ratios, advantages, 0.2, 0.3) == pytest.approx([-0.5, 0, -3, 0, 2])


def test_cispo_keeps_the_gradient_of_every_token() -> None:
    ratios, advantages = [0.5, 2.0, 8.0, 8.0, 8.0], [1.0, -1.0, 1.0, -2.0, 0.0]
    terms = terms_of("cispo", ratios, advantages, 0.2, 5.0)
    logs = [math.log(0.1 * r) for r in ratios]
    by_hand = [-0.5 * logs[0], 2 * logs[1], -5 * logs[2], 10 * logs[3], 0]
    assert terms.loss_bt[:, 0].tolist() == pytest.approx(by_hand)
    assert terms.clipped_high_bt[:, 0].tolist() == [False, False, True, True, False]
    assert not terms.clipped_low_bt.any()
    assert gradient("cispo", ratios, advantages, 0.2, 5.0) == pytest.approx([-0.5, 2, -5, 10, 0])


def test_gspo_has_one_ratio_over_all_rows_of_a_rollout() -> None:
    logs = torch.tensor([[0.3, -0.1, 9.0], [0.2, 9.0, 0.4], [0.6, 0.0, 9.0]], dtype=torch.float64)
    mask = torch.tensor([[True, True, False], [True, False, True], [True, True, False]])
    ones = torch.ones_like(logs)
    terms = LOSSES["gspo"].terms(logs, 0 * logs, ones, mask, torch.tensor([5, 6, 5]), 10.0, 10.0)
    first, second = math.exp((0.3 - 0.1 + 0.6 + 0.0) / 4), math.exp((0.2 + 0.4) / 2)
    expected = mask * torch.tensor([[first], [second], [first]], dtype=torch.float64)
    torch.testing.assert_close(terms.ratio_bt, expected)


@pytest.mark.parametrize("name", [n for n in NAMES if n != "cispo"])
def test_gradients_by_finite_differences(name: str) -> None:
    case, learning = make_case(11, [0, 1, 1, 2, 0, 3]), learning_for(name)

    def loss(logprobs: Tensor) -> Tensor:
        rest = (case.old_bt, case.advantages_bt, case.mask_bt, case.rollouts_b)
        return LOSSES[name].terms(logprobs, *rest, learning.clip_low, learning.clip_high).loss_bt

    assert torch.autograd.gradcheck(loss, case.logprobs_bt.clone().requires_grad_())


def test_cispo_has_the_policy_gradient_where_nothing_is_clipped() -> None:
    """Its weight is detached, so finite differences do not apply: r · A · ∇log π is ∇(r · A)."""
    case = make_case(11, [0, 1, 2, 3, 4, 5])
    logprobs = case.logprobs_bt.clone().requires_grad_()
    rest = (case.old_bt, case.advantages_bt, case.mask_bt, case.rollouts_b)
    LOSSES["cispo"].terms(logprobs, *rest, 0.2, 1e9).loss_bt.sum().backward()
    expected = -(case.logprobs_bt - case.old_bt).exp() * case.advantages_bt * case.mask_bt
    torch.testing.assert_close(logprobs.grad, expected)


@pytest.mark.parametrize("name", NAMES)
def test_what_lies_outside_the_mask_does_not_matter(name: str) -> None:
    case, learning = make_case(2, [0, 1, 2, 3]), learning_for(name)
    results = []
    for junk in (0.0, 1e4, float("nan")):
        filled = [x.masked_fill(~case.mask_bt, junk) for x in (case.logprobs_bt, -case.old_bt, case.advantages_bt)]
        logprobs = filled[0].requires_grad_()
        given = (logprobs, -filled[1], filled[2], case.mask_bt, case.rollouts_b)
        terms = LOSSES[name].terms(*given, learning.clip_low, learning.clip_high)
        terms.loss_bt.sum().backward()
        assert logprobs.grad is not None
        results.append((terms.loss_bt, terms.ratio_bt, terms.clipped_low_bt, terms.clipped_high_bt, logprobs.grad))
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            assert a.equal(b)
    assert (results[0][0][~case.mask_bt] == 0).all()
