"""Warm start: the expert's words are learned by the update of RL, and by nothing else than their likelihood."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from letters import Letters
from models import full_logits, make_policy
from uptrend.cli.launch import warmstart
from uptrend.config import load_config
from uptrend.policy.optimiser import Optimiser
from uptrend.records import ModelError, Role, Run, TasksetError
from uptrend.tasks.pool import heldout, pool
from uptrend.train.gather import Table
from uptrend.train.learner import Learner, experience
from uptrend.train.warmstart import demonstrate, supervised


def table(folder: Path, **warm: Any) -> dict[str, Any]:
    return {
        "name": "letters",
        "model": {"name": str(folder)},
        "tasks": {"name": "letters:Letters", "turns": 2},
        "eval": {"name": "letters:Letters", "turns": 2, "tasks": 6},
        "sampling": {"groups": 2, "size": 2, "max_tokens": 5, "max_turns": 2, "temperature": 0.7},
        "warmstart": {"tasks": 16, "batch": 8, "lr": 3e-3, **warm},
        "compute": {"threads": 1},
    }


def test_the_update_is_the_gradient_of_the_mean_negative_log_probability(llama_folder: Path) -> None:
    """By hand: transformers' own forward, summed over what the expert said, at temperature 1."""
    config = load_config(table(llama_folder))
    held_out = heldout(config)
    policy = make_policy(llama_folder)
    rollouts, notes = demonstrate(Table(policy, None, config), pool(config, held_out), config)
    assert (len(rollouts), notes) == (16, [])
    config = supervised(config, len(rollouts))
    optimiser = Optimiser(policy.flat, config.learning)
    exp = experience(rollouts, config)
    update = Learner(policy, optimiser, config).update(
        exp, torch.ones(len(exp.lines)), 1, old_bs=None, reference_bs=None
    )

    other = make_policy(llama_folder)
    losses = []
    for rollout in rollouts:
        (s,) = rollout.sequences
        ids = torch.from_numpy(s.ids.astype(np.int64))
        logprobs = other.model(input_ids=ids[None]).logits[0].log_softmax(-1)
        at = np.flatnonzero(s.roles == Role.MODEL)
        losses.append(-logprobs[torch.from_numpy(at - 1), ids[at]])
    loss = torch.cat(losses).mean()
    loss.backward()
    assert update.applied[0].norm_before == pytest.approx(float(other.flat.gradient.norm()), rel=1e-4)
    trained = exp.mask_bs & ~update.learner_bs.isnan()
    assert float(-update.learner_bs[trained].mean()) == pytest.approx(float(loss.detach()), rel=1e-5)


def test_a_model_learns_what_the_expert_says(llama_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "models" / "warm"
    run = warmstart(load_config(table(llama_folder, epochs=24)), out, runs=tmp_path / "runs")
    lines = run.metric_lines
    assert (run.status, run.last_step, len(lines)) == ("finished", 48, 48)
    assert lines[-1]["warmstart/loss/mean"] < 0.15 < 2 < lines[0]["warmstart/loss/mean"]
    assert [line["tokens/trained/prompt/count"] for line in lines] == [0] * 48
    assert [line["tokens/trained/tool/count"] for line in lines] == [0] * 48
    assert (run.eval_lines[0]["step"], run.eval_lines[-1]["step"]) == (0, 48)
    assert run.eval_lines[-1]["accuracy"] == 1.0
    assert run.info["kind"] == "warmstart"
    shown = {row["task"] for row in run.rollouts().to_pylist()}
    assert not shown & {task.id for task in Letters(Letters.Options(turns=2), 0).heldout(100)}
    policy = make_policy(out)
    ids = policy.tokenizer("Say letters, 4: ").input_ids
    assert policy.tokenizer.decode(int(full_logits(policy, ids)[-1].argmax())) == "a"
    assert json.loads((out / "config.json").read_text())["model_type"] == "llama"


def test_demonstrations_that_the_model_could_not_say_are_left_out(llama_folder: Path, tmp_path: Path) -> None:
    short = table(llama_folder)
    short["sampling"]["max_tokens"] = 2
    with pytest.raises(TasksetError, match=r"16 of 16 demonstrations were left out: .*sampling.max_tokens"):
        warmstart(load_config(short), tmp_path / "model", runs=tmp_path / "runs")
    some = table(llama_folder)
    some["tasks"]["fails"] = 5
    run = warmstart(load_config(some), tmp_path / "model", runs=tmp_path / "runs")
    assert any("of 16 demonstrations were left out" in note for note in run.info["notes"])
    assert run.last_step == 2


def test_a_folder_that_is_there_is_not_written_over(llama_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    with pytest.raises(ModelError, match=r"exists already\. Choose another --out"):
        warmstart(load_config(table(llama_folder)), tmp_path / "model", runs=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_a_warm_start_that_is_stopped_makes_no_folder(llama_folder: Path, tmp_path: Path) -> None:
    from uptrend.train.observer import StepRecord, Stop

    class AfterOne:
        def before(self, run: Run) -> None: ...
        def step(self, record: StepRecord) -> Stop | None:
            return Stop("enough") if record.step == 1 else None

        def after(self, run: Run) -> None: ...

    config = load_config(table(llama_folder, epochs=3))
    run = warmstart(config, tmp_path / "model", runs=tmp_path / "runs", observers=[AfterOne()])
    assert (run.status, run.last_step) == ("stopped", 1)
    assert not (tmp_path / "model").exists()
