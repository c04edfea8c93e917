"""`uptrend replay`: its table, its JSON, its refusals and Ctrl-C."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from uptrend.cli.main import main
from uptrend.config import load_config
from uptrend.records import Run
from uptrend.runner.runs import train
from uptrend.stats.formatting import number

Say = Callable[..., str]
STEPS = 4


@pytest.fixture(scope="module")
def run(llama_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    table = {
        "name": "base",
        "model": {"name": str(llama_folder)},
        "tasks": {"name": "letters:Letters", "train": 30},
        "eval": {"name": "letters:Letters", "tasks": 8, "every": 0},
        "sampling": {"groups": 4, "size": 4, "max_tokens": 6},
        "learning": {"steps": STEPS, "lr": 3e-3, "kl": {"beta": 0.01}},
        "checkpoints": {"every": 2, "keep": 2},
        "compute": {"threads": 1},
    }
    return train(load_config(table), runs=tmp_path_factory.mktemp("runs"))


@pytest.fixture
def say(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Say:
    """What `uptrend replay RUN …` says, after it ended with a code."""

    def go(*arguments: object, code: int = 0) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main(["replay", str(run.path), "--runs", str(tmp_path), *map(str, arguments)])
        assert end.value.code == code
        said = capsys.readouterr()
        return said.err if code else said.out

    return go


def test_unchanged_it_says_that_it_is_the_run(say: Say, tmp_path: Path) -> None:
    said = say("--step", 2)
    assert "nothing changed" in said
    assert "Every figure of every step is the run's own, to the bit" in said
    assert "step 4/4" in said
    assert (tmp_path / "base-replay" / "run.json").exists()


def test_the_table_has_run_and_replay_side_by_side(say: Say, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # a loss that is not quite 0 takes more room, and cells are cut
    said = say("--step", 0, "--set", "learning.lr=1e-2", "--quiet")
    assert "learning.lr 0.003 → 0.01" in said
    rows = [line.split() for line in said.splitlines() if " run " in line or " replay " in line]
    pairs = [row for row in rows if "run" in row[:3] or row[0] == "replay"]
    assert len(pairs) == 2 * STEPS
    first, again = pairs[:2]
    assert first[:2] == ["1", number(run.metric_lines[0]["reward/mean"])]
    assert first[3:5] == again[1:3]  # loss and gradient of the step that is on-policy
    assert first[6] != again[4]  # how far the weights moved
    assert "Step 1 is on-policy. From step 2 on, the policy is not the one that sampled." in said


def told(say: Say, *arguments: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(say(*arguments, "--format", "json"))
    return found


def test_json_has_every_step(say: Say, run: Run) -> None:
    found = told(say, "--step", 2, "--set", "learning.kl.beta=0.5", "--set", "learning.scale=none", "--name", "beta")
    assert (found["step"], found["last"], found["status"]) == (2, 4, "finished")
    assert found["changed"] == {"learning.scale": ["group", "none"], "learning.kl.beta": [0.01, 0.5]}
    assert (found["same"], found["on_policy_to"], found["few_from"]) == (None, 3, None)
    assert [line["step"] for line in found["steps"]] == [3, 4]
    first = found["steps"][0]
    was = run.metric_lines[2]
    assert first["reward"] == was["reward/mean"]
    assert first["source"]["loss/total"] == was["loss/total"] != first["replay"]["loss/total"]
    assert first["source"]["kl/reference/mean"] == first["replay"]["kl/reference/mean"] > 0
    assert first["replay"]["sampler/ess/share"] == pytest.approx(1.0, abs=1e-4)
    assert set(found["held_out"]["replay"]) == {"2", "4"}
    assert found["held_out"]["source"]["4"] == run.eval_lines[-1]["accuracy"]
    notes = Run(Path(found["run"])).info["notes"]
    assert any("2 keys were changed at once" in note for note in notes)


def test_a_replay_far_from_its_run_is_warned_of(say: Say) -> None:
    arguments = ("--step", 0, "--set", "learning.lr=0.1", "--set", "learning.max_grad_norm=0")
    found = told(say, *arguments, "--name", "a")
    low = [line["step"] for line in found["steps"] if line["replay"]["sampler/ess/share"] < 0.5]
    assert found["few_from"] == low[0] > 1
    said = say(*arguments, "--name", "b")
    assert f"warning: from step {low[0]} on the effective sample size is below 0.5 of the tokens" in said


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--step", "3"], "has no checkpoint of step 3; it has 0 (the model that it began with) and 2, 4."),
        (["--step", "0", "--set", "sampling.temperature=0.5"], "--set sampling.temperature would take new rollouts"),
        (["--step", "0", "--steps", "9"], "has recorded 4 steps after step 0."),
        (["--step", "0", "--set", "learning.loss=ppo"], "learning.loss = 'ppo' is not one of"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(say: Say, arguments: list[str], sentence: str, tmp_path: Path) -> None:
    said = say(*arguments, code=2)
    assert said.startswith("error: ")
    assert sentence in said
    assert "Traceback" not in said
    assert not list(tmp_path.iterdir())


def test_ctrl_c_finishes_the_step_and_the_same_command_begins_anew(say: Say, tmp_path: Path) -> None:
    def interrupt() -> None:
        while not (tmp_path / "one" / "run.json").exists():  # an evaluation and all steps are still to come
            time.sleep(0.002)
        os.kill(os.getpid(), signal.SIGINT)

    watching = threading.Thread(target=interrupt, daemon=True)
    watching.start()
    said = say("--step", 0, "--set", "eval.every=1", "--name", "one")
    watching.join()
    stopped = Run(tmp_path / "one")
    assert (stopped.status, stopped.last_step < STEPS) == ("stopped", True)
    assert f"Stopped after step {stopped.last_step}. To make it again from its start: --name one" in said
    say("--step", 0, "--set", "eval.every=1", "--name", "one")
    assert (Run(tmp_path / "one").status, Run(tmp_path / "one").last_step) == ("finished", STEPS)
