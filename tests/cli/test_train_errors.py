"""Bad input to `uptrend train` is a sentence that names the key, with exit code 2, before anything is written."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from uptrend.config import load_config
from uptrend.config.tables import to_recipe
from uptrend.records import Run
from uptrend.runner.runs import train

ErrorOf = Callable[..., str]


@pytest.fixture
def recipe(letters: dict[str, Any], tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(to_recipe(letters))
    return path


@pytest.fixture
def error_of(uptrend: Callable[..., Any]) -> ErrorOf:
    """The sentence that a command ends with."""

    def run(*arguments: object) -> str:
        said: str = uptrend(*arguments, code=2).err
        assert said.startswith("error: ")
        assert said.count("\n") == 1
        return said.removeprefix("error: ").strip()

    return run


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("sampling.temprature=1", "sampling.temprature is not a known key. Did you mean temperature?"),
        ("tasks.turnz=2", "tasks.turnz is not a known key"),
        ("sampling.groups=31", "fewer than sampling.groups = 31"),
        ("model.name=./nowhere", "There is no model './nowhere'"),
        ("model.lora={targets=['x']}", "model.lora.targets = ['x'] fits nothing in this model"),
        ("tasks.name=no_such:Thing", "no_such:Thing"),
        ("compute.device=cuda:99", "compute.device"),
    ],
)
def test_a_bad_value_is_named(recipe: Path, tmp_path: Path, error_of: ErrorOf, change: str, said: str) -> None:
    assert said in error_of("train", recipe, "--runs", tmp_path / "runs", "--set", change)
    assert not (tmp_path / "runs").exists()


@pytest.fixture(scope="module")
def trained(letters: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two steps with a checkpoint after each."""
    return train(load_config(letters), runs=tmp_path_factory.mktemp("trained")).path


@pytest.fixture
def finished(trained: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(trained, tmp_path / "small"))


def test_no_recipe_or_a_name_that_is_taken(recipe: Path, finished: Path, error_of: ErrorOf) -> None:
    assert "There is no recipe at none.toml" in error_of("train", "none.toml")
    assert error_of("train").startswith("Give either a recipe")
    before = {p: p.stat().st_mtime_ns for p in finished.rglob("*")}
    assert "already holds a run" in error_of("train", recipe, "--runs", finished.parent, "--name", "small")
    assert {p: p.stat().st_mtime_ns for p in finished.rglob("*")} == before


@pytest.mark.parametrize("change", ["learning.lr=1", "model.name=tiny"])
def test_a_resumed_run_stays_the_same_run(finished: Path, error_of: ErrorOf, change: str) -> None:
    before = (finished / "run.json").read_bytes()
    error = error_of("train", "--resume", finished, "--set", change, "--set", "learning.steps=9")
    assert error.startswith(f"--set {change.split('=')[0]} would make {finished} another run.")
    assert (finished / "run.json").read_bytes() == before
    assert f"{finished} is finished: 2 steps are done." in error_of("train", "--resume", finished)


def test_a_damaged_checkpoint_is_not_resumed_from(finished: Path, error_of: ErrorOf, uptrend: Any) -> None:
    file = finished / "checkpoints" / "step-000002" / "model" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-20])
    lines = (finished / "metrics.jsonl").read_bytes()
    assert "step-000002" in error_of("train", "--resume", finished, "--set", "learning.steps=4")
    assert (finished / "metrics.jsonl").read_bytes() == lines
    shutil.rmtree(finished / "checkpoints" / "step-000002")
    uptrend("train", "--resume", finished, "--set", "learning.steps=3", "--quiet")
    run = Run(finished)
    assert (run.status, run.last_step, run.config["learning"]["steps"]) == ("finished", 3, 3)
    assert [line["step"] for line in run.metric_lines] == [1, 2, 3]
    assert [line["step"] for line in run.eval_lines] == [0, 3]


def test_what_cannot_be_resumed_at_all(finished: Path, tmp_path: Path, error_of: ErrorOf) -> None:
    assert "holds no run (no run.json)" in error_of("train", "--resume", tmp_path / "nowhere")
    info = json.loads((finished / "run.json").read_text())
    changed = {**info, "eval": {**info["eval"], "hash": "0123456789abcdef"}}
    (finished / "run.json").write_text(json.dumps(changed))
    error = error_of("train", "--resume", finished, "--set", "learning.steps=4")
    assert "[eval] gives other tasks now" in error
    shutil.rmtree(finished / "checkpoints")
    assert "has no checkpoint to resume from" in error_of("train", "--resume", finished)
    assert "has no checkpoint to evaluate" in error_of("eval", finished)
