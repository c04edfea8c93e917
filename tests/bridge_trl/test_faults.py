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
    """Train a few watched steps; give back what was found, by id."""
    torch.set_num_threads(1)

    def train(steps: int = 2, alter: Callable[[GRPOTrainer], None] | None = None, **options: Any) -> Any:
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


def test_a_reward_that_cuts_the_prompt_off_the_completion(go: Go, capsys: pytest.CaptureFixture[str]) -> None:
    def cuts(prompts: list[Any], completions: list[Any], answer: list[str], **_: Any) -> list[float]:
        return right([text_of(c)[len(text_of(p)) :] for p, c in zip(prompts, completions, strict=True)], answer)

    found = go(reward=cuts)["reward.gold-rejected"]
    assert found["severity"] == "critical"
    assert found["confidence"] == "high"
    assert "cuts the prompt's length" in found["summary"]
    assert found["evidence"][0]["step"] == 1
    assert capsys.readouterr().err.count("CRITICAL reward.gold-rejected") == 1


@pytest.mark.parametrize(
    "reward",
    [
        lambda completions, answer, **_: [
            float(f"<answer>{a}</answer>" in c) for c, a in zip(completions, answer, strict=True)
        ],
        lambda completions, answer, **_: [
            (len(c) >= 6) * right([c], [a])[0] for c, a in zip(completions, answer, strict=True)
        ],
    ],
    ids=["tags", "at least six characters"],
)
def test_strict_rewards_are_not_taken_for_one_that_cuts(go: Go, reward: Any) -> None:
    assert "reward.gold-rejected" not in go(reward=reward, steps=1)


def test_answers_by_the_wrong_index(go: Go) -> None:
    def misplaced(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
        return right(completions, [answer[i // SIZE] for i in range(len(completions))])

    found = go(reward=misplaced)["reward.misaligned"]
    assert found["severity"] == "critical"
    assert found["confidence"] == "high"


def test_a_shuffled_answer_column(go: Go) -> None:
    rows = sums(chat=False)
    answers = [row["answer"] for row in rows]
    random.Random(1).shuffle(answers)
    shuffled = [{**row, "answer": answer} for row, answer in zip(rows, answers, strict=True)]
    found = go(rows=shuffled, steps=1)["reward.misaligned"]
    assert found["severity"] == "critical"
    assert "do not belong to their prompts" in found["summary"]


def test_bf16_weights_with_a_small_learning_rate(go: Go) -> None:
    found = go(dtype=torch.bfloat16, lr=5e-6, bf16=True)["precision.update-underflow"]
    assert found["severity"] == "critical"
    measured, predicted = found["evidence"]
    assert measured["step"] == 1
    assert measured["value"] < 0.15
    assert abs(measured["value"] - predicted["value"]) < 0.05


def test_fp32_weights_with_bf16_arithmetic_are_fine(go: Go) -> None:
    assert "precision.update-underflow" not in go(lr=5e-6, bf16=True)


def test_weights_cast_while_they_sample(go: Go) -> None:
    """What use_transformers_continuous_batching does with bf16 set; that path itself takes 20 s a step on a CPU."""

    class Casting(GRPOTrainer):
        def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
            self.model.to(torch.bfloat16)
            return super()._generate_single_turn(*args, **kwargs)

    found = go(trainer=Casting, lr=5e-6)["precision.update-underflow"]
    assert found["severity"] == "critical"
    assert found["evidence"][0]["text"].startswith("weights were cast fp32→bf16 at step 1")


def test_dead_groups_that_trls_metric_hides(go: Go) -> None:
    def by_prompt(prompts: list[str], **_: Any) -> list[float]:
        return [float(len(prompt) % 2) for prompt in prompts]

    found = go(reward=by_prompt, scale_rewards="batch", steps=3, rows=[*sums(False)])
    assert found["advantage.metric-blind"]["severity"] == "warning"
    assert found["advantage.metric-blind"]["evidence"][0]["value"] == 1.0
    assert found["advantage.metric-blind"]["symptom_of"] is None
    assert "reward.misaligned" not in found  # one reward for a whole group is no other task's


def test_a_learner_that_does_not_see_the_prompt(go: Go) -> None:
    class Blind(GRPOTrainer):
        def _get_per_token_logps_and_entropies(
            self, model: Any, input_ids: Any, attention_mask: Any, logits_to_keep: int, **rest: Any
        ) -> Any:
            attention_mask = attention_mask.clone()
            attention_mask[:, :-logits_to_keep] = 0
            return super()._get_per_token_logps_and_entropies(model, input_ids, attention_mask, logits_to_keep, **rest)

    found = go(trainer=Blind, steps=1)
    assert found["mask.attention-blind"]["severity"] == "critical"
    assert found["mask.attention-blind"]["evidence"][0]["step"] == 1
    assert "tokens.padding" not in found


def test_groups_of_mixed_prompts(go: Go) -> None:
    class Mixing(GRPOTrainer):
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            return super()._generate_and_score_completions([*inputs[1:], inputs[0]])

    found = go(trainer=Mixing, steps=1)["advantage.wrong-groups"]
    assert found["severity"] == "critical"
    assert 1.0 in [evidence["value"] for evidence in found["evidence"]]


def test_dropout_in_the_learner(go: Go) -> None:
    def drop(trainer: GRPOTrainer) -> None:
        for layer in trainer.model.model.layers:
            layer.self_attn.attention_dropout = 0.3
        trainer.model.config.attention_dropout = 0.3

    found = go(alter=drop, steps=1)["policy.dropout-on"]
    assert found["evidence"][0]["value"] > 0.01


def test_a_stop_token_left_out_of_the_loss_is_in_the_records(go: Go) -> None:
    class NoStop(GRPOTrainer):
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            out = super()._generate_and_score_completions(inputs)
            last = out["completion_mask"].sum(1) - 1
            out["completion_mask"][torch.arange(len(last)), last] = 0
            return out

    assert go(trainer=NoStop)["mask.stop-untrained"]["severity"] in ("critical", "warning")
