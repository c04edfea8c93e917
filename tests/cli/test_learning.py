"""The loop learns, on one core in a minute: arithmetic with GRPO; multi-hop questions by warm
start, then GRPO.

A model of 159,000 weights is far from what GRPO does on a GPU with a real one; in the minutes that
there are it gains a little, and the same recipe with a blind learner loses. Measured with seeds 0
and 1: rewards at the sampling temperature, first to last eight steps, healthy +0.025 and +0.031,
blind −0.009 and −0.011; greedy on held-out questions, from 0.503 to 0.503 and 0.508 healthy, to
0.433 and 0.433 blind.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.faults.fault import Alter, unaltered
from benchmarks.faults.planted.masks import blind

from small_musique import write_questions, write_small
from uptrend.config import load_config
from uptrend.records import Role, Run
from uptrend.runner.prepare import prepare
from uptrend.runner.runs import start, train_recipe, warmstart
from uptrend.stats.comparison import mcnemar

pytestmark = pytest.mark.slow

RECIPE = Path(__file__).parents[2] / "recipes" / "tiny.toml"
HELD_OUT = 200


def test_the_tiny_recipe_learns(tmp_path: Path) -> None:
    steps = 60  # fewer than the recipe's; measured over four seeds: from 51% to 65, 67, 69 and 69%
    run = train_recipe(load_config(RECIPE, [f"learning.steps={steps}"]), runs=tmp_path)
    before, after = (
        {row["task"]: row["correct"] for row in run.eval_rollouts(at).to_pylist()}
        for at in (0, steps)
    )
    assert before.keys() == after.keys()
    trained: set[str] = set(run.rollouts()["task"].to_pylist())
    assert not trained & before.keys()
    lost = sum(before[task] and not after[task] for task in before)
    won = sum(after[task] and not before[task] for task in before)
    gain = (won - lost) / len(before)
    assert gain >= 0.08, f"{gain:+.1%} on {len(before)} held-out tasks"
    assert mcnemar(lost, won) < 0.01, f"{won} won, {lost} lost"
    assert gain_of(run, steps // 10) > 0.02  # over eight runs: 0.037 to 0.065


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Run]:
    """A recipe with a model that was taught in less than a minute, and the warm start's run."""
    folder = tmp_path_factory.mktemp("musique")
    options = {
        "file": str(write_questions(folder / "questions.jsonl", 2400)),
        "retriever": "lexical",
        "returned": 1,
    }
    recipe = {
        "model": {"name": str(write_small(folder / "start", options))},
        "tasks": {"name": "musique", "train": 1800, **options},
        "eval": {"name": "musique", "tasks": HELD_OUT, "every": 0, **options},
        "sampling": {
            "max_tokens": 16,
            "max_turns": 4,
            "context": 200,
            "groups": 16,
            "size": 8,
            "temperature": 1.0,
        },
        "learning": {
            "steps": 24,
            "lr": 5e-4,
            "warmup": 3,
            "schedule": "linear",
            "loss": "dapo",
            "skip_dead": True,
        },
        "warmstart": {"tasks": 900, "epochs": 5, "batch": 32, "lr": 5e-3, "warmup": 20},
        "compute": {"device": "cpu", "threads": 1, "compile": "never"},
    }
    run = warmstart(load_config(recipe), folder / "warm", runs=folder / "runs")
    return {**recipe, "model": {"name": str(folder / "warm")}}, run


def test_the_warm_start_teaches_to_look_things_up(warm: tuple[dict[str, Any], Run]) -> None:
    run = warm[1]
    before, after = run.eval_lines
    assert before["tasks"] == after["tasks"] == HELD_OUT
    assert after["reward"] > before["reward"] + 0.2
    gains = {name: value - before["parts"][name] for name, value in after["parts"].items()}
    assert min(gains[name] for name in ("format", "retrieval_recall", "citation_recall")) > 0.3
    assert gains["exact_match"] > 0
    held = {row["task"] for row in run.eval_rollouts(0).to_pylist()}
    assert len(held) == HELD_OUT
    assert not held & set(run.rollouts()["task"].to_pylist())


def test_grpo_gains_and_a_learner_that_sees_only_its_own_words_loses(
    warm: tuple[dict[str, Any], Run], tmp_path: Path
) -> None:
    recipe, taught = warm

    def trained(name: str, alter: Alter) -> Run:
        return start(alter(prepare(load_config(recipe))), tmp_path / name)

    healthy, ill = trained("healthy", unaltered), trained("blind", blind)
    assert gain_of(healthy, 8) > 0.01
    assert gain_of(ill, 8) < gain_of(healthy, 8) - 0.015
    assert held_out(healthy).mean() > taught.eval_lines[-1]["reward"] - 0.03
    gap = held_out(healthy) - held_out(ill)  # the same questions, in the same order
    draws = np.random.default_rng(0).integers(HELD_OUT, size=(2000, HELD_OUT))
    assert np.percentile(gap[draws].mean(1), 2.5) > 0
    assert all(all(row["attended"]) for row in healthy.rollouts(1).to_pylist())
    for row in ill.rollouts(1).to_pylist():
        assert row["attended"] == [role == int(Role.MODEL) for role in row["roles"]]
    # A blind learner's probabilities of its own rollouts are nats away from those that they were
    # sampled with.
    assert healthy.metric_lines[0]["sampler/gap/max"] < 1e-3
    assert ill.metric_lines[0]["sampler/gap/max"] > 5


def gain_of(run: Run, steps: int) -> float:
    """Return how much more reward the last steps earned than the first."""
    rewards = [line["reward/mean"] for line in run.metric_lines]
    return float(np.mean(rewards[-steps:]) - np.mean(rewards[:steps]))


def held_out(run: Run) -> np.ndarray:
    rows = run.eval_rollouts(run.last_step).to_pylist()
    return np.array([row["reward"] for row in sorted(rows, key=lambda row: row["task"])])
