"""The loop learns: in about a minute on two cores, GRPO makes the tiny model answer what it was never taught."""

from pathlib import Path
from typing import Any

import pytest

from uptrend.records import Run
from uptrend.runner.runs import train
from uptrend.stats.comparison import mcnemar

pytestmark = pytest.mark.slow

RECIPE = Path(__file__).parents[2] / "recipes" / "tiny.toml"


def right(run: Run, step: int) -> dict[str, bool]:
    rows: list[dict[str, Any]] = run.eval_rollouts(step).to_pylist()
    return {row["task"]: row["correct"] for row in rows}


def test_the_tiny_recipe_learns(tmp_path: Path) -> None:
    run = train(RECIPE, runs=tmp_path)
    steps = run.config["learning"]["steps"]
    before, after = right(run, 0), right(run, steps)
    assert before.keys() == after.keys()
    trained: set[str] = set(run.rollouts()["task"].to_pylist())
    assert not trained & before.keys()
    gain = (sum(after.values()) - sum(before.values())) / len(before)
    lost = sum(before[task] and not after[task] for task in before)
    won = sum(after[task] and not before[task] for task in before)
    assert gain >= 0.08, f"{gain:+.1%} on {len(before)} held-out tasks"
    assert mcnemar(lost, won) < 0.01, f"{won} won, {lost} lost"
    rewards = [line["reward/mean"] for line in run.metric_lines]
    tenth = steps // 10
    assert sum(rewards[-tenth:]) / tenth > sum(rewards[:tenth]) / tenth + 0.05
