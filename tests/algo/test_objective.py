"""The whole objective: what it adds up to, and that micro-batches add up to it."""

from dataclasses import fields, replace

import pytest
import torch

from uptrend.algo import LOSSES, objective, prepare
from uptrend.config.schema import Learning

from .cases import MAX_TOKENS, NAMES, kl, learning_for, make_case

WHOLE = [torch.arange(8)]
SPLITS = {
    "two halves": [torch.arange(4), torch.arange(4, 8)],
    "row by row": [torch.tensor([i]) for i in range(8)],
    "uneven, out of order": [torch.tensor([6, 0, 3]), torch.tensor([5]), torch.tensor([1, 7, 2, 4])],
}
ROLLOUTS = [0, 1, 2, 1, 3, 0, 0, 4]
TOGETHER = [torch.tensor([0, 5, 6]), torch.tensor([3, 1, 7]), torch.tensor([2, 4])]


def full(loss: str, **changes: object) -> Learning:
    """Everything switched on at once."""
    return learning_for(loss, **{"kl": kl(0.3), "entropy": 0.07, "correction": "token", **changes})


def assert_same(case_rows: list[int], learning: Learning, parts: list[torch.Tensor]) -> float:
    """One piece and many have the same loss, gradients and sums; returns the greatest difference."""
    worst = 0.0
    for seed in range(3):
        case = make_case(seed, case_rows)
        loss, sums, *gradients = case.learn(learning)
        split_loss, split_sums, *split_gradients = case.learn(learning, *parts)
        pairs = [(loss, split_loss), *zip(gradients, split_gradients, strict=True)]
        pairs += [(getattr(sums, f.name), getattr(split_sums, f.name)) for f in fields(sums)]
        worst = max([worst, *(float((a - b).abs().max()) for a, b in pairs)])
    assert worst < 1e-10
    return worst


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("name", NAMES)
def test_accumulation_changes_nothing(name: str, split: str) -> None:
    worst = assert_same(list(range(8)), full(name), SPLITS[split])
    print(f"\n{name}, {split}: greatest difference {worst:.1e}")


@pytest.mark.parametrize("name", [n for n in NAMES if not LOSSES[n].whole_rollouts])
@pytest.mark.parametrize("split", SPLITS)
def test_a_rollouts_rows_may_be_split(name: str, split: str) -> None:
    assert_same(ROLLOUTS, full(name), SPLITS[split])


@pytest.mark.parametrize("name", NAMES)
def test_a_rollouts_rows_kept_together_work_for_all(name: str) -> None:
    assert_same(ROLLOUTS, full(name, correction="sequence"), TOGETHER)


@pytest.mark.parametrize("learning", [full("gspo"), full("grpo", correction="sequence")])
def test_a_split_rollout_is_refused_where_it_would_be_wrong(learning: Learning) -> None:
    with pytest.raises(AssertionError, match="all rows of a rollout"):
        make_case(0, ROLLOUTS).batch(learning).rows(torch.arange(4))


def test_a_row_without_trained_tokens_may_be_missing() -> None:
    case, learning = make_case(0, [0, 1, 2, 0]), full("gspo")  # the last row has nothing to train
    assert_same([0, 1, 2, 0], learning, [torch.tensor([0]), torch.tensor([1, 2])])
    assert not case.mask_bt[3].any()


