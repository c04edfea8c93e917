"""Faults planted into real TRL runs: each is named, live, from TRL's own tensors and the user's own
functions.
"""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.faults.watched import RUNS
from small_sums import make_trainer, right, sums

from uptrend.bridge.trl import watch
from uptrend.records import Run

pytestmark = pytest.mark.slow

PLANTED = {run.name: run for run in RUNS}
Go = Callable[..., dict[str, dict[str, Any]]]


@pytest.fixture
def go(tiny_folder: str, tmp_path: Path) -> Go:
    """Train a few watched steps, with a fault of the benchmark or other options; return the
    findings, by id.
    """
    torch.set_num_threads(1)

    def train(planted: str = "healthy", steps: int = 2, **options: Any) -> Any:
        run = PLANTED[planted]
        trainer = make_trainer(tiny_folder, tmp_path, **{"steps": steps, **run.options, **options})
        run.alter(trainer)
        path = watch(trainer).path
        trainer.train()
        assert [e for e in Run(path).events if e["event"] == "watch-failed"] == []
        return {
            finding["id"]: finding
            for finding in json.loads((path / "findings.json").read_text())["findings"]
        }

    return train


@pytest.mark.parametrize(
    ("planted", "basis"),
    [
        ("index", "proof"),
        ("shuffled answers", "signal"),
        ("mixed", "proof"),
        ("dropout", "proof"),
        ("stops", "proof"),
        ("min-p of the files", "proof"),
    ],
)
def test_a_fault_is_named(go: Go, planted: str, basis: str) -> None:
    found = go(planted)[PLANTED[planted].fault or ""]
    assert (found["severity"] != "note", found["basis"]) == (True, basis)


def test_a_setting_of_the_files_that_was_asked_for_is_not_hidden(
    tiny_folder: str, tmp_path: Path
) -> None:
    trainer = make_trainer(tiny_folder, tmp_path, steps=1, generation_kwargs={"min_p": 0.5})
    trainer.model.generation_config.min_p = 0.5
    trainer.model.generation_config.temperature = 0.1  # the trainer's own wins
    path = watch(trainer).path
    trainer.train()
    info = Run(path).info
    assert info["sampler"] == {"engine": "generate", "hidden": {}}
    assert info["model"]["files"]["generation"] == {"temperature": 0.1, "min_p": 0.5}
    assert {"trl", "torch", "transformers"} <= info["packages"].keys()


def wants_tags(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    return [float(f"<answer>{a}</answer>" in c) for c, a in zip(completions, answer, strict=True)]


def wants_six_characters(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    return [(len(c) >= 6) * right([c], [a])[0] for c, a in zip(completions, answer, strict=True)]


def accepts_nothing(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    return [0.0 * len(answer)] * len(completions)


def within_a_hundredth(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    """Pay numbers near the answer, as a scorer with a relative tolerance does."""
    texts = [re.search(r"-?\d+", completion) for completion in completions]
    numbers = [float(text.group()) if text else math.inf for text in texts]
    golds = list(map(float, answer))
    return [
        float(abs(number - gold) <= 0.01 * abs(gold))
        for number, gold in zip(numbers, golds, strict=True)
    ]


@pytest.mark.parametrize(
    ("absent", "options"),
    [
        ("reward.gold-rejected", {"reward": wants_tags}),
        ("reward.gold-rejected", {"reward": wants_six_characters}),
        ("reward.gold-rejected", {"reward": within_a_hundredth, "rows": sums(chat=False, most=70)}),
        ("precision.update-underflow", {"lr": 5e-6, "bf16": True}),
    ],
    ids=["tags", "six characters", "a tolerance", "bf16 arithmetic"],
)
def test_what_resembles_a_fault_is_not_called_one(
    go: Go, absent: str, options: dict[str, Any]
) -> None:
    assert absent not in go(**options)


def flipped(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    return [-score for score in right(completions, answer)]


def no_large(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    return [
        score * (len(gold) < 2)
        for score, gold in zip(right(completions, answer), answer, strict=True)
    ]


def anywhere(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    return [float(gold in completion) for completion, gold in zip(completions, answer, strict=True)]


@pytest.mark.parametrize(
    ("reward", "id", "said"),
    [
        (flipped, "reward.gold-rejected", "less than wrong ones"),
        (no_large, "reward.gold-rejected", "two digits or more"),
        (anywhere, "reward.hackable", "as much as the right answer"),
    ],
)
def test_rewards_of_users(go: Go, reward: Any, id: str, said: str) -> None:
    found = go(reward=reward)[id]
    assert found["severity"] != "note"
    assert said in found["summary"]


def test_gold_answers_that_earn_nothing_in_any_form(go: Go) -> None:
    found = go(reward=accepts_nothing, steps=5)["reward.gold-rejected"]
    assert (found["severity"] != "note", found["basis"]) == (True, "signal")


def test_a_reward_that_cuts_the_prompt_off_the_completion(
    go: Go, capsys: pytest.CaptureFixture[str]
) -> None:
    found = go("slice")["reward.gold-rejected"]
    assert (found["severity"], found["basis"], found["evidence"][0]["step"]) == (
        "critical",
        "proof",
        1,
    )
    assert capsys.readouterr().err.count("CRITICAL reward.gold-rejected") == 1


def test_bf16_weights_with_a_small_learning_rate(go: Go) -> None:
    found = go("bf16")["precision.update-underflow"]
    measured, predicted = found["evidence"]
    assert (found["severity"], measured["step"]) == ("critical", 1)
    assert measured["value"] < 0.15
    assert abs(measured["value"] - predicted["value"]) < 0.05


def test_weights_cast_while_they_sample(go: Go) -> None:
    found = go("cast")["precision.update-underflow"]
    assert found["severity"] == "critical"
    assert "fp32→bf16 at step 1" in found["evidence"][0]["text"]


def test_dead_groups_that_trls_metric_hides(go: Go) -> None:
    found = go("batch scale", steps=3)
    blind = found["advantage.metric-blind"]
    assert (blind["severity"], blind["evidence"][0]["value"], blind["symptom_of"]) == (
        "warning",
        1.0,
        None,
    )
    assert "reward.misaligned" not in found  # one reward for a whole group is no other task's


def fifths_by_prompt(prompts: list[Any], **_: Any) -> list[float]:
    """Pay every answer to a prompt alike, with a value that fp32 can't add up exactly."""
    return [0.2 if len(str(prompt)) % 2 else 0.7 for prompt in prompts]


def test_dead_groups_that_rounding_hides_from_trls_metric(go: Go) -> None:
    found = go(reward=fifths_by_prompt, steps=3, num_generations=8)
    blind = found["advantage.metric-blind"]
    assert blind["severity"] == "note"
    assert "rounding in fp32" in blind["summary"]
    assert "trl" not in blind["fix"]["changes"], "both settings are TRL's defaults"
    assert blind["fix"]["in_force"] == {
        "scale_rewards": "group",
        "multi_objective_aggregation": "sum_then_normalize",
    }


def test_a_learner_that_does_not_see_the_prompt(go: Go) -> None:
    found = go("blind", steps=1)
    blind = found["mask.attention-blind"]
    assert (blind["severity"], blind["evidence"][0]["step"]) == ("critical", 1)
    assert "tokens.padding" not in found
