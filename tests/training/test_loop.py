"""Whole runs, a fraction of a second a step: what they record, how they stop, and that numbers add
up.
"""

import base64
import hashlib
import json
import pickle
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from models import write_model
from uptrend.algo import advantages
from uptrend.config import load_config
from uptrend.policy.checkpoint import read_state
from uptrend.records import CheckpointError, ModelError, RecordError, Run, RunDirectory
from uptrend.runner.evaluation import evaluate
from uptrend.runner.prepare import RunEnding
from uptrend.runner.runs import replay, resume_run, train_recipe
from uptrend.training.observer import StepRecord, Stop

Start = Callable[..., Run]


@pytest.fixture
def start(llama_folder: Path, tmp_path: Path) -> Start:
    """`start("learning.lr=1e-3", observers=[…])` trains a small random model on letters."""

    def go(*overrides: str, observers: Any = (), name: str = "run") -> Run:
        table = {
            "model": {"name": str(llama_folder)},
            "tasks": {"name": "letters:Letters", "train": 30},
            "eval": {"name": "letters:Letters", "tasks": 6, "every": 2},
            "sampling": {"groups": 4, "size": 4, "max_tokens": 6},
            "learning": {"steps": 3, "lr": 1e-3},
            "compute": {"threads": 1},
        }
        return train_recipe(
            load_config(table, overrides), runs=tmp_path / "runs", name=name, observers=observers
        )

    return go


