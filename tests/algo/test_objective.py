"""The whole objective: what it adds up to, that micro-batches add up to it, and its importance
weights.
"""

import math
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from uptrend.algo import ESTIMATORS, LOSSES, correction_weights, objective, prepare
from uptrend.algo.masks import number_rollouts
from uptrend.config.schema import Learning

from .cases import MAX_TOKENS, NAMES, kl, learning_for, make_case

PAGE = (Path(__file__).parents[2] / "docs" / "guide" / "how.md").read_text(encoding="utf-8")
SPLITS = {
    "two halves": [torch.arange(4), torch.arange(4, 8)],
    "row by row": [torch.tensor([i]) for i in range(8)],
    "uneven, out of order": [
        torch.tensor([6, 0, 3]),
        torch.tensor([5]),
        torch.tensor([1, 7, 2, 4]),
    ],
}
APART = list(range(8))
ROLLOUTS = [0, 1, 2, 1, 3, 0, 0, 4]
TOGETHER = [torch.tensor([0, 5, 6]), torch.tensor([3, 1, 7]), torch.tensor([2, 4])]


def full(loss: str, **changes: object) -> Learning:
    """Everything switched on at once."""
    return learning_for(loss, **{"kl": kl(0.3), "entropy": 0.07, "correction": "token", **changes})


@pytest.mark.parametrize(
    ("name", "rows", "parts", "changes"),
    [
        *((name, APART, split, {}) for name in NAMES for split in SPLITS.values()),
        *(
            (name, ROLLOUTS, split, {})
            for name in NAMES
            for split in SPLITS.values()
            if name != "gspo"
        ),
        *((name, ROLLOUTS, TOGETHER, {"correction": "sequence"}) for name in NAMES),
        (
            "gspo",
            [0, 1, 2, 0],
            [torch.tensor([0]), torch.tensor([1, 2])],
            {},
        ),  # the last row has nothing to train
    ],
)
def test_accumulation_changes_nothing(
    name: str, rows: list[int], parts: list[torch.Tensor], changes: Any
) -> None:
    learning = full(name, **changes)
    for seed in range(3):
        case = make_case(seed, rows)
        loss, sums, *gradients = case.learn(learning)
        split_loss, split_sums, *split_gradients = case.learn(learning, *parts)
        pairs = [(loss, split_loss), *zip(gradients, split_gradients, strict=True)]
        pairs += [(getattr(sums, f.name), getattr(split_sums, f.name)) for f in fields(sums)]
        assert max(float((a - b).abs().max()) for a, b in pairs) < 1e-10


def test_the_parts_add_up_by_hand() -> None:
    case, learning = make_case(4, [0, 1, 2, 3]), full("dapo")
    loss, sums, _, _ = case.learn(learning)
    mask = case.mask_bt
    ratio = (case.logprobs_bt - case.old_bt).exp()
    clamped = ratio.clamp(1 - learning.clip_low, 1 + learning.clip_high)
    term = -torch.minimum(ratio * case.advantages_bt, clamped * case.advantages_bt)
    corrected = term * (case.old_bt - case.sampler_bt).exp().clamp(max=2)
    back = case.reference_bt - case.logprobs_bt
    k3 = back.exp() - 1 - back
    low = (ratio < 1 - learning.clip_low) & (case.advantages_bt < 0)
    by_hand = {
        "policy_loss": corrected[mask].mean(),
        "kl_loss": 0.3 * k3[mask].mean(),
        "entropy_bonus": 0.07 * case.entropy_bt[mask].mean(),
        "clipped_low": low[mask].sum(),
        "ratio": ratio[mask].sum(),
        "kl": k3[mask].sum(),
        "entropy": case.entropy_bt[mask].sum(),
        "tokens": mask.sum(),
    }
    for name, value in by_hand.items():  # weights are float32
        assert float(getattr(sums, name)) == pytest.approx(float(value), rel=1e-6), name
    assert float(loss) == pytest.approx(float(sums.policy_loss + sums.kl_loss - sums.entropy_bonus))


@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_gradient_by_finite_differences(estimator: str) -> None:
    case, learning = (
        make_case(5, [0, 0, 1, 2]),
        full("grpo", kl=kl(0.3, estimator), correction="none"),
    )
    batch = case.batch(learning)
    inputs = case.logprobs_bt.clone().requires_grad_(), case.entropy_bt.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda lp, h: objective(lp, h, batch, learning)[0], inputs)


def test_k1_leaves_the_loss_alone_but_the_distance_is_still_measured() -> None:
    case = make_case(6, [0, 1, 2, 3])
    without, with_k1 = (
        case.learn(learning_for("grpo", kl=penalty)) for penalty in (kl(0.0), kl(0.5, "k1"))
    )
    assert with_k1[0] == without[0]
    assert with_k1[2].equal(without[2])
    assert float(with_k1[1].kl_loss) == 0 < float(with_k1[1].kl)


