"""`uptrend replay`: its table, its JSON, its refusals and Ctrl-C."""

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from uptrend.config import load_config
from uptrend.present.formatting import number
from uptrend.records import Run
from uptrend.runner.runs import train_recipe

STEPS = 4


@pytest.fixture(scope="module")
def run(letters: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Run:
    learning = {"steps": STEPS, "lr": 3e-3, "kl": {"beta": 0.01}}
    table = {
        **letters,
        "name": "base",
        "learning": learning,
        "checkpoints": {"every": 2, "keep": 2},
    }
    return train_recipe(load_config(table), runs=tmp_path_factory.mktemp("runs"))


@pytest.fixture
def replay(run: Run, tmp_path: Path, uptrend: Callable[..., Any]) -> Callable[..., Any]:
    """`uptrend replay RUN …`"""
    return lambda *words, **options: uptrend(
        "replay", run.path, "--runs", tmp_path, *words, width=200, **options
    )


def test_unchanged_it_equals_the_run(replay: Callable[..., Any], run: Run) -> None:
    said = replay("--step", 2).out
    assert "to the bit" in said
    assert "step 4/4" in said
    assert replay("--step", 2, "--format", "json", "--name", "again").json["same"] is True
    path = run.path / "metrics.jsonl"
    before = path.read_bytes()
    path.write_bytes(
        before.replace(repr(run.metric_lines[3]["gradient/norm/before"]).encode(), b"77.0")
    )
    try:
        found = replay("--step", 2, "--format", "json", "--name", "other").json
        assert (found["same"], found["differs_at"]["metric"]) == (False, "gradient/norm/before")
        assert (found["differs_at"]["step"], found["differs_at"]["source"]) == (4, 77.0)
        assert (
            "gradient/norm/before of step 4 was 77.0"
            in replay("--step", 2, "--name", "text", "--quiet").out
        )
    finally:
        path.write_bytes(before)


def test_the_table_has_run_and_replay_side_by_side(replay: Callable[..., Any], run: Run) -> None:
    said = replay("--step", 0, "--set", "learning.lr=1e-2", "--quiet").out
    assert "learning.lr 0.003 → 0.01" in said
    rows = [line.split() for line in said.splitlines() if " run " in line or " replay " in line]
    pairs = [row for row in rows if "run" in row[:3] or row[0] == "replay"]
    assert len(pairs) == 2 * STEPS
    first, again = pairs[:2]
    assert first[:2] == ["1", number(run.metric_lines[0]["reward/mean"])]
    assert first[3:5] == again[1:3]  # loss and gradient of the step that is on-policy
    assert first[6] != again[4]  # how far the weights moved
    assert "Step 1 is on-policy." in said


def test_json_has_every_step(replay: Callable[..., Any], run: Run) -> None:
    changes = ("--set", "learning.kl.beta=0.5", "--set", "learning.scale=none")
    found = replay("--step", 2, *changes, "--name", "beta", "--format", "json").json
    assert (found["step"], found["last"], found["status"]) == (2, 4, "finished")
    assert found["changed"] == {
        "learning.scale": ["group", "none"],
        "learning.kl.beta": [0.01, 0.5],
    }
    assert (found["same"], found["on_policy_to"], found["few_from"]) == (None, 3, None)
    assert [line["step"] for line in found["steps"]] == [3, 4]
    first, was = found["steps"][0], run.metric_lines[2]
    assert first["reward"] == was["reward/mean"]
    assert first["source"]["loss/total"] == was["loss/total"] != first["replay"]["loss/total"]
    assert first["source"]["kl/reference/mean"] == first["replay"]["kl/reference/mean"] > 0
    assert first["replay"]["sampler/ess/share"] == pytest.approx(1.0, abs=1e-4)
    assert set(found["held_out"]["replay"]) == {"2", "4"}
    assert found["held_out"]["source"]["4"] == run.eval_lines[-1]["accuracy"]


def test_a_replay_far_from_its_run_is_warned_of(replay: Callable[..., Any]) -> None:
    arguments = ("--step", 0, "--set", "learning.lr=0.1", "--set", "learning.max_grad_norm=0")
    found = replay(*arguments, "--name", "a", "--format", "json").json
    low = [line["step"] for line in found["steps"] if line["replay"]["sampler/ess/share"] < 0.5]
    assert found["few_from"] == low[0] > 1
    assert f"warning: from step {low[0]} on" in replay(*arguments, "--name", "b").out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["--step", "3"],
            "has no checkpoint of step 3; it has 0 (the model that it began with) and 2, 4.",
        ),
        (
            ["--step", "0", "--set", "sampling.temperature=0.5"],
            "--set sampling.temperature would take new rollouts",
        ),
        (["--step", "0", "--steps", "9"], "has recorded 4 steps after step 0."),
        (["--step", "0", "--set", "learning.loss=ppo"], "learning.loss = 'ppo' is not one of"),
    ],
)
def test_refusals(
    replay: Callable[..., Any], arguments: list[str], sentence: str, tmp_path: Path
) -> None:
    assert sentence in replay(*arguments, code=2).err
    assert not list(tmp_path.iterdir())


def test_ctrl_c_finishes_the_step_and_the_same_command_starts_again(
    replay: Callable[..., Any], tmp_path: Path
) -> None:
    def interrupt() -> None:
        while not (
            tmp_path / "one" / "run.json"
        ).exists():  # an evaluation and all steps are still to come
            time.sleep(0.002)
        os.kill(os.getpid(), signal.SIGINT)

    watching = threading.Thread(target=interrupt, daemon=True)
    watching.start()
    said = replay("--step", 0, "--set", "eval.every=1", "--name", "one").out
    watching.join()
    stopped = Run(tmp_path / "one")
    assert (stopped.status, stopped.last_step < STEPS) == ("stopped", True)
    assert f"Stopped after step {stopped.last_step}." in said
    replay("--step", 0, "--set", "eval.every=1", "--name", "one")
    assert (Run(tmp_path / "one").status, Run(tmp_path / "one").last_step) == ("finished", STEPS)