def rows(run: Run, step: int | None = None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = run.rollouts(step).to_pylist()
    return found


def test_a_run_records_everything(start: Start) -> None:
    run = start()
    assert run.status == "finished"
    assert [line["step"] for line in run.metric_lines] == [1, 2, 3]
    assert [line["step"] for line in run.eval_lines] == [0, 2, 3]
    assert [p.name for p in run.checkpoints] == ["step-000003"]
    assert [e["event"] for e in run.events] == ["started", "checkpoint", "finished"]
    assert len(rows(run)) == 3 * 16
    assert len(rows(run, 2)) == 16
    for row in rows(run):
        said = np.array(row["roles"]) == 1
        for column in ("sampler", "learner"):
            assert [v is not None for v in row[column]] == said.tolist()
        np.testing.assert_allclose(
            [v for v in row["sampler"] if v is not None],
            [v for v in row["learner"] if v is not None],
            atol=2e-4,
        )
        assert [w != 0 for w in row["weights"]] == said.tolist()
        assert all(row["attended"])
        assert {v for v in row["versions"] if v is not None} <= {row["step"] - 1}


def test_what_is_recorded_is_what_was_learned_from(start: Start) -> None:
    run = start()
    for step in (1, 2, 3):
        table = rows(run, step)
        numbers = {g: i for i, g in enumerate(dict.fromkeys(r["group"] for r in table))}
        rewards = torch.tensor([r["reward"] for r in table])
        groups = torch.tensor([numbers[r["group"]] for r in table])
        expected = advantages(rewards, groups, scale="group", baseline="mean")
        for row, advantage in zip(table, expected.tolist(), strict=True):
            told = [a for a, role in zip(row["advantages"], row["roles"], strict=True) if role == 1]
            assert told == pytest.approx([advantage] * len(told), abs=1e-5)
        line = run.metric_lines[step - 1]
        assert line["reward/mean"] == pytest.approx(float(rewards.mean()))
        assert line["tokens/model/count"] == sum(r == 1 for row in table for r in row["roles"])
        assert line["tokens/trained/prompt/count"] == 0
        assert line["weights/changed/share"] > 0.9
        assert line["sampler/gap/max"] < 2e-4


def test_the_same_seed_is_the_same_run_and_another_is_not(start: Start) -> None:
    first, again, other = start(name="a"), start(name="b"), start("seed=1", name="c")

    def essence(run: Run) -> list[tuple[Any, ...]]:
        return [
            (r["task"], r["ids"], r["sampler"], r["learner"], r["advantages"]) for r in rows(run)
        ]

    assert essence(first) == essence(again)
    assert essence(first) != essence(other)
    assert [e["hash"] for e in first.eval_lines] == [e["hash"] for e in other.eval_lines]


class Watcher:
    """Writes down its calls, and stops where it is told to."""

    def __init__(self, name: str, calls: list[tuple[Any, ...]], stop_at: int = -1) -> None:
        self.name, self.calls, self.stop_at = name, calls, stop_at

    def before(self, run: Run) -> None:
        self.calls.append((self.name, "before", run.last_step, run.status))

    def step(self, record: StepRecord) -> Stop | None:
        self.calls.append(
            (self.name, record.step, len(record.rollouts), record.evaluation is not None)
        )
        assert bool(record.metrics) == (record.step > 0)
        return Stop("enough") if record.step == self.stop_at else None

    def after(self, run: Run) -> None:
        self.calls.append((self.name, "after", run.last_step))


def test_observers_see_every_step_in_order(start: Start) -> None:
    calls: list[tuple[Any, ...]] = []
    start(observers=[Watcher("a", calls), Watcher("b", calls)])
    mine = [c[1:] for c in calls if c[0] == "a"]
    assert mine == [
        ("before", 0, "running"), (0, 0, True), (1, 16, False), (2, 16, True), (3, 16, True), ("after", 3),
    ]  # fmt: skip
    assert [c[0] for c in calls] == ["a", "b"] * 6


def test_an_observer_can_stop_the_run(start: Start) -> None:
    calls: list[tuple[Any, ...]] = []
    run = start("learning.steps=9", observers=[Watcher("a", calls, stop_at=2), Watcher("b", calls)])
    assert (run.status, run.last_step) == ("stopped", 2)
    assert [p.name for p in run.checkpoints] == ["step-000002"]
    assert ("b", 2, 16, True) in calls
    assert calls[-1] == ("b", "after", 2)
    assert any(e.get("reason") == "enough" for e in run.events)
    again = resume_run(run.path, ["learning.steps=3"])
    assert (again.status, again.last_step) == ("finished", 3)


@pytest.mark.parametrize(("step", "status", "saved"), [(0, "stopped", 0), (3, "finished", 1)])
def test_a_wish_to_stop_before_the_first_step_or_after_the_last(
    start: Start, step: int, status: str, saved: int
) -> None:
    run = start(observers=[Watcher("a", [], stop_at=step)])
    assert (run.status, run.last_step, len(run.checkpoints)) == (status, step, saved)


def test_what_the_recorder_cannot_write_ends_the_run(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "runs" / "run"

    def be_in_the_way(record: StepRecord) -> None:
        if record.step == 1:
            (path / "rollouts").mkdir(exist_ok=True)
            (path / "rollouts" / "000002").write_text("where the rollouts of step 2 should go")

    watcher = Mock(step=be_in_the_way)
    with pytest.raises(RecordError, match="000002"):
        start("learning.steps=50", observers=[watcher])
    assert (Run(path).status, Run(path).last_step) == ("failed", 1)
    watcher.after.assert_called_once()


def test_a_run_whose_folder_is_renamed_ends_with_a_sentence(start: Start, tmp_path: Path) -> None:
    path, elsewhere = tmp_path / "runs" / "run", tmp_path / "elsewhere"

    def rename(record: StepRecord) -> None:
        if record.step == 2:
            # The recorder writes beside the loop.
            until = time.monotonic() + 60
            while Run(path).last_step < 2 and time.monotonic() < until:
                time.sleep(0.01)
            path.rename(elsewhere)

    with pytest.raises(
        RecordError,
        match=r"runs/run was renamed, moved or removed .* uptrend train --resume FOLDER",
    ):
        start("learning.steps=6", "checkpoints.every=1", observers=[Mock(step=rename)])
    assert not path.exists()
    assert Run(elsewhere).last_step == 2
    again = resume_run(elsewhere)
    assert (again.status, again.last_step, again.rollout_steps) == (
        "finished",
        6,
        [1, 2, 3, 4, 5, 6],
    )


def test_a_curriculum_changes_its_tasks_on_time(start: Start) -> None:
    run = start('tasks.stages=[{start=1}, {start=3, opening="Harder"}]')
    openings = {
        step: {r["messages"][0]["content"].split(",")[0] for r in rows(run, step)}
        for step in (1, 2, 3)
    }
    assert openings == {1: {"Say letters"}, 2: {"Say letters"}, 3: {"Harder"}}
    assert [s["start"] for s in run.info["tasks"]["stages"]] == [1, 3]


def test_dead_groups_are_drawn_anew_and_kept_on_record(start: Start) -> None:
    run = start("tasks.dead=2", "sampling.resample=3", "learning.steps=4")
    assert sum(line["sampling/resampled/groups"] for line in run.metric_lines) > 2
    for step in (1, 2, 3, 4):
        table = rows(run, step)
        kept = [r for r in table if r["kept"]]
        dropped = [r for r in table if not r["kept"]]
        line = run.metric_lines[step - 1]
        assert len(kept) == line["sampling/rollouts/count"] == 16
        assert len(dropped) == 4 * line["sampling/resampled/groups"]
        assert line["advantage/dead/share"] == 0.0
        assert all(not r["weights"] for r in dropped)
        for group in {r["group"] for r in dropped}:
            assert len({r["reward"] for r in dropped if r["group"] == group}) == 1
        assert len({r["group"] for r in table}) == len(table) / 4


def test_failures_are_data_and_are_not_trained(start: Start) -> None:
    run = start("tasks.fails=3", "learning.steps=2", "learning.scale=none")
    failed = [r for r in rows(run) if r["error"]]
    assert {r["error"] for r in failed} == {"score: RuntimeError('the scorer fails')"}
    assert sum(line["sampling/failed/count"] for line in run.metric_lines) == len(failed) > 0
    for row in failed:
        assert (row["reward"], row["ended"]) == (None, "task-error")
        assert set(row["weights"]) == {0.0}
        assert set(row["advantages"]) == {0.0}
    assert all(line["reward/mean"] is not None for line in run.metric_lines)


def test_a_run_goes_on_where_every_score_fails_or_no_prompt_fits(start: Start) -> None:
    run = start("tasks.fails=1", "eval.fails=1", name="fails")
    assert run.status == "finished"
    assert all(
        "reward/mean" not in line and line["weights/changed/share"] == 0
        for line in run.metric_lines
    )
    assert [(e["failed"], e["accuracy"], "reward" in e) for e in run.eval_lines] == [
        (6, 0.0, False)
    ] * 3
    run = start("sampling.context=8", name="full")
    assert run.status == "finished"
    assert {r["ended"] for r in rows(run)} == {"context-full"}
    assert [line["tokens/model/count"] for line in run.metric_lines] == [0] * 3


@pytest.mark.parametrize("scale", ["none", "group", "batch"])
def test_k1_is_taken_from_the_reward(start: Start, scale: Any) -> None:
    beta = 0.5
    kl, turns = (
        f"learning.kl={{beta={beta}, estimator='k1'}}",
        ("tasks.turns=2", "sampling.max_turns=2"),
    )
    run = start(kl, "learning.lr=1e-2", f"learning.scale={scale}", *turns)
    for step in (1, 2, 3):
        table = rows(run, step)
        numbers = {g: i for i, g in enumerate(dict.fromkeys(r["group"] for r in table))}
        gaps = [
            sum(a - b for a, b in zip(r["learner"], r["reference"], strict=True) if a is not None)
            for r in table
        ]
        rewards = torch.tensor([r["reward"] for r in table])
        groups = torch.tensor([numbers[r["group"]] for r in table])
        plain = advantages(rewards, groups, scale=scale, baseline="mean")
        # Scaled, the penalty would not depend on beta any more: a group's deviation has it too.
        taught = plain - beta * advantages(
            torch.tensor(gaps), groups, scale="none", baseline="mean"
        )
        told = torch.tensor([max(r["advantages"], key=abs) for r in table])
        torch.testing.assert_close(told, taught, atol=1e-5, rtol=1e-4)
        assert torch.allclose(told, plain, atol=1e-6) == (step == 1)
        assert run.metric_lines[step - 1]["loss/kl"] == 0.0


def test_a_turn_earns_what_follows_it(start: Start) -> None:
    turns = (
        "tasks.turns=3",
        "tasks.by_turn=true",
        "eval.turns=3",
        "sampling.max_turns=3",
        "sampling.context=256",
    )
    run = start(*turns, "learning.credit=turn", "learning.scale=none", "learning.steps=1")
    table = rows(run, 1)
    for group in {r["group"] for r in table}:
        members = [r for r in table if r["group"] == group]
        returns = np.array([np.cumsum(r["turn_rewards"][::-1])[::-1] for r in members])
        expected = returns - returns.mean(0)  # each turn against the same turn of the others
        for row, wanted in zip(members, expected, strict=True):
            said = np.array(row["roles"]) == 1
            np.testing.assert_allclose(
                np.array(row["advantages"])[said], wanted[np.array(row["turns"])[said]], atol=1e-5
            )
    assert len({round(a, 6) for a in table[0]["advantages"]}) > 2
    whole = start(*turns, "learning.scale=none", "learning.steps=1", name="whole")
    for row in rows(whole, 1):
        assert (
            len({a for a, role in zip(row["advantages"], row["roles"], strict=True) if role == 1})
            == 1
        )


def test_turns_without_rewards_are_credited_as_the_rollout_is(start: Start) -> None:
    turns = ("tasks.turns=2", "sampling.max_turns=2", "learning.steps=1")
    one, other = (
        start(*turns, f"learning.credit={credit}", name=credit) for credit in ("rollout", "turn")
    )
    assert [r["advantages"] for r in rows(one)] == [r["advantages"] for r in rows(other)]


@pytest.mark.parametrize("cut", ["sampling.top_p=0.7", "sampling.top_k=5", "sampling.min_p=0.3"])
def test_correction_has_nothing_to_correct_where_tokens_are_left_out(
    start: Start, cut: str
) -> None:
    run = start(
        cut, "sampling.max_tokens=64", "learning.correction=sequence", "learning.kl.beta=0.1"
    )
    for line in run.metric_lines:
        assert line["correction/weight/mean"] == pytest.approx(1.0, abs=1e-3)
        assert line["sampler/gap/max"] < 1e-4
    assert run.metric_lines[0]["kl/reference/mean"] == pytest.approx(0.0, abs=1e-7)
    for row in rows(run, 1):
        said = np.array(row["roles"]) == 1
        for token, support, sampled in zip(row["ids"], row["support"], said, strict=True):
            assert token in support if sampled else support == []
    again = replay(run, 0, runs=run.path.parent, name="again")
    for line, other in zip(run.metric_lines, again.metric_lines, strict=True):
        assert line["weights/norm"] == other["weights/norm"]
        assert line["correction/weight/mean"] == other["correction/weight/mean"]


@pytest.mark.parametrize(
    "more", [(), ("model.lora={}", "learning.kl.beta=0.1", "learning.updates=2")], ids=["", "lora"]
)
def test_a_run_that_goes_on_takes_the_room_that_was_measured(
    start: Start, more: tuple[str, ...]
) -> None:
    changes = (
        "learning.tokens=0",
        "checkpoints.every=1",
        "checkpoints.keep=9",
        "sampling.context=256",
    )
    whole = start(*changes, *more)
    (told,) = [event for event in whole.events if event["event"] == "fitted"]
    assert (told["step"], told["tokens"], told["gradient_checkpointing"]) == (1, 16384, False)
    state = whole.checkpoints[0] / "state.json"
    changed = {
        **read_state(whole.checkpoints[0]),
        "fitted": {**json.loads(state.read_text())["fitted"], "tokens": 300},
    }
    state.write_text(json.dumps(changed))
    for checkpoint in whole.checkpoints[1:]:
        shutil.rmtree(checkpoint)
    again = resume_run(whole.path)
    told = [event for event in again.events if event["event"] == "fitted"][-1]
    assert (told["step"], told["tokens"]) == (2, 300)


def test_pass_at_k_is_that_of_the_recorded_attempts(start: Start) -> None:
    run = start("eval.attempts=3", "learning.steps=1")
    (before, _) = run.eval_lines
    table: list[dict[str, Any]] = run.eval_rollouts(0).to_pylist()
    assert len(table) == 6 + 6 * 3
    greedy, attempts = table[:6], table[6:]
    assert before["accuracy"] == np.mean([r["correct"] for r in greedy])
    right = np.array([r["correct"] for r in attempts]).reshape(6, 3)
    assert before["pass_at"]["1"] == pytest.approx(right.mean())
    pairs = [right[:, i] | right[:, j] for i, j in ((0, 1), (0, 2), (1, 2))]
    assert before["pass_at"]["2"] == pytest.approx(np.mean(pairs))
    assert before["pass_at"]["3"] == pytest.approx(right.any(1).mean())
    assert before["by_family"].keys() == {"even"}


def test_bf16_weights_come_with_a_note_and_hardly_move(start: Start) -> None:
    run = start("model.weights=bf16", "learning.lr=1e-6")
    (note,) = run.info["notes"]
    assert "bf16 weights: an update of learning.lr = 1e-06 can change" in note
    assert all(line["weights/changed/share"] < 0.1 for line in run.metric_lines)


def files(run: Run) -> dict[str, bytes]:
    """Content of every file of a run."""
    return {
        str(p.relative_to(run.path)): p.read_bytes() for p in run.path.rglob("*") if p.is_file()
    }


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
def test_a_run_does_not_go_on_with_another_model(start: Start, tmp_path: Path, lora: bool) -> None:
    folder = write_model(tmp_path / "model")
    adapters = ["model.lora={r=4}"] if lora else []
    every = (
        "learning.steps=4",
        "checkpoints.every=2",
        "checkpoints.keep=9",
        f"model.name={folder}",
        *adapters,
    )
    run = start(*every, observers=[Watcher("a", [], stop_at=3)])
    shutil.rmtree(run.checkpoints[-1])  # what was recorded of step 3 would be removed
    write_model(folder, seed=1)
    before = files(run)
    said = r"is no longer the model.*have the digest [0-9a-f]{32}, and had [0-9a-f]{32}"
    with pytest.raises(ModelError, match=said) as told:
        resume_run(run.path)
    assert run.info["model"]["base_digest" if lora else "digest"] in str(told.value)
    assert files(run) == before
    if lora:
        with pytest.raises(ModelError, match=said):
            replay(run, 2, runs=tmp_path, name="again")
        assert not (tmp_path / "again").exists()
    write_model(folder)
    assert resume_run(run.path).status == "finished"


def test_adapters_may_have_been_made_elsewhere(start: Start) -> None:
    run = start("model.lora={r=4}", "learning.steps=2", observers=[Watcher("a", [], stop_at=1)])
    info = json.loads((run.path / "run.json").read_text())
    assert info["model"]["base_digest"] != info["model"]["digest"]
    del info["model"]["base_digest"], info["config"]["learning"]["kl"]["reset_every"]  # as in 0.2
    info["model"]["digest"] = "0" * 32  # on another device
    (run.path / "run.json").write_text(json.dumps(info))
    assert resume_run(run.path).status == "finished"


def test_a_checkpoint_with_pickles_is_evaluated_and_not_resumed(
    start: Start, tmp_path: Path
) -> None:
    every = ("learning.steps=4", "checkpoints.every=2")
    run = start(*every, observers=[Watcher("a", [], stop_at=3)])
    shutil.rmtree(run.checkpoints[-1])
    place = (
        start(*every, name="other").checkpoints[-1].rename(run.path / "checkpoints" / "step-000002")
    )
    state = json.loads((place / "state.json").read_text())
    pickled = base64.b64encode(pickle.dumps(np.random.get_state())).decode()
    del state["checksum"]  # as earlier versions had none
    state |= {"step": 2, "random": {"python": pickled, "numpy": pickled, "torch": pickled}}
    (place / "state.json").write_text(json.dumps(state))
    before = files(run)
    for go_on in (
        lambda: resume_run(run.path),
        lambda: replay(run, 2, runs=tmp_path, name="again"),
    ):
        with pytest.raises(CheckpointError, match="random states as pickles"):
            go_on()
    assert files(run) == before
    assert evaluate(run.path).held.tasks == 6


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
def test_the_best_checkpoint_is_kept_beside_the_last(start: Start, lora: bool) -> None:
    each = (
        "learning.steps=5",
        "eval.every=1",
        "learning.lr=1e-2",
        "checkpoints.best=true",
        "checkpoints.every=1",
    )
    run = start(
        *each, "checkpoints.keep=3", *(["model.lora={r=4}", "learning.lr=3e-2"] if lora else [])
    )
    accuracies = [line["accuracy"] for line in run.eval_lines]
    first = accuracies.index(max(accuracies))
    assert 0 < first < 5, "it must be reached, and held by a later step too"
    assert [p.name for p in run.checkpoints] == ["step-000003", "step-000004", "step-000005"]
    best = run.path / "checkpoints" / "best"
    state = read_state(best)
    assert (state["step"], state["accuracy"]) == (first, max(accuracies))
    assert {p.name for p in best.iterdir()} == {p.name for p in run.checkpoints[-1].iterdir()}
    notes: list[str] = []
    assert evaluate(run.path, checkpoint="best", note=notes.append).held.accuracy == max(accuracies)
    assert notes == [f"Checkpoint of step {first}."]
    assert evaluate(run.path, checkpoint=4).held.accuracy == accuracies[4]
    assert evaluate(run.path).held.accuracy == accuracies[5]
    with pytest.raises(CheckpointError, match=r"no checkpoint 9; it has 3, 4, 5, best\."):
        evaluate(run.path, checkpoint=9)


def test_a_best_checkpoint_from_after_the_resumed_step_is_removed(start: Start) -> None:
    each = (
        "learning.steps=3",
        "eval.every=1",
        "learning.lr=1e-2",
        "checkpoints.best=true",
        "checkpoints.every=1",
    )
    run = start(*each, "checkpoints.keep=9")
    best = run.path / "checkpoints" / "best"
    before, found = read_state(best), list[bool]()
    for place in run.checkpoints:
        if int(place.name[-6:]) >= before["step"]:
            shutil.rmtree(place)
    assert run.checkpoints, "the best must not be the first"
    again = resume_run(
        run.path,
        observers=[Mock(before=lambda _: found.append(best.exists()), step=lambda _: None)],
    )
    assert found == [False]
    assert read_state(best)["files"] == before["files"]
    assert resume_run(again.path, ["learning.steps=4"]).status == "finished"
    assert read_state(best)["step"] == before["step"]  # of an earlier step, so it stays


RESETS = (
    "learning.kl={beta=0.1, reset_every=2}",
    "learning.lr=1e-2",
    "learning.steps=5",
    "checkpoints.every=1",
)


@pytest.fixture(params=[(), ("model.lora={r=4}",)], ids=["full", "lora"])
def resets(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """A recipe whose reference is replaced after steps 2 and 4."""
    return (*RESETS, "checkpoints.keep=9", *request.param)


def test_a_reset_makes_the_policy_the_reference(start: Start, resets: tuple[str, ...]) -> None:
    run = start(*resets)
    kl = [line["kl/reference/mean"] for line in run.metric_lines]
    assert [value == 0.0 for value in kl] == [True, False, True, False, True]
    assert [e["step"] for e in run.events if e["event"] == "reference-reset"] == [2, 4]
    carried = [(path / "reference.safetensors").exists() for path in run.checkpoints]
    assert carried == [False, True, True, True, True]
    plain = start(*resets, "learning.kl.reset_every=0", name="plain")
    assert [line["kl/reference/mean"] for line in plain.metric_lines][:2] == kl[:2]
    assert plain.metric_lines[2]["kl/reference/mean"] > 0
    for step in (3, 4):  # against the policy of step 2, which sampled step 3
        for row in rows(run, step):
            assert (
                row["reference"] == row["learner"]
                if step == 3
                else row["reference"] != row["learner"]
            )


@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_run_with_resets_goes_on_exactly(
    start: Start, tmp_path: Path, resets: tuple[str, ...], step: int
) -> None:
    def essence(run: Run) -> list[Any]:
        names = ("seconds", "memory", "time")
        lines = [
            {k: v for k, v in line.items() if k.split("/")[0] not in names}
            for line in run.metric_lines
        ]
        files = sorted(run.checkpoints[-1].rglob("*.safetensors"))
        assert len(files) == 3
        return [lines, *(hashlib.sha256(file.read_bytes()).hexdigest() for file in files)]

    if "model.lora={r=4}" in resets:
        resets = (*resets, "model.lora.dropout=0.1")  # random numbers too
    whole = start(*resets, name="whole")
    stopped = start(*resets, observers=[Watcher("a", [], stop_at=step)])
    assert essence(resume_run(stopped.path)) == essence(whole)
    rest = replay(whole, step, overrides=["checkpoints.every=1"], runs=tmp_path, name="rest")
    assert essence(rest)[0] == essence(whole)[0][step:]
    assert essence(rest)[1:] == essence(whole)[1:]


def interrupted(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("place", ["an-observer", "the-event", "the-boundary"])
@pytest.mark.parametrize("kind", ["stopped", "finished"])
def test_ctrl_c_while_a_run_closes_leaves_its_ending(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, kind: str
) -> None:
    plain = RunDirectory.event

    def interrupted_once(self: RunDirectory, kind: str, **values: Any) -> None:
        if kind in ("stopped", "finished"):
            monkeypatch.undo()
            raise KeyboardInterrupt
        plain(self, kind, **values)

    closing = Mock(step=lambda _: None, after=interrupted if place == "an-observer" else Mock())
    if place == "the-event":
        monkeypatch.setattr(RunDirectory, "event", interrupted_once)
    if place == "the-boundary":
        monkeypatch.setattr(RunEnding, "__exit__", interrupted)
    with pytest.raises(KeyboardInterrupt):
        start(
            "learning.steps=2",
            observers=[Watcher("a", [], stop_at=1 if kind == "stopped" else -1), closing],
        )
    run = Run(tmp_path / "runs" / "run")
    assert [event["event"] for event in run.events] == ["started", "checkpoint", kind]
    assert run.events[-1]["step"] == run.last_step == (1 if kind == "stopped" else 2)


def test_ctrl_c_in_the_middle_of_a_step_is_told_in_words(start: Start, tmp_path: Path) -> None:
    watcher = Mock(step=lambda record: interrupted() if record.step == 2 else None)
    with pytest.raises(KeyboardInterrupt):
        start("checkpoints.every=1", observers=[watcher])
    run = Run(tmp_path / "runs" / "run")
    assert (run.status, [p.name for p in run.checkpoints]) == ("failed", ["step-000001"])
    assert run.events[-1]["error"] == "KeyboardInterrupt: ended at once by the user"
    watcher.after.assert_called_once()