def test_the_parts_add_up_by_hand() -> None:
    case, learning = make_case(4, [0, 1, 2, 3]), full("dapo")
    loss, sums, _, _ = case.learn(learning)
    mask, tokens = case.mask_bt, int(case.mask_bt.sum())
    ratio = (case.logprobs_bt - case.old_bt).exp()
    clamped = ratio.clamp(1 - learning.clip_low, 1 + learning.clip_high)
    term = -torch.minimum(ratio * case.advantages_bt, clamped * case.advantages_bt)
    corrected = term * (case.old_bt - case.sampler_bt).exp().clamp(max=2)
    back = case.reference_bt - case.logprobs_bt
    k3 = back.exp() - 1 - back
    means = {
        "policy_loss": corrected[mask],
        "kl_loss": 0.3 * k3[mask],
        "entropy_bonus": 0.07 * case.entropy_bt[mask],
    }
    for name, values in means.items():  # weights are float32
        assert float(getattr(sums, name)) == pytest.approx(float(values.mean()), rel=1e-6)
    assert float(loss) == pytest.approx(float(sums.policy_loss + sums.kl_loss - sums.entropy_bonus))
    assert float(sums.kl) == pytest.approx(float(k3[mask].sum()))
    assert float(sums.entropy) == pytest.approx(float(case.entropy_bt[mask].sum()))
    assert float(sums.ratio) == pytest.approx(float(ratio[mask].sum()))
    assert int(sums.tokens) == tokens
    low = (ratio < 1 - learning.clip_low) & (case.advantages_bt < 0) & mask
    assert int(sums.clipped_low) == int(low.sum())


@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_gradient_by_finite_differences(estimator: str) -> None:
    case, learning = make_case(5, [0, 0, 1, 2]), full("grpo", kl=kl(0.3, estimator), correction="none")
    batch = case.batch(learning)
    inputs = case.logprobs_bt.clone().requires_grad_(), case.entropy_bt.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda lp, h: objective(lp, h, batch, learning)[0], inputs)


def test_k1_leaves_the_loss_alone_but_the_distance_is_still_measured() -> None:
    case = make_case(6, [0, 1, 2, 3])
    without = case.learn(learning_for("grpo"))
    with_k1 = case.learn(learning_for("grpo", kl=kl(0.5, "k1")))
    assert with_k1[0] == without[0]
    assert with_k1[2].equal(without[2])
    assert float(with_k1[1].kl_loss) == 0
    assert float(with_k1[1].kl) > 0


@pytest.mark.parametrize("name", NAMES)
def test_without_old_numbers_the_ratio_is_one_and_the_gradient_is_the_policy_gradient(name: str) -> None:
    case, learning = make_case(7, [0, 1, 2, 3]), learning_for(name)
    batch = prepare(case.mask_bt, case.rollouts_b, case.advantages_bt, learning, MAX_TOKENS)
    logprobs = case.logprobs_bt.clone().requires_grad_()
    loss, sums = objective(logprobs, case.entropy_bt, batch, learning)
    loss.backward()
    assert float(sums.ratio) == int(sums.tokens)
    assert int(sums.clipped_low + sums.clipped_high) == 0
    torch.testing.assert_close(logprobs.grad, -batch.weights_bt * case.advantages_bt, check_dtype=False)


def test_what_lies_outside_the_mask_does_not_matter() -> None:
    case, learning = make_case(8, [0, 1, 2, 3]), full("grpo")
    names = ("logprobs_bt", "entropy_bt", "advantages_bt", "old_bt", "sampler_bt", "reference_bt")
    junk = replace(case, **{n: getattr(case, n).masked_fill(~case.mask_bt, float("nan")) for n in names})
    for a, b in zip(case.learn(learning)[2:], junk.learn(learning)[2:], strict=True):
        assert a.equal(b)
    assert case.learn(learning)[0] == junk.learn(learning)[0]


def test_micro_batches_can_drop_padding() -> None:
    case, learning = make_case(9, [0, 1, 2, 3]), full("grpo")
    short = replace(case, mask_bt=case.mask_bt & (torch.arange(9) < 5))
    batch = short.batch(learning).rows(torch.arange(4), length=5)
    cut = objective(case.logprobs_bt[:, :5], case.entropy_bt[:, :5], batch, learning)
    assert float(cut[0]) == pytest.approx(float(short.learn(learning)[0]), abs=1e-12)


def test_what_an_option_needs_has_to_be_there() -> None:
    case = make_case(0, [0, 1, 2, 3])
    given = (case.mask_bt, case.rollouts_b, case.advantages_bt)
    with pytest.raises(AssertionError, match="sampler"):
        prepare(*given, learning_for("grpo", correction="token"), MAX_TOKENS)
    with pytest.raises(AssertionError, match="reference"):
        prepare(*given, learning_for("grpo", kl=kl(0.1)), MAX_TOKENS)
