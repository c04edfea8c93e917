"""Parts of the watch by themselves: roles, weights in the loss, gold answers, and which finding
explains which.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from synthetic import rollout_of
from uptrend.bridge.trl.batch import Call, LossPass, TrlBatch, roles_of
from uptrend.bridge.trl.findings_log import FindingsLog
from uptrend.bridge.trl.rollouts import RewardRange, loss_weights
from uptrend.bridge.trl.weights import WatchedWeights, name_wrong_sampler
from uptrend.bridge.trl.writer import spread_metrics, surprise_metrics
from uptrend.doctor.checks.golds import texts_depend
from uptrend.records import Evidence, Reward, Role, RunView, Severity
from uptrend.training.metrics import weight_metrics

P, M, T = Role.PROMPT, Role.MODEL, Role.TOOL


def test_roles_come_from_what_the_sampler_wrote() -> None:
    """Two calls with a tool's result between; the second is cut short."""
    calls = [
        Call([[1, 2]], [[3, 4]]),
        Call([[1, 2, 3, 4, 9, 9]], [[5, 6, 7]]),
        Call([[1, 8]], [[9]]),
    ]
    roles, turns = roles_of([1, 2], [3, 4, 9, 9, 5], calls)
    assert roles.tolist() == [P, P, M, M, T, T, M]
    assert turns.tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert M not in roles_of([1, 2], [3, 5], [Call([[1, 2]], [[3, 4]])])[0].tolist()


@pytest.mark.parametrize(
    ("loss", "first"), [("grpo", 1 / 2 / 2), ("dapo", 1 / 5), ("dr_grpo", 1 / 16)]
)
def test_loss_weights(loss: str, first: float) -> None:
    weights = loss_weights(np.array([[1, 1, 0], [1, 1, 1]]), loss, max_tokens=8)
    assert (weights[0, 0], weights[0, 2]) == (pytest.approx(first), 0)


def test_a_range_is_unknown_until_two_values_were_seen() -> None:
    scale = RewardRange.of(["a", "b"], [1.0, 2.0])
    scale.widen(np.array([[1.0, np.nan]]))
    assert np.isnan(scale.bounds()).all()
    scale.widen(np.array([[0.0, 1.0], [np.nan, 3.0]]))
    assert scale.bounds() == (2.0, 7.0)
    assert scale.reward(np.array([np.nan, np.nan])) is None
    reward = scale.reward(np.array([np.nan, 2.0]))
    assert reward is not None
    assert (reward.total, [part.name for part in reward.parts]) == (4.0, ["b"])


def test_prompts_and_answers_that_belong_together_are_told_from_shuffled_ones() -> None:
    draw = np.random.default_rng(0)
    pairs = draw.integers(0, 50, (200, 2))
    prompts, answers = [f"What is {a} + {b}?" for a, b in pairs], [str(a + b) for a, b in pairs]
    assert texts_depend(prompts, answers)
    alarms = sum(texts_depend(prompts, list(draw.permutation(answers))) for _ in range(100))
    assert alarms <= 8  # five comparisons at three deviations each


def test_deviations_within_groups_and_of_parts() -> None:
    rewards = [Reward.of("r", value, 0.0, 4.0, False) for value in (0.0, 2.0, 1.0, 1.0)]
    rollouts = [replace(rollout_of(1), reward=reward) for reward in (*rewards, None)]
    line = spread_metrics(rollouts, ["a", "a", "b", "b", "c"])
    assert line == {
        "reward/group_std/mean": 0.5,
        "reward/part/r/std": pytest.approx(np.std([0, 2, 1, 1])),
    }
    assert spread_metrics(rollouts[4:], ["c"]) == {}


def test_a_sample_of_many_weights_stands_for_all() -> None:
    model = torch.nn.Module()
    model.mlp = torch.nn.Parameter(torch.randn(3_000_000))
    model.norm = torch.nn.Parameter(torch.ones(5_000))
    weights = WatchedWeights(model)
    before = weights.snapshot()
    assert len(before.values) < 400_000
    with torch.no_grad():
        model.mlp += 1e-3
    moved = weight_metrics(weights.movement(weights.compare(before, weights.snapshot())))
    length = float(sum(p.detach().square().sum() for p in model.parameters())) ** 0.5
    assert moved["weights/update/norm"] == pytest.approx(1e-3 * 3_000_000**0.5, rel=0.01)
    assert moved["weights/update/norm/norm"] == 0
    assert moved["weights/changed/share"] == pytest.approx(0.998, abs=0.003)
    assert moved["weights/norm"] == pytest.approx(length, rel=0.01)


