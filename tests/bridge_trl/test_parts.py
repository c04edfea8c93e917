"""Parts of the watch by themselves: roles, weights in the loss, gold answers, and who explains whom."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from synthetic import rollout_of
from uptrend.bridge.trl.batch import Call, roles_of
from uptrend.bridge.trl.columns import loss_weights
from uptrend.bridge.trl.findings_log import FindingsLog
from uptrend.bridge.trl.metrics import spread_metrics
from uptrend.bridge.trl.probes.alignment import texts_agree
from uptrend.bridge.trl.probes.gold import core_of, corrupted, gold_column
from uptrend.bridge.trl.weights import WatchedWeights, movable_share
from uptrend.records import Confidence, Evidence, Reward, Role, RunView, Severity
from uptrend.training.metrics import weight_metrics

P, M, T = Role.PROMPT, Role.MODEL, Role.TOOL


def test_roles_come_from_what_the_sampler_wrote() -> None:
    """Two calls with a tool's result between; the second is cut short."""
    prompt, written = [1, 2], [3, 4, 9, 9, 5]
    calls = [Call([[1, 2]], [[3, 4]]), Call([[1, 2, 3, 4, 9, 9]], [[5, 6, 7]]), Call([[1, 8]], [[9]])]
    roles, turns = roles_of(prompt, written, calls)
    assert roles.tolist() == [P, P, M, M, T, T, M]
    assert turns.tolist() == [0, 0, 0, 0, 1, 1, 1]


def test_what_was_never_sampled_is_nobodys() -> None:
    roles, _ = roles_of([1, 2], [3, 5], [Call([[1, 2]], [[3, 4]])])
    assert M not in roles.tolist()


@pytest.mark.parametrize(("loss", "first"), [("grpo", 1 / 2 / 2), ("dapo", 1 / 5), ("dr_grpo", 1 / 16)])
def test_loss_weights(loss: str, first: float) -> None:
    mask = np.array([[1, 1, 0], [1, 1, 1]])
    weights = loss_weights(mask, loss, max_tokens=8)
    assert weights[0, 0] == pytest.approx(first)
    assert weights[0, 2] == 0


def test_gold_answers_are_found_and_corrupted() -> None:
    assert gold_column({"prompt": "x", "Solution": "a #### 7"}) == "Solution"
    assert gold_column({"prompt": "x", "id": 3}) is None
    assert [core_of(text) for text in ("so 3 #### 1,200", r"thus \boxed{5}", "<answer> a </answer>", " b ")] == [
        "1,200", "5", "a", "b",
    ]  # fmt: skip
    assert [corrupted(core, ["Paris", "Rome"]) for core in ("12", "1,200", "2.5", "Rome", "paris")] == [
        "13", "1201", "3.5", "Paris", "Rome",
    ]  # fmt: skip


def test_prompts_and_answers_that_belong_together_are_told_from_shuffled_ones() -> None:
    draw = np.random.default_rng(0)
    pairs = draw.integers(0, 50, (200, 2))
    prompts, answers = [f"What is {a} + {b}?" for a, b in pairs], [str(a + b) for a, b in pairs]
    assert texts_agree(prompts, answers)
    alarms = sum(texts_agree(prompts, list(draw.permutation(answers))) for _ in range(100))
    assert alarms <= 8  # five looks at three deviations each


def test_deviations_within_groups_and_of_parts() -> None:
    rewards = [Reward.of("r", value, 0.0, 4.0, False) for value in (0.0, 2.0, 1.0, 1.0)]
    rollouts = [replace(rollout_of(1), reward=reward) for reward in (*rewards, None)]
    line = spread_metrics(rollouts, ["a", "a", "b", "b", "c"])
    assert line["reward/group_std/mean"] == 0.5
    assert line["reward/part/r/std"] == pytest.approx(np.std([0, 2, 1, 1]))
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
    assert moved["weights/update/norm"] == pytest.approx(1e-3 * 3_000_000**0.5, rel=0.01)
    assert moved["weights/update/norm/norm"] == 0
    assert moved["weights/changed/share"] == pytest.approx(0.998, abs=0.003)
    assert moved["weights/norm"] == pytest.approx(
        float(sum(p.detach().square().sum() for p in model.parameters())) ** 0.5, rel=0.01
    )


def test_a_cast_or_replaced_weight_is_looked_at_where_it_lies_now() -> None:
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
    start = weights.digest()
    assert weights.digest() == start
    seen = {start}
    for place in (0, 1, 40_000, 66_199):
        values.view(torch.int32 if dtype == torch.float32 else torch.int16)[place] ^= 1
        seen.add(weights.digest())
    values[:4096], values[4096:8192] = values[4096:8192].clone(), values[:4096].clone()
    seen.add(weights.digest())
    assert len(seen) == 6


def test_movable_share_is_what_rounding_leaves() -> None:
    model = torch.nn.Linear(400, 400)
    torch.nn.init.normal_(model.weight, std=0.02)
    snapshot = WatchedWeights(model).snapshot()
    assert movable_share(snapshot, torch.float32, 5e-6) > 0.99
    assert movable_share(snapshot, torch.bfloat16, 5e-6) < 0.15
    assert movable_share(snapshot, torch.bfloat16, 1e-2) > 0.99


def test_each_finding_is_said_once_and_a_symptom_of_one_that_was_said_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events: list[str] = []
    view = RunView("", "trl", "", np.zeros(0, np.int64), {}, rollout_steps=(1,))
    findings_log = FindingsLog(view, tmp_path, lambda *_, **values: events.append(values["id"]))
    said = [Evidence("0 of 8", step=1)]
    cause, symptom = "reward.gold-rejected", "optimizer.dead-steps"
    findings_log.say(cause, Severity.CRITICAL, Confidence.HIGH, "Gold is rejected.", said)
    findings_log.say(cause, Severity.WARNING, Confidence.HIGH, "Gold is rejected again.", said)
    findings_log.say(symptom, Severity.WARNING, Confidence.HIGH, "No gradient.", said)
    findings_log.end()
    assert events == [cause, symptom]
    printed = capsys.readouterr().err
    assert printed.count("uptrend:") == 1
    assert "CRITICAL reward.gold-rejected: Gold is rejected." in printed
