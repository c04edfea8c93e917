"""The loop learns: in under a minute on one core, GRPO makes the tiny model answer what it was never taught."""

from pathlib import Path
from typing import Any

import pytest

from uptrend.config import load_config
from uptrend.records import Run
from uptrend.runner.runs import train
from uptrend.stats.comparison import mcnemar

pytestmark = pytest.mark.slow

RECIPE = Path(__file__).parents[2] / "recipes" / "tiny.toml"


def right(run: Run, step: int) -> dict[str, bool]:
    rows: list[dict[str, Any]] = run.eval_rollouts(step).to_pylist()
    return {row["task"]: row["correct"] for row in rows}


def test_the_tiny_recipe_learns(tmp_path: Path) -> None:
    steps = 60  # fewer than the recipe's; measured: from 51% to 67%, 49 won, 16 lost
    run = train(load_config(RECIPE, [f"learning.steps={steps}"]), runs=tmp_path)
    before, after = right(run, 0), right(run, steps)
    assert before.keys() == after.keys()
    trained: set[str] = set(run.rollouts()["task"].to_pylist())
    assert not trained & before.keys()
    lost = sum(before[task] and not after[task] for task in before)
    won = sum(after[task] and not before[task] for task in before)
    gain = (won - lost) / len(before)
    assert gain >= 0.08, f"{gain:+.1%} on {len(before)} held-out tasks"
    assert mcnemar(lost, won) < 0.01, f"{won} won, {lost} lost"
    rewards = [line["reward/mean"] for line in run.metric_lines]
    tenth = steps // 10
    assert sum(rewards[-tenth:]) / tenth > sum(rewards[:tenth]) / tenth + 0.05