def test_a_cast_or_replaced_weight_is_sampled_from_its_new_place() -> None:
    model = torch.nn.Linear(64, 64)
    weights = WatchedWeights(model)
    assert weights.dtypes() == {"torch.float32": 64 * 65}
    model.weight.data = torch.full((64, 64), 2.0)
    assert (weights.snapshot().values == 2.0).sum() == 64 * 64
    model.to(torch.bfloat16)
    assert weights.dtypes() == weights.snapshot().dtypes == {"torch.bfloat16": 64 * 65}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_digest_is_of_every_bit(dtype: torch.dtype) -> None:
    model = torch.nn.Linear(331, 200).to(dtype)
    weights, values = WatchedWeights(model), model.weight.data.view(-1)
    seen = {weights.digest(), weights.digest()}
    for place in (0, 1, 40_000, 66_199):
        values.view(torch.int32 if dtype == torch.float32 else torch.int16)[place] ^= 1
        seen.add(weights.digest())
    values[:4096], values[4096:8192] = values[4096:8192].clone(), values[:4096].clone()
    assert len(seen | {weights.digest()}) == 6


def test_each_finding_is_printed_once_and_a_symptom_of_a_printed_one_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events: list[str] = []
    view = RunView("", "trl", "", np.zeros(0, np.int64), {}, rollout_steps=(1,))
    log = FindingsLog(view, tmp_path, lambda *_, **values: events.append(values["id"]))
    cause, symptom = "reward.gold-rejected", "optimizer.dead-steps"
    log.report(cause, Severity.CRITICAL, "Gold is rejected.", [Evidence("0 of 8", step=1)])
    log.report(cause, Severity.WARNING, "Gold is rejected again.", [Evidence("0 of 8", step=1)])
    log.report(symptom, Severity.WARNING, "No gradient.", [Evidence("0 of 8", step=1)])
    log.end()
    assert events == [cause, symptom]
    printed = capsys.readouterr().err
    assert printed.count("uptrend:") == 1
    assert "CRITICAL reward.gold-rejected: Gold is rejected." in printed


def test_what_another_process_gets_is_plain() -> None:
    """A user's own objects could not be read there."""

    class Picture:
        def __str__(self) -> str:
            return "a picture"

    asked = [{"role": "user", "content": [{"type": "image", "image": Picture()}]}]
    batch = TrlBatch(0, 1, 0, [{"own": Picture()}], ["7"], [asked], ["7"], [[3]], torch.zeros(1, 1),
                     {"advantages": torch.zeros(1, dtype=torch.bfloat16), "pixels": Picture()}, [], 0.0)  # fmt: skip
    plain = batch.portable()
    assert (plain.examples, plain.completions, list(plain.output)) == ([], ["7"], ["advantages"])
    assert plain.prompts[0][0]["content"][0]["image"] == "a picture"
    assert isinstance(plain.rewards, np.ndarray)
    assert isinstance(plain.output["advantages"], np.ndarray)


@pytest.mark.parametrize(("temperature", "surprise"), [(1.0, 0.0), (0.5, -0.35), (2.0, 0.35)])
def test_sampled_tokens_are_as_unlikely_as_the_entropy_says(
    temperature: float, surprise: float
) -> None:
    torch.manual_seed(0)
    logits = torch.randn(64, 200, 12)
    drawn = torch.distributions.Categorical(logits=logits / temperature).sample()
    own = torch.distributions.Categorical(logits=logits)
    mask = {"completion_mask": torch.ones(64, 200, dtype=torch.int)}
    batch = TrlBatch(0, 1, 0, [], [], [], [], [], None, mask, [], 0.0)
    seen = LossPass(
        0, torch.arange(64), None, None, own.log_prob(drawn), own.entropy(), is_first=True
    )
    found = surprise_metrics([(batch, seen)])["sampler/surprise/mean"]
    assert found == pytest.approx(surprise, abs=0.02 if surprise == 0 else 0.25)
    assert surprise == 0 or found * surprise > 0.05 * abs(surprise)
    seen.is_first = False  # an update has come between
    assert surprise_metrics([(batch, seen)]) == {}


def test_what_sampled_is_told_from_what_trains() -> None:
    model = torch.nn.Linear(8, 8)
    weights = WatchedWeights(model)
    then = weights.snapshot()
    assert name_wrong_sampler(then, weights.snapshot()) == ""
    with torch.no_grad():
        model.weight.data = model.weight + 1e-3
    assert "other weights" in name_wrong_sampler(then, weights.snapshot())
    assert "base model" in name_wrong_sampler("base", then)
    assert "another model" in name_wrong_sampler(None, then)
    model.to(torch.bfloat16)  # a cast is reported as one
    assert name_wrong_sampler(then, weights.snapshot()) == ""
