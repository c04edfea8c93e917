"""A run on machine-learning tasks in small: warm start on mixed scripts, GRPO, records of commands,
the same again.
"""

from pathlib import Path
from typing import Any

import pytest

from uptrend.config import load_config
from uptrend.records import ConfigError, Run, SandboxFailed, rollouts_of
from uptrend.runner.rollouts import repeat_rollouts
from uptrend.runner.runs import train_recipe, warmstart

RECIPE: dict[str, Any] = {
    "name": "research",
    "model": {"name": "tiny"},
    # short files: tiny needs many tokens for a text
    "tasks": {
        "name": "mlgym",
        "problems": ["prisonersDilemma"],
        "train": 4,
        "sandbox": "process",
        "turns": 3,
    },
    "eval": {"tasks": 1, "every": 0},
    "sampling": {"groups": 2, "size": 2, "max_tokens": 24, "max_turns": 3, "context": 4000},
    "learning": {"steps": 1, "lr": 1e-5},
    "warmstart": {"tasks": 2, "per_task": 2, "batch": 4},
    "compute": {"threads": 1},
}


@pytest.mark.slow
def test_a_run_records_what_was_done_and_can_be_played_again(tmp_path: Path) -> None:
    run = train_recipe(load_config(RECIPE), runs=tmp_path)
    (line,) = run.metric_lines
    assert line["commands/rollout/mean"] == 4  # three turns and the automatic submission
    assert line["commands/sandbox_failures/count"] == 0
    assert {
        "reward/part/validated/mean",
        "reward/part/clean/mean",
        "commands/error/share",
    } <= line.keys()
    rollouts = rollouts_of(run.rollouts(1))
    assert all(len(r.commands) >= 3 and all(c.seconds >= 0 for c in r.commands) for r in rollouts)
    # The starter strategy counts where nothing was changed: at the last turn it is submitted as it
    # is.
    assert {r.reward.total for r in rollouts if r.reward} == {0.0}
    assert all(
        r.commands[-1].command == "(automatic submission)" and r.commands[-1].score
        for r in rollouts
    )
    assert all("turns left)" in r.messages[3].content for r in rollouts)
    assert not [
        repeated.differences for repeated in repeat_rollouts(run, rollouts) if repeated.differences
    ]
    assert "step 1/1" in (run.path / "logs" / "train.log").read_text()


@pytest.mark.slow
def test_a_warm_start_imitates_scripts_of_any_quality(tmp_path: Path) -> None:
    long = RECIPE["sampling"] | {"max_tokens": 300, "max_turns": 8}
    tasks = {key: value for key, value in RECIPE["tasks"].items() if key != "turns"}
    run = warmstart(
        load_config(RECIPE | {"sampling": long, "tasks": tasks}), tmp_path / "taught", runs=tmp_path
    )
    rollouts = rollouts_of(Run(run.path).rollouts(1))
    assert len(rollouts) == 4
    assert {r.reward.total for r in rollouts if r.reward} != {1.0}
    assert (tmp_path / "taught" / "config.json").exists()


def test_a_run_without_a_sandbox_is_refused_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    recipe = load_config(RECIPE | {"tasks": RECIPE["tasks"] | {"sandbox": "bubblewrap"}})
    with pytest.raises(SandboxFailed, match="install the system package bubblewrap"):
        train_recipe(recipe, runs=tmp_path / "runs")
    with pytest.raises(SandboxFailed):
        warmstart(recipe, tmp_path / "taught", runs=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()
    with pytest.raises(ConfigError, match="not one of auto, bubblewrap"):
        train_recipe(
            load_config(RECIPE | {"tasks": RECIPE["tasks"] | {"sandbox": "bubble"}}),
            runs=tmp_path / "runs",
        )
