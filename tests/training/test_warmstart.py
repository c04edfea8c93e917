"""Warm start: the expert's words are learned by the update of RL, and by nothing else than their
likelihood.
"""

import json
import sys
import types
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from letters import Letter, Letters
from models import full_logits, make_policy
from uptrend.config import load_config
from uptrend.policy.optimizer import Optimizer
from uptrend.records import ModelError, RecordError, Reward, Role, Task, TasksetError, rollouts_of
from uptrend.runner.evaluation import load_for_eval
from uptrend.runner.rollouts import repeat_rollouts
from uptrend.runner.runs import resume_run, warmstart
from uptrend.tasks.pool import make_heldout, make_pool
from uptrend.training.learner import Learner, lay_out
from uptrend.training.observer import Stop
from uptrend.training.warmstart import demonstrate, supervised


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


def test_the_update_is_the_gradient_of_the_mean_negative_log_probability(
    llama_folder: Path,
) -> None:
    """By hand: transformers' own forward, summed over what the expert said, at temperature 1."""
    config = load_config(table(llama_folder))
    held_out = make_heldout(config)
    policy = make_policy(llama_folder)
    rollouts, notes = demonstrate(policy, make_pool(config, held_out), config)
    assert (len(rollouts), notes) == (16, [])
    config = supervised(config, len(rollouts))
    optimizer = Optimizer(policy.flat, config.learning)
    exp = lay_out(rollouts, config)
    update = Learner(policy, optimizer, config).update(
        exp, torch.ones_like(exp.sampler_bs), 1, old_bs=None, reference_bs=None
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
    assert update.applied[0].norm_before == pytest.approx(
        float(other.flat.gradient.norm()), rel=1e-4
    )
    trained = exp.mask_bs & ~update.learner_bs.isnan()
    assert float(-update.learner_bs[trained].mean()) == pytest.approx(
        float(loss.detach()), rel=1e-5
    )


def test_a_model_learns_what_the_expert_says(llama_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "models" / "warm"
    run = warmstart(load_config(table(llama_folder, epochs=24)), out, runs=tmp_path / "runs")
    lines = run.metric_lines
    assert (run.status, run.last_step, len(lines)) == ("finished", 48, 48)
    assert lines[-1]["warmstart/loss/mean"] < 0.1 * lines[0]["warmstart/loss/mean"]
    assert [line["tokens/trained/prompt/count"] for line in lines] == [0] * 48
    assert [line["tokens/trained/tool/count"] for line in lines] == [0] * 48
    assert (run.eval_lines[0]["step"], run.eval_lines[-1]["step"]) == (0, 48)
    assert run.eval_lines[-1]["accuracy"] > 0.9 > 0.1 > run.eval_lines[0]["accuracy"]
    assert run.info["kind"] == "warmstart"
    shown = {row["task"] for row in run.rollouts().to_pylist()}
    assert not shown & {task.id for task in Letters(Letters.Options(turns=2), 0).heldout(100)}
    policy = make_policy(out)
    ids = policy.tokenizer("Say letters, 4: ").input_ids
    assert policy.tokenizer.decode(int(full_logits(policy, ids)[-1].argmax())) == "a"
    assert json.loads((out / "config.json").read_text())["model_type"] == "llama"


def test_demonstrations_that_the_model_could_not_say_are_left_out(
    llama_folder: Path, tmp_path: Path
) -> None:
    short = table(llama_folder)
    short["sampling"]["max_tokens"] = 2
    with pytest.raises(
        TasksetError, match=r"16 exceeded sampling.max_tokens = 2 \(the longest turn: 4\)"
    ):
        warmstart(load_config(short), tmp_path / "model", runs=tmp_path / "runs")
    some = table(llama_folder)
    some["tasks"]["fails"] = 5
    run = warmstart(load_config(some), tmp_path / "model", runs=tmp_path / "runs")
    assert "3 of 16 demonstrations were left out: 3 failed" in run.info["notes"][0]
    assert run.last_step == 2


@pytest.mark.parametrize(
    ("sampling", "tasks", "said"),
    [
        ({"max_turns": 2}, {"turns": 5}, "16 exceeded sampling.max_turns = 2 (the most turns: 5)"),
        ({"context": 20}, {"turns": 2}, "16 exceeded sampling.context = 20 (the longest rollout: "),
        (
            {"max_prompt": 3},
            {"turns": 2},
            "16 exceeded sampling.max_prompt = 3 (the longest prompt: ",
        ),
        ({}, {"dead": 1}, "16 were not right"),
    ],
)
def test_the_note_says_why_and_what_would_be_enough(
    llama_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    sampling: dict[str, int],
    tasks: dict[str, int],
    said: str,
) -> None:
    monkeypatch.setitem(sys.modules, "demanding_tasks", types.SimpleNamespace(Demanding=Demanding))
    given = table(llama_folder)
    given["tasks"] = {"name": "demanding_tasks:Demanding", **tasks}
    given["sampling"] |= sampling
    told = note_on_left_out(given)
    assert told.startswith(f"16 of 16 demonstrations were left out: {said}")
    for key in sampling:
        need = int(told.rpartition(": ")[2].rstrip(".)"))
        given["sampling"][key] = need
        assert note_on_left_out(given) == ""
        given["sampling"][key] = need - 1
        assert f"sampling.{key} = {need - 1} (" in note_on_left_out(given)


class Demanding(Letters):
    """Nothing is right before the last turn was said."""

    def open(self, task: Task, seed: int) -> Letter:
        class Play(Letter):
            async def score(self) -> Reward:
                reward = await super().score()
                return replace(
                    reward, correct=reward.correct and len(self._said) == self._options.turns
                )

        del seed
        return Play(task, self.options)


def note_on_left_out(given: dict[str, Any]) -> str:
    config = load_config(given)
    try:
        _, notes = demonstrate(
            make_policy(Path(given["model"]["name"])),
            make_pool(config, make_heldout(config)),
            config,
        )
    except TasksetError as none_left:
        return str(none_left)
    return "".join(notes)


def test_a_name_or_a_folder_that_is_taken_is_refused_before_anything_is_loaded(
    llama_folder: Path, tmp_path: Path
) -> None:
    for folder in (tmp_path / "runs" / "warm", tmp_path / "model"):
        folder.mkdir(parents=True)
    (tmp_path / "runs" / "warm" / "run.json").touch()
    config = load_config(table(llama_folder) | {"model": {"name": "no/such/model"}})
    with pytest.raises(RecordError, match=r"already holds a run\. Choose another --name"):
        warmstart(config, tmp_path / "other", runs=tmp_path / "runs", name="warm")
    with pytest.raises(ModelError, match=r"exists already\. Choose another --out"):
        warmstart(config, tmp_path / "model", runs=tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_warm_start_is_neither_resumed_nor_evaluated(llama_folder: Path, tmp_path: Path) -> None:
    run = warmstart(load_config(table(llama_folder)), tmp_path / "model", runs=tmp_path / "runs")
    with pytest.raises(
        RecordError, match=f"uptrend train RECIPE --set model.name={tmp_path / 'model'}$"
    ):
        resume_run(run.path)
    with pytest.raises(RecordError, match=f"uptrend eval {tmp_path / 'model'}$"):
        load_for_eval(str(run.path), None, ())
    (run.path / "events.jsonl").write_text("")
    with pytest.raises(RecordError, match="made no model folder; start it again"):
        resume_run(run.path)


def test_the_first_stages_own_count_does_not_count(llama_folder: Path, tmp_path: Path) -> None:
    staged = table(llama_folder)
    staged["tasks"]["stages"] = [{"start": 1, "train": 8}, {"start": 5, "train": 30}]
    run = warmstart(load_config(staged), tmp_path / "model", runs=tmp_path / "runs")
    assert (run.last_step, run.info["tasks"]["count"]) == (2, 16)


def test_its_rollouts_can_be_played_again(llama_folder: Path, tmp_path: Path) -> None:
    """It demonstrates fewer tasks than `[tasks]` has."""
    run = warmstart(load_config(table(llama_folder)), tmp_path / "model", runs=tmp_path / "runs")
    recorded = rollouts_of(run.rollouts(1))
    repeated = repeat_rollouts(run, recorded)
    assert len(repeated) == 8
    assert not [rollout for rollout in repeated if rollout.differences]


def test_a_folder_that_comes_up_while_it_learns_is_kept_and_so_is_the_model(
    llama_folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "model"

    def make(_: object) -> None:
        out.mkdir(exist_ok=True)
        (out / "mine.txt").write_text("mine")

    with pytest.raises(
        ModelError, match=f"The model that was learned is in {tmp_path}/.model/model"
    ) as refusal:
        warmstart(
            load_config(table(llama_folder)),
            out,
            runs=tmp_path / "runs",
            observers=[Mock(step=make)],
        )
    assert str(refusal.value).startswith(f"{out} could not be made: ")
    assert (out / "mine.txt").read_text() == "mine"
    assert (tmp_path / ".model" / "model" / "model.safetensors").exists()


def test_a_warm_start_that_is_stopped_makes_no_folder(llama_folder: Path, tmp_path: Path) -> None:
    config = load_config(table(llama_folder, epochs=3))
    enough = Mock(step=lambda record: Stop("enough") if record.step == 1 else None)
    run = warmstart(config, tmp_path / "model", runs=tmp_path / "runs", observers=[enough])
    assert (run.status, run.last_step) == ("stopped", 1)
    assert not (tmp_path / "model").exists()