@pytest.mark.parametrize("name", NAMES)
def test_without_old_numbers_the_ratio_is_one_and_the_gradient_is_the_policy_gradient(
    name: str,
) -> None:
    case, learning = make_case(7, [0, 1, 2, 3]), learning_for(name)
    batch = prepare(case.mask_bt, case.rollouts_b, case.advantages_bt, learning, MAX_TOKENS)
    logprobs = case.logprobs_bt.clone().requires_grad_()
    loss, sums = objective(logprobs, case.entropy_bt, batch, learning)
    loss.backward()
    assert float(sums.ratio) == int(sums.tokens)
    assert int(sums.clipped_low + sums.clipped_high) == 0
    torch.testing.assert_close(
        logprobs.grad, -batch.weights_bt * case.advantages_bt, check_dtype=False
    )


def test_what_lies_outside_the_mask_does_not_matter_and_padding_can_be_dropped() -> None:
    case, learning = make_case(8, [0, 1, 2, 3]), full("grpo")
    names = ("logprobs_bt", "entropy_bt", "advantages_bt", "old_bt", "sampler_bt", "reference_bt")
    junk = replace(
        case, **{n: getattr(case, n).masked_fill(~case.mask_bt, float("nan")) for n in names}
    )
    (loss, _, *gradients), (other, _, *others) = case.learn(learning), junk.learn(learning)
    assert loss == other
    assert all(a.equal(b) for a, b in zip(gradients, others, strict=True))
    short = replace(case, mask_bt=case.mask_bt & (torch.arange(9) < 5))
    rows, places = torch.arange(4).repeat_interleave(5), torch.arange(5).repeat(4)
    batch = short.batch(learning).tokens(rows, places, torch.tensor(True))
    cut = objective(
        *(x[:, :5].reshape(1, -1) for x in (case.logprobs_bt, case.entropy_bt)), batch, learning
    )
    assert float(cut[0]) == pytest.approx(float(short.learn(learning)[0]), abs=1e-12)


def test_what_an_option_needs_has_to_be_there() -> None:
    case, needs = (
        make_case(0, [0, 1, 2, 3]),
        {"sampler": {"correction": "token"}, "reference": {"kl": kl(0.1)}},
    )
    for needed, changes in needs.items():
        learning = learning_for("grpo", **changes)
        with pytest.raises(AssertionError, match=needed):
            prepare(case.mask_bt, case.rollouts_b, case.advantages_bt, learning, MAX_TOKENS)


LEARNER = (
    torch.tensor([[0.5, 0.9, 0.3], [0.2, 0.4, 0.1]], dtype=torch.float64).log().requires_grad_()
)
SAMPLER = torch.tensor([[0.25, 0.3, math.nan], [0.4, 0.5, math.nan]], dtype=torch.float64).log()


@pytest.mark.parametrize(
    ("level", "bounds", "mode", "rollouts", "weights"),
    [
        ("token", (0, 2.5), "truncate", [0, 1], [[2, 2.5, 1], [0.5, 0.8, 1]]),
        ("token", (0.6, 2.5), "truncate", [0, 1], [[2, 2.5, 1], [0.6, 0.8, 1]]),
        ("token", (0.6, 2.5), "mask", [0, 1], [[2, 0, 1], [0, 0.8, 1]]),
        ("sequence", (0, 100), "truncate", [0, 1], [[6, 6, 6], [0.4, 0.4, 0.4]]),
        ("sequence", (0, 2), "truncate", [0, 1], [[2, 2, 2], [0.4, 0.4, 0.4]]),
        ("sequence", (0, 2), "mask", [0, 1], [[0, 0, 0], [0.4, 0.4, 0.4]]),
        ("sequence", (0, 100), "truncate", [3, 3], [[2.4] * 3] * 2),
        ("none", (0, 2), "mask", [0, 1], [[1.0] * 3] * 2),
    ],
)
def test_importance_weights(
    level: Any,
    bounds: tuple[float, float],
    mode: Any,
    rollouts: list[int],
    weights: list[list[float]],
) -> None:
    mask, (floor, cap) = torch.tensor([[True, True, False]] * 2), bounds
    learning = Learning(
        correction=level, correction_floor=floor, correction_cap=cap, correction_mode=mode
    )
    found = correction_weights(
        LEARNER, SAMPLER, mask, *number_rollouts(torch.tensor(rollouts), mask), learning
    )
    torch.testing.assert_close(found, torch.tensor(weights, dtype=torch.float64))
    assert not found.requires_grad
    far, ones = torch.full((1, 2000), 5.0), torch.ones(1, 2000, dtype=torch.bool)
    one = torch.zeros(1, 2000, dtype=torch.long), 1
    saturated = correction_weights(far, -far, ones, *one, Learning(correction="sequence"))
    assert (saturated == 2).all(), "a long sequence reaches the cap, not infinity"


def test_the_page_describes_every_loss_and_its_example_runs() -> None:
    assert all(f"| `{name}` |" in PAGE for name in (*LOSSES, *ESTIMATORS))
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    gradient = names["logprobs"].grad
    assert (gradient[[0, 3], 1:] < 0).all()
    assert (gradient[[1, 2], 1:] > 0).all()
    assert (gradient[:, 0] == 0).all()
