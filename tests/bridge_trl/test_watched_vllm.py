"""Rollouts that another copy of the model samples, as vLLM does: whose log-probabilities are whose,
and what the doctor says of a sampler that is not the learner.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_sums import make_trainer
from trl import GRPOTrainer
from vllm_stand_in import LOST, PENALTY, RAW, STALE, TOP_K, serve

from uptrend.bridge.trl import watch
from uptrend.records import Role, Run

pytestmark = pytest.mark.slow


class Keeping(GRPOTrainer):
    """Keeps what TRL has of each generation."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.outputs: list[dict[str, torch.Tensor]] = []

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        output = super()._generate_and_score_completions(inputs)
        self.outputs.append({key: value.clone() for key, value in output.items()})
        return output


def train(
    folder: str, to: Path, monkeypatch: pytest.MonkeyPatch, fault: str = "", **options: Any
) -> tuple[Any, Run, dict[str, Any]]:
    torch.set_num_threads(1)
    settings = {"steps": 6, "lr": 3e-4, "per_device_train_batch_size": 32, **options}
    trainer = make_trainer(folder, to, trainer=Keeping, **serve(monkeypatch, fault), **settings)
    watching = watch(trainer, rescore=False)
    trainer.train()
    run = Run(watching.path)
    assert [event for event in run.events if event["event"] == "watch-failed"] == []
    findings = json.loads((run.path / "findings.json").read_text())["findings"]
    return trainer, run, {f["id"]: f for f in findings if f["severity"] != "note"}


def test_each_log_probability_stands_in_its_own_column(
    tiny_folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, run, findings = train(tiny_folder, tmp_path, monkeypatch, temperature=0.8)
    assert {"sync", "precision", "tokens", "mask"}.isdisjoint(id.split(".")[0] for id in findings)
    assert "sampling.truncated-distribution" not in findings
    for step in (1, 4):
        output = trainer.outputs[step - 1]
        for place, row in enumerate(run.rollouts(step).to_pylist()):
            start = row["roles"].index(Role.MODEL)
            size = len(row["ids"]) - start
            for column, name in (
                ("sampler", "sampling_per_token_logps"),
                ("learner", "old_per_token_logps"),
            ):
                expected = output[name][place, :size].tolist()
                assert row[column][start:] == pytest.approx(expected, abs=1e-5)
            assert np.isnan(np.array(row["sampler"][:start], float)).all()
    logged = [line for line in trainer.state.log_history if "reward" in line]
    for line, theirs in zip(run.metric_lines, logged, strict=True):
        mean = theirs["sampling/sampling_logp_difference/mean"]
        assert line["sampler/gap/mean"] == pytest.approx(mean, abs=1e-5)


@pytest.mark.parametrize(
    ("fault", "id", "options"),
    [
        (STALE, "sync.stale-weights", {"steps": 8, "lr": 1e-3}),
        (LOST, "sync.stale-weights", {}),
        (
            RAW,
            "sampling.truncated-distribution",
            {"temperature": 0.6, "per_device_train_batch_size": 96},
        ),
        (TOP_K, "sampling.truncated-distribution", {}),
        (PENALTY, "precision.mismatch", {}),
    ],
)
def test_a_sampler_that_is_not_the_learner_is_named(
    fault: str,
    id: str,
    options: dict[str, Any],
    tiny_folder: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, _, findings = train(tiny_folder, tmp_path, monkeypatch, fault, **options)
    assert id in findings, findings.keys()
    assert findings[id]["symptom_of"] is None


def test_settings_given_to_the_sampler_alone_are_recorded_as_its_settings(
    tiny_folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {"top_k": 5, "temperature": 0.7}
    _, run, _ = train(tiny_folder, tmp_path, monkeypatch, steps=1, generation_kwargs=own)
    sampling = run.config["sampling"]
    assert (sampling["top_k"], sampling["temperature"]) == (5, 0.7)
