"""Bad input to `uptrend train` is a sentence that names the key, with exit code 2, before anything is written."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from uptrend.records import Run
from uptrend.runner.runs import train

RECIPE = """
name = "small"
[model]
name = "{model}"
[tasks]
name = "letters:Letters"
train = 30
[eval]
name = "letters:Letters"
tasks = 4
every = 0
[sampling]
groups = 4
size = 4
max_tokens = 6
[learning]
steps = 2
[checkpoints]
every = 1
keep = 2
[compute]
threads = 1
"""
ErrorOf = Callable[..., str]


@pytest.fixture
def recipe(llama_folder: Path, tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(RECIPE.format(model=llama_folder))
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
        ("learning.momentum=1", "learning.momentum is not a known key"),
        ("learning.learning_rat=1", "learning.learning_rat is not a known key"),
        ("sampling.temprature=1", "sampling.temprature is not a known key. Did you mean temperature?"),
        ("tasks.turnz=2", "tasks.turnz is not a known key"),
        ("sampling.size=1", "sampling.size = 1: a group of one has nothing to compare with"),
        ("sampling.temperature=0", "sampling.temperature = 0"),
        ("learning.minibatches=3", "learning.minibatches = 3 should divide sampling.groups = 4"),
        ("sampling.groups=31", "fewer than sampling.groups = 31"),
        ("learning.lr=fast", "learning.lr"),
        ("model.name=./nowhere", "There is no model './nowhere'"),
        ("model.name=nothing", "There is no model 'nothing'"),
        ("model.lora={targets=['x']}", "model.lora.targets = ['x'] fits nothing in this model"),
        ("tasks.name=no_such:Thing", "no_such:Thing"),
        ("compute.device=cuda:99", "compute.device"),
        ("learning.skip_dead=true learning.entropy=0.1", "learning.skip_dead = true needs"),
    ],
)
def test_a_bad_value_is_named(recipe: Path, tmp_path: Path, error_of: ErrorOf, change: str, said: str) -> None:
    changes = [word for each in change.split(" ") for word in ("--set", each)]
    assert said in error_of("train", recipe, "--runs", tmp_path / "runs", *changes)
    assert not (tmp_path / "runs").exists()


def test_a_recipe_with_an_unknown_key_or_none_at_all(recipe: Path, tmp_path: Path, error_of: ErrorOf) -> None:
    recipe.write_text(recipe.read_text().replace("max_tokens", "max_token"))
    error = error_of("train", recipe, "--runs", tmp_path / "runs")
    assert "sampling.max_token is not a known key. Did you mean max_tokens?" in error
    assert f"There is no recipe at {tmp_path / 'none.toml'}" in error_of("train", tmp_path / "none.toml")
    assert error_of("train").startswith("Give either a recipe")


def test_a_name_that_is_taken(recipe: Path, tmp_path: Path, error_of: ErrorOf) -> None:
    run = train(recipe, runs=tmp_path / "runs")
    before = {p: p.stat().st_mtime_ns for p in run.path.rglob("*")}
    error = error_of("train", recipe, "--runs", tmp_path / "runs", "--name", "small")
    assert "already holds a run" in error
    assert {p: p.stat().st_mtime_ns for p in run.path.rglob("*")} == before
    assert train(recipe, runs=tmp_path / "runs").name == "small-2"


@pytest.fixture(scope="module")
def trained(llama_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two steps with a checkpoint after each."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "small.toml").write_text(RECIPE.format(model=llama_folder))
    return train(folder / "small.toml", runs=folder).path


@pytest.fixture
def finished(trained: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(trained, tmp_path / "small"))


def test_a_finished_run_is_resumed_only_to_be_longer(finished: Path, error_of: ErrorOf, uptrend: Any) -> None:
    assert f"{finished} is finished: 2 steps are done." in error_of("train", "--resume", finished)
    uptrend("train", "--resume", finished, "--set", "learning.steps=3", "--quiet")
    run = Run(finished)
    assert (run.status, run.last_step, run.config["learning"]["steps"]) == ("finished", 3, 3)
    assert [line["step"] for line in run.eval_lines] == [0, 2, 3]


@pytest.mark.parametrize("change", ["learning.lr=1", "seed=3", "sampling.groups=2", "model.name=tiny"])
def test_a_resumed_run_stays_the_same_run(finished: Path, error_of: ErrorOf, change: str) -> None:
    before = (finished / "run.json").read_bytes()
    error = error_of("train", "--resume", finished, "--set", change, "--set", "learning.steps=9")
    assert error.startswith(f"--set {change.split('=')[0]} would make {finished} another run.")
    assert (finished / "run.json").read_bytes() == before


@pytest.mark.parametrize("name", ["model/model.safetensors", "optimizer.safetensors", "state.json"])
def test_a_damaged_checkpoint_is_not_resumed_from(finished: Path, error_of: ErrorOf, uptrend: Any, name: str) -> None:
    file = finished / "checkpoints" / "step-000002" / name
    file.write_bytes(file.read_bytes()[:-20])
    lines = (finished / "metrics.jsonl").read_bytes()
    assert "step-000002" in error_of("train", "--resume", finished, "--set", "learning.steps=4")
    assert (finished / "metrics.jsonl").read_bytes() == lines
    shutil.rmtree(finished / "checkpoints" / "step-000002")
    uptrend("train", "--resume", finished, "--set", "learning.steps=3", "--quiet")
    assert [line["step"] for line in Run(finished).metric_lines] == [1, 2, 3]


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
