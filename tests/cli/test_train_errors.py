"""What can't work is said in a sentence that names the key, with exit code 2, before anything is written."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from uptrend.cli.main import main
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
Say = Callable[..., str]


@pytest.fixture
def recipe(llama_folder: Path, tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(RECIPE.format(model=llama_folder))
    return path


@pytest.fixture
def error_of(capsys: pytest.CaptureFixture[str]) -> Say:
    """The sentence that a command ends with."""

    def run(*arguments: object) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main([str(a) for a in arguments])
        assert end.value.code == 2
        said = capsys.readouterr().err
        assert said.startswith("error: ")
        assert said.count("\n") == 1
        assert "Traceback" not in said
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
        ("learning.skip_dead=true", None),
    ],
)
def test_a_bad_value_is_named(recipe: Path, tmp_path: Path, error_of: Say, change: str, said: str | None) -> None:
    arguments = ["train", recipe, "--runs", tmp_path / "runs", "--set", change]
    if said is None:
        assert "learning.skip_dead = true needs" in error_of(*arguments, "--set", "learning.entropy=0.1")
    else:
        told = error_of(*arguments)
        assert said in told
        assert 1 <= told.count(". ") + 1 <= 3
    assert not (tmp_path / "runs").exists()


def test_an_unknown_key_in_the_file(recipe: Path, tmp_path: Path, error_of: Say) -> None:
    recipe.write_text(recipe.read_text().replace("max_tokens", "max_token"))
    told = error_of("train", recipe, "--runs", tmp_path / "runs")
    assert "sampling.max_token is not a known key" in told
    assert "Did you mean max_tokens?" in told
    assert not (tmp_path / "runs").exists()


def test_a_recipe_that_is_not_there(tmp_path: Path, error_of: Say) -> None:
    assert f"There is no recipe at {tmp_path / 'none.toml'}" in error_of("train", tmp_path / "none.toml")
    assert error_of("train").startswith("Give either a recipe")


def test_a_name_that_is_taken(recipe: Path, tmp_path: Path, error_of: Say) -> None:
    run = train(recipe, runs=tmp_path / "runs")
    before = {p: p.stat().st_mtime_ns for p in run.path.rglob("*")}
    told = error_of("train", recipe, "--runs", tmp_path / "runs", "--name", "small")
    assert "already holds a run. Choose another --name, or continue it with --resume." in told
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


def test_a_finished_run_is_not_resumed(finished: Path, error_of: Say) -> None:
    told = error_of("train", "--resume", finished)
    assert told == f"{finished} is finished: 2 steps are done. To go on, add --set learning.steps=4."


def test_a_finished_run_can_be_made_longer(finished: Path) -> None:
    main_ends_well("train", "--resume", finished, "--set", "learning.steps=3", "--quiet")
    run = Run(finished)
    assert (run.status, run.last_step) == ("finished", 3)
    assert run.config["learning"]["steps"] == 3
    assert [line["step"] for line in run.eval_lines] == [0, 2, 3]


@pytest.mark.parametrize("change", ["learning.lr=1", "seed=3", "sampling.groups=2", "model.name=tiny"])
def test_a_resumed_run_stays_the_same_run(finished: Path, error_of: Say, change: str) -> None:
    before = (finished / "run.json").read_bytes()
    told = error_of("train", "--resume", finished, "--set", change, "--set", "learning.steps=9")
    assert told.startswith(f"--set {change.split('=')[0]} would make {finished} another run.")
    assert "learning.steps, eval.every" in told
    assert (finished / "run.json").read_bytes() == before


@pytest.mark.parametrize("name", ["model/model.safetensors", "optimizer.safetensors", "state.json"])
def test_a_damaged_checkpoint_is_not_resumed_from(finished: Path, error_of: Say, name: str) -> None:
    file = finished / "checkpoints" / "step-000002" / name
    file.write_bytes(file.read_bytes()[:-20])
    lines = (finished / "metrics.jsonl").read_bytes()
    told = error_of("train", "--resume", finished, "--set", "learning.steps=4")
    assert "step-000002" in told
    assert "Remove it to resume from an earlier checkpoint" in told
    assert (finished / "metrics.jsonl").read_bytes() == lines
    shutil.rmtree(finished / "checkpoints" / "step-000002")
    main_ends_well("train", "--resume", finished, "--set", "learning.steps=3", "--quiet")
    assert [line["step"] for line in Run(finished).metric_lines] == [1, 2, 3]


def test_what_cannot_be_resumed_at_all(finished: Path, tmp_path: Path, error_of: Say) -> None:
    assert "holds no run (no run.json)" in error_of("train", "--resume", tmp_path / "nowhere")
    shutil.rmtree(finished / "checkpoints")
    assert "has no checkpoint to resume from" in error_of("train", "--resume", finished)
    assert "has no checkpoint to evaluate" in error_of("eval", finished)


def test_other_tasks_than_before_are_noticed(finished: Path, error_of: Say) -> None:
    info = json.loads((finished / "run.json").read_text())
    info["eval"]["hash"] = "0123456789abcdef"
    (finished / "run.json").write_text(json.dumps(info))
    told = error_of("train", "--resume", finished, "--set", "learning.steps=4")
    assert "[eval] gives other tasks now" in told


def main_ends_well(*arguments: object) -> None:
    with pytest.raises(SystemExit) as end:
        main([str(a) for a in arguments])
    assert end.value.code == 0
