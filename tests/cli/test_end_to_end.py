"""`uptrend train` as a process of its own: its files, and that neither a kill nor Ctrl-C changes
them.
"""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from uptrend.policy.checkpoint import read_state
from uptrend.records import Run, RunDirectory

pytestmark = pytest.mark.slow

STEPS = 7
RECIPE = f"""
name = "small"
[model]
name = "tiny"
[eval]
tasks = 12
every = 1                    # one line per step, so that a test can wait for it
[sampling]
groups = 4
size = 4
max_tokens = 5
resample = 1
[learning]
steps = {STEPS}
lr = 1e-4
minibatches = 2
kl = {{ beta = 0.05 }}
[checkpoints]
every = 2
[compute]
threads = 1
"""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recipes") / "small.toml"
    path.write_text(RECIPE)
    return path


def start(*arguments: object) -> subprocess.Popen[str]:
    env, words = (
        os.environ | {"PYTHONUNBUFFERED": "1"},
        [sys.executable, "-m", "uptrend", *map(str, arguments)],
    )
    return subprocess.Popen(
        words, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def finish(process: subprocess.Popen[str]) -> str:
    """Wait for an orderly end, and return the rest of the output."""
    said, errors = process.communicate()
    assert process.returncode == 0, errors
    return said


def wait_for(process: subprocess.Popen[str], step: int) -> None:
    """Read on until a step was evaluated; no clock, only what the process says."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(f"held-out after step {step}:"):
            return
    raise AssertionError(f"it ended before step {step}: {process.communicate()[1]}")


@pytest.fixture(scope="module")
def whole(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The run that nobody disturbs."""
    runs = tmp_path_factory.mktemp("whole")
    said = finish(start("train", recipe, "--runs", runs))
    assert f"Run: {runs / 'small'}" in said
    return Run(runs / "small")


def lines_of(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Metrics or evaluations without what a clock or the memory says."""
    clocks = ("time", "seconds", "memory")
    return [{k: v for k, v in line.items() if k.split("/")[0] not in clocks} for line in lines]


def same(one: Run, other: Run) -> None:
    """Everything but the clocks is equal: every metric, every token, every weight."""
    assert lines_of(one.metric_lines) == lines_of(other.metric_lines)
    assert lines_of(one.eval_lines) == lines_of(other.eval_lines)
    tables = [run.rollouts().drop_columns(["seconds"]) for run in (one, other)]
    assert [name for name in tables[0].column_names if tables[0][name] != tables[1][name]] == []
    for line in one.eval_lines:
        tables = [run.eval_rollouts(line["step"]).drop_columns(["seconds"]) for run in (one, other)]
        assert tables[0].equals(tables[1])
    states = [read_state(run.checkpoints[-1]) for run in (one, other)]
    for key in ("step", "cursor", "files"):
        assert states[0][key] == states[1][key]
    assert states[0]["random"]["torch"] == states[1]["random"]["torch"]
    assert {"model/model.safetensors", "optimizer.safetensors"} <= set(states[0]["files"])


def test_a_run_leaves_everything_on_disk(whole: Run) -> None:
    assert whole.status == "finished"
    assert {p.name for p in whole.path.iterdir()} == {
        "run.json", "metrics.jsonl", "evals.jsonl", "events.jsonl", "rollouts", "evals", "checkpoints", "findings.json",
        ".lock", "logs",
    }  # fmt: skip
    assert [line["step"] for line in whole.metric_lines] == list(range(1, STEPS + 1))
    assert [line["step"] for line in whole.eval_lines] == list(range(STEPS + 1))
    for line in whole.eval_lines:
        right: list[bool] = whole.eval_rollouts(line["step"])["correct"].to_pylist()
        assert line["accuracy"] == sum(right) / 12
    assert [p.name for p in whole.checkpoints] == [f"step-{STEPS:06d}"]
    assert whole.info["model"]["parameters"] == whole.info["model"]["trainable"] > 800_000
    assert [path for path in whole.path.rglob(".*") if path.name != ".lock"] == []


@pytest.mark.parametrize("signal_", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_or_stopped_run_goes_on_as_if_nothing_had_been(
    recipe: Path, tmp_path: Path, whole: Run, signal_: signal.Signals
) -> None:
    is_killed = signal_ is signal.SIGKILL
    process = start("train", recipe, "--runs", tmp_path)
    wait_for(
        process, random.randint(3, STEPS - 1)
    )  # the first checkpoint is written after step 2 was shown
    process.send_signal(signal_)
    said, errors = process.communicate()
    assert process.returncode == (-signal.SIGKILL if is_killed else 0), errors
    run = Run(tmp_path / "small")
    assert run.status in ("killed" if is_killed else "stopped", "finished")
    if run.status == "stopped":
        assert f"uptrend train --resume {run.path}" in said
        assert [p.name for p in run.checkpoints] == [f"step-{run.last_step:06d}"]
    if run.status != "finished":
        finish(start("train", "--resume", run.path, "--quiet"))
    same(Run(run.path), whole)


def test_ctrl_c_before_the_first_step(recipe: Path, tmp_path: Path) -> None:
    process = start(
        "train", recipe, "--runs", tmp_path, "--set", "eval.tasks=300", "--set", "sampling.rows=1"
    )
    events = tmp_path / "small" / "events.jsonl"
    while not events.exists():  # the run begins with its first evaluation, which takes a while
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.02)
    process.send_signal(signal.SIGINT)
    assert "Stopped before the first step" in finish(process)
    assert Run(tmp_path / "small").status == "stopped"


def test_one_writer_at_a_time(whole: Run) -> None:
    with RunDirectory.reopen(whole.path):
        process = start("train", "--resume", whole.path, "--set", "learning.steps=9")
        assert "is being written by another process" in process.communicate()[1]
    assert process.returncode == 2


def test_eval_of_a_run_is_its_last_evaluation(whole: Run, tmp_path: Path) -> None:
    out = tmp_path / "rollouts.parquet"
    found, last = (
        json.loads(finish(start("eval", whole.path, "--json", "--out", out))),
        whole.eval_lines[-1],
    )
    for key in (
        "accuracy",
        "correct",
        "tasks",
        "failed",
        "reward",
        "by_family",
        "low",
        "high",
        "hash",
    ):
        assert found[key] == last[key], key
    assert pq.read_table(out)["ids"].to_pylist() == whole.eval_rollouts(STEPS)["ids"].to_pylist()
