"""Faults planted into real TRL runs: each is named, live, from TRL's own tensors and the user's own functions."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_sums import SIZE, make_trainer, right, sums, text_of
from trl import GRPOTrainer

from uptrend.bridge.trl import watch
from uptrend.records import Run

pytestmark = pytest.mark.slow

Go = Callable[..., dict[str, dict[str, Any]]]


@pytest.fixture
def go(tiny_folder: str, tmp_path: Path) -> Go:
    """Train a few watched steps; return the findings, by id."""
    torch.set_num_threads(1)

    def train(steps: int = 1, alter: Callable[[GRPOTrainer], None] | None = None, **options: Any) -> Any:
        trainer = make_trainer(tiny_folder, tmp_path, steps=steps, **options)
        if alter is not None:
            alter(trainer)
        path = watch(trainer).path
        trainer.train()
        assert [e for e in Run(path).events if e["event"] == "watch-failed"] == []
        file = path / "findings.json"
        found = json.loads(file.read_text())["findings"] if file.exists() else []
        return {finding["id"]: finding for finding in found}

    return train


# Reward functions, as users write them


def cuts(prompts: list[Any], completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    return right([text_of(c)[len(text_of(p)) :] for p, c in zip(prompts, completions, strict=True)], answer)


def misplaced(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    return right(completions, [answer[i // SIZE] for i in range(len(completions))])


def wants_tags(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    return [float(f"<answer>{a}</answer>" in c) for c, a in zip(completions, answer, strict=True)]


def wants_six_characters(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    return [(len(c) >= 6) * right([c], [a])[0] for c, a in zip(completions, answer, strict=True)]


def by_prompt(prompts: list[str], **_: Any) -> list[float]:
    return [float(len(prompt) % 2) for prompt in prompts]


def constant(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    return [0.0 * len(answer)] * len(completions)


def shuffled() -> list[dict[str, Any]]:
    rows = sums(chat=False)
    answers = [row["answer"] for row in rows]
    random.Random(1).shuffle(answers)
    return [{**row, "answer": answer} for row, answer in zip(rows, answers, strict=True)]


# Trainers with one fault


class Casting(GRPOTrainer):
    """Does what use_transformers_continuous_batching does with bf16 set; that path takes 20 s per step on a CPU."""

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
        self.model.to(torch.bfloat16)
        return super()._generate_single_turn(*args, **kwargs)


class Blind(GRPOTrainer):
    """Hides the prompt from the learner."""

    def _get_per_token_logps_and_entropies(self, model: Any, ids: Any, mask: Any, keep: int, **rest: Any) -> Any:
        mask = mask.clone()
        mask[:, :-keep] = 0
        return super()._get_per_token_logps_and_entropies(model, ids, mask, keep, **rest)


class Mixing(GRPOTrainer):
    """Moves every row by one place."""

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        return super()._generate_and_score_completions([*inputs[1:], inputs[0]])


class NoStop(GRPOTrainer):
    """Leaves the stop token out of the loss."""

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        out = super()._generate_and_score_completions(inputs)
        last = out["completion_mask"].sum(1) - 1
        out["completion_mask"][torch.arange(len(last)), last] = 0
        return out


def drop(trainer: GRPOTrainer) -> None:
    for layer in trainer.model.model.layers:
        layer.self_attn.attention_dropout = 0.3
    trainer.model.config.attention_dropout = 0.3


@pytest.mark.parametrize(
    ("id", "confidence", "options"),
    [
        ("reward.misaligned", "high", {"reward": misplaced}),
        ("reward.misaligned", "medium", {"rows": shuffled()}),
        ("advantage.wrong-groups", "high", {"trainer": Mixing}),
        ("policy.dropout-on", "high", {"alter": drop}),
        ("mask.stop-untrained", "high", {"trainer": NoStop, "steps": 2}),
        ("reward.gold-rejected", "medium", {"reward": constant, "steps": 5}),
    ],
    ids=["wrong index", "shuffled answers", "mixed groups", "dropout", "stop token", "gold rejected"],
)
def test_a_fault_is_named(go: Go, id: str, confidence: str, options: dict[str, Any]) -> None:
    found = go(**options)[id]
    assert (found["severity"] != "note", found["confidence"]) == (True, confidence)


@pytest.mark.parametrize(
    ("absent", "options"),
    [
        ("reward.gold-rejected", {"reward": wants_tags}),
        ("reward.gold-rejected", {"reward": wants_six_characters}),
        ("precision.update-underflow", {"lr": 5e-6, "bf16": True, "steps": 2}),
    ],
    ids=["tags", "six characters", "bf16 arithmetic"],
)
def test_what_resembles_a_fault_is_not_called_one(go: Go, absent: str, options: dict[str, Any]) -> None:
    assert absent not in go(**options)


def test_a_reward_that_cuts_the_prompt_off_the_completion(go: Go, capsys: pytest.CaptureFixture[str]) -> None:
    found = go(reward=cuts, steps=2)["reward.gold-rejected"]
    assert (found["severity"], found["confidence"], found["evidence"][0]["step"]) == ("critical", "high", 1)
    assert "cuts the prompt's length" in found["summary"]
    assert capsys.readouterr().err.count("CRITICAL reward.gold-rejected") == 1


def test_bf16_weights_with_a_small_learning_rate(go: Go) -> None:
    found = go(dtype=torch.bfloat16, lr=5e-6, bf16=True, steps=2)["precision.update-underflow"]
    measured, predicted = found["evidence"]
    assert (found["severity"], measured["step"]) == ("critical", 1)
    assert measured["value"] < 0.15
    assert abs(measured["value"] - predicted["value"]) < 0.05


def test_weights_cast_while_they_sample(go: Go) -> None:
    found = go(trainer=Casting, lr=5e-6, steps=2)["precision.update-underflow"]
    assert found["severity"] == "critical"
    assert found["evidence"][0]["text"].startswith("weights were cast fp32→bf16 at step 1")


def test_dead_groups_that_trls_metric_hides(go: Go) -> None:
    found = go(reward=by_prompt, scale_rewards="batch", steps=3, rows=[*sums(False)])
    blind = found["advantage.metric-blind"]
    assert (blind["severity"], blind["evidence"][0]["value"], blind["symptom_of"]) == ("warning", 1.0, None)
    assert "reward.misaligned" not in found  # one reward for a whole group is no other task's


def test_a_learner_that_does_not_see_the_prompt(go: Go) -> None:
    found = go(trainer=Blind)
    blind = found["mask.attention-blind"]
    assert (blind["severity"], blind["evidence"][0]["step"]) == ("critical", 1)
    assert "tokens.padding" not in found
