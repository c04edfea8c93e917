"""Multi-hop questions at the scale of a CPU: what the warm start teaches, and what the attention-mask bug destroys."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from small_musique import write_questions, write_small
from uptrend.cli.launch import make_policy, train, warmstart
from uptrend.config import load_config
from uptrend.policy.optimiser import Optimiser
from uptrend.records import Role, Rollout, Run
from uptrend.rollout.play import Seat
from uptrend.tasks.pool import heldout
from uptrend.train import learner
from uptrend.train.gather import Table

HELD_OUT = 200
Patch = Callable[[], None]


@dataclass(frozen=True)
class Warm:
    """A model before and after its warm start."""

    recipe: dict[str, Any]
    """What both stages share."""
    start: Path
    """The folder of random weights."""
    model: Path
    """The folder of the model that was taught."""
    run: Run
    """The warm start's run."""


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Warm:
    """Taught once, in less than a minute."""
    folder = tmp_path_factory.mktemp("musique")
    options = {"file": str(write_questions(folder / "questions.jsonl", 2400)), "retriever": "lexical", "returned": 1}
    start = write_small(folder / "start", options)
    recipe = {
        "model": {"name": str(start)},
        "tasks": {"name": "musique", "train": 1800, **options},
        "eval": {"name": "musique", "tasks": HELD_OUT, "every": 0, **options},
        "sampling": {"max_tokens": 16, "max_turns": 4, "context": 200, "groups": 16, "size": 8, "temperature": 0.7},
        "learning": {"steps": 20, "lr": 1e-3, "warmup": 3, "loss": "dapo", "skip_dead": True},
        "warmstart": {"tasks": 1800, "epochs": 4, "batch": 32, "lr": 5e-3, "warmup": 20},
        "compute": {"device": "cpu", "threads": 1, "compile": "never"},
    }
    run = warmstart(load_config(recipe), folder / "warm", runs=folder / "runs")
    return Warm({**recipe, "model": {"name": str(folder / "warm")}}, start, folder / "warm", run)


@pytest.fixture
def blind(monkeypatch: pytest.MonkeyPatch) -> Patch:
    """Plants the bug of tests/planted.py until the test ends."""

    def plant() -> None:
        make = learner._line

        def make_blind(ids: Any, roles: Any, visible: Any, group: int, rollout: int) -> Any:
            return make(ids, roles, visible & (roles == int(Role.MODEL)), group, rollout)

        monkeypatch.setattr(learner, "_line", make_blind)

    return plant


def test_the_warm_start_teaches_to_look_things_up(warm: Warm) -> None:
    before, after = warm.run.eval_lines
    assert before["tasks"] == after["tasks"] == HELD_OUT
    assert before["reward"] < 0.05
    parts = after["parts"]
    assert parts["format"] >= 0.9
    assert parts["retrieval_recall"] >= 0.8
    assert parts["citation_recall"] >= 0.8
    assert parts["exact_match"] >= 0.15
    assert 0.5 <= after["reward"] <= 0.98
    held = {row["task"] for row in warm.run.eval_rollouts(0).to_pylist()}
    assert len(held) == HELD_OUT
    assert not held & set(warm.run.rollouts()["task"].to_pylist())


def test_the_warm_start_makes_held_out_demonstrations_likely(warm: Warm) -> None:
    untaught, taught = (_logprobs(warm, model, _gold(warm)) for model in (warm.start, warm.model))
    assert -untaught.mean() > 6  # about the logarithm of the vocabulary's size
    assert -taught.mean() < 0.5


def test_what_the_healthy_learner_sees_is_what_the_sampler_saw(warm: Warm, tmp_path: Path) -> None:
    run = _train(warm, tmp_path, steps=1)
    rows = run.rollouts(1).to_pylist()
    assert all(all(row["attended"]) for row in rows)
    assert run.metric_lines[0]["sampler/gap/max"] < 1e-3


def test_the_blind_learner_sees_only_what_the_model_said(warm: Warm, tmp_path: Path, blind: Patch) -> None:
    blind()
    run = _train(warm, tmp_path, steps=1)
    for row in run.rollouts(1).to_pylist():
        roles, attended = np.array(row["roles"]), np.array(row["attended"])
        assert {Role.PROMPT, Role.TOOL} & set(roles.tolist())
        assert np.array_equal(attended, roles == int(Role.MODEL))
    # What it takes for the probabilities of its own rollouts is nats away from those that they were sampled with.
    assert run.metric_lines[0]["sampler/gap/max"] > 5


def test_only_the_blind_learner_ignores_a_tool_result(warm: Warm, blind: Patch) -> None:
    told = _gold(warm)
    exchanged = [_with_other_results(a, b) for a, b in zip(told, [*told[1:], told[0]], strict=True)]
    reacts = np.abs(_logprobs(warm, warm.model, told) - _logprobs(warm, warm.model, exchanged))
    assert np.mean(reacts > 0.1) > 0.1
    assert reacts.max() > 5
    blind()
    ignores = np.abs(_logprobs(warm, warm.model, told) - _logprobs(warm, warm.model, exchanged))
    # All that a tool token still reaches is what follows it at once: it sees itself, so that no softmax is empty.
    assert np.mean(ignores > 0.1) < 0.01


def _train(warm: Warm, folder: Path, steps: int, seed: int = 0) -> Run:
    learning = {**warm.recipe["learning"], "steps": steps, "warmup": min(3, steps - 1)}
    return train({**warm.recipe, "seed": seed, "learning": learning}, runs=folder)


def _gold(warm: Warm) -> list[Rollout]:
    """The expert's rollouts on held-out questions, in turns of the same lengths."""
    config = load_config(warm.recipe)
    held_out = heldout(config)
    seats = [Seat(task, held_out.taskset, 0, f"gold-{n}", 0, 0) for n, task in enumerate(held_out.tasks)]
    return Table(make_policy(config, held_out), None, config).demonstrate(seats)


def _with_other_results(rollout: Rollout, other: Rollout) -> Rollout:
    """The same words of the model after the names and sentences of another rollout's tool results."""
    (mine,), (theirs,) = rollout.sequences, other.sequences
    ids = mine.ids.copy()
    places, source = (mine.roles == int(Role.TOOL)).nonzero()[0], theirs.ids[theirs.roles == int(Role.TOOL)]
    ids[places] = np.resize(source, len(places))
    return replace(rollout, sequences=(replace(mine, ids=ids),))


def _logprobs(warm: Warm, model: Path, rollouts: list[Rollout]) -> np.ndarray:
    """What the learner makes of every token that was said."""
    config = load_config(
        {**warm.recipe, "model": {"name": str(model)}, "sampling": {**warm.recipe["sampling"], "temperature": 1.0}}
    )
    policy = make_policy(config, heldout(config))
    exp = learner.experience(rollouts, config)
    looked = learner.Learner(policy, Optimiser(policy.flat, config.learning), config).look(exp, reference=False)
    return looked[exp.mask_bs].numpy()
