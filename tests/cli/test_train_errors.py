"""Bad input to `uptrend train` is a sentence that names the key, with exit code 2, before anything
is written.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from uptrend.config import load_config
from uptrend.config.tables import to_recipe
from uptrend.records import Run
from uptrend.runner.runs import train_recipe

ErrorOf = Callable[..., str]
TINY = Path(__file__).parents[2] / "recipes" / "tiny.toml"


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
        (
            "sampling.temprature=1",
            "sampling.temprature is not a known key. Did you mean temperature?",
        ),
        ("tasks.turnz=2", "tasks.turnz is not a known key"),
        ("sampling.groups=31", "fewer than sampling.groups = 31"),
        ("model.name=./nowhere", "There is no model './nowhere'"),
        ("model.lora={targets=['x']}", "model.lora.targets = ['x'] fits nothing in this model"),
        ("tasks.name=no_such:Thing", "no_such:Thing"),
        ("compute.device=cuda:99", "compute.device"),
    ],
)
def test_a_bad_value_is_named(
    recipe: Path, tmp_path: Path, error_of: ErrorOf, change: str, said: str
) -> None:
    assert said in error_of("train", recipe, "--runs", tmp_path / "runs", "--set", change)
    assert not (tmp_path / "runs").exists()


def test_a_second_run_says_where_it_records_and_why(
    recipe: Path, tmp_path: Path, uptrend: Callable[..., Any]
) -> None:
    runs = tmp_path / "runs"
    for name, why in (("small", ""), ("small-2", f", since {runs / 'small'} already holds a run")):
        lines = uptrend("train", recipe, "--runs", runs, "--no-preflight").out.splitlines()
        assert (
            f"Recording to {runs / name}{why}. To look at it: uptrend runs show {runs / name}"
            in lines
        )
        assert f"Run: {runs / name}" in lines


WITHOUT_TORCH = {
    "lr=1": "lr is not a known key. Did you mean learning.lr",
    "learning.steps=many": "learning.steps = 'many' should be a whole number",
    "learning.lr=0": "learning.lr = 0.0 should be above 0",
    "learning.minibatches=3": "should divide sampling.groups = 32",
    "model.name=tinny": "There is no model 'tinny'",
    "model.name=./nowhere": "there is no such folder",
    "model.name=owner/a b": "not a hub id (owner/name)",
    "model.name=owner/name": "http://127.0.0.1:1 can't be reached (Connection refused)",
    "tasks={name='jsonl',file='none.jsonl'}": "none.jsonl",
    "tasks.turnz=2": "tasks.turnz is not a known key",
    "tasks.operations=['?']": "tasks.operations",
    "sampling.groups=900": "fewer than sampling.groups = 900",
    "learning.steps=3": "torch was loaded",  # what the others did not come to
}


def test_what_needs_no_torch_is_refused_before_it_loads(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise SystemExit('torch was loaded')")
    code = f"""
import sys
from uptrend.cli.main import main
for change in {list(WITHOUT_TORCH)}:
    try:
        main(["train", {str(TINY)!r}, "--set", change])
    except SystemExit as end:
        if end.code != 2:
            print(end.code, file=sys.stderr)
"""
    offline = {"HF_ENDPOINT": "http://127.0.0.1:1", "HF_HUB_OFFLINE": "", "http_proxy": ""}
    env = os.environ | offline | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True
    )
    lines = [line for line in done.stderr.splitlines() if not line.startswith("note: ")]
    assert len(lines) == len(WITHOUT_TORCH), done.stderr
    for line, said in zip(lines, WITHOUT_TORCH.values(), strict=True):
        assert said in line
    assert not (tmp_path / "runs").exists()


def test_a_shortened_warmup_is_noted_in_the_run(recipe: Path, tmp_path: Path, uptrend: Any) -> None:
    recipe.write_text(recipe.read_text().replace("steps = 2", "steps = 20\nwarmup = 9"))
    shown = uptrend("train", recipe, "--runs", tmp_path / "runs", "--set", "learning.steps=1").out
    note = "learning.warmup = 0: the recipe's 9 would exceed learning.steps = 1."
    assert f"note: {note}" in shown
    run = Run(tmp_path / "runs" / "small")
    assert (run.info["notes"][0], run.config["learning"]["warmup"]) == (note, 0)


@pytest.fixture(scope="module")
def trained(letters: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two steps with a checkpoint after each."""
    return train_recipe(load_config(letters), runs=tmp_path_factory.mktemp("trained")).path


@pytest.fixture
def finished(trained: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(trained, tmp_path / "small"))


def test_no_recipe_or_a_name_that_is_taken(recipe: Path, finished: Path, error_of: ErrorOf) -> None:
    assert "There is no recipe at none.toml" in error_of("train", "none.toml")
    assert error_of("train").startswith("Give either a recipe")
    before = {p: p.stat().st_mtime_ns for p in finished.rglob("*")}
    assert "already holds a run" in error_of(
        "train", recipe, "--runs", finished.parent, "--name", "small"
    )
    assert {p: p.stat().st_mtime_ns for p in finished.rglob("*")} == before


@pytest.mark.parametrize("change", ["learning.lr=1", "model.name=tiny"])
def test_a_resumed_run_stays_the_same_run(finished: Path, error_of: ErrorOf, change: str) -> None:
    before = (finished / "run.json").read_bytes()
    error = error_of("train", "--resume", finished, "--set", change, "--set", "learning.steps=9")
    assert error.startswith(f"--set {change.split('=')[0]} would make {finished} another run.")
    assert (finished / "run.json").read_bytes() == before
    assert f"{finished} is finished: 2 steps are done." in error_of("train", "--resume", finished)


def test_a_damaged_checkpoint_is_not_resumed_from(
    finished: Path, error_of: ErrorOf, uptrend: Any
) -> None:
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


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file()
    }


def test_a_resume_keeps_a_step_whose_line_is_damaged(finished: Path, uptrend: Any) -> None:
    metrics = finished / "metrics.jsonl"
    lines = metrics.read_bytes().splitlines(keepends=True)
    lines[0] = lines[0].replace(b'"step":1', b'"step":\xb1')
    metrics.write_bytes(b"".join(lines))
    before = contents(finished / "rollouts")
    uptrend("train", "--resume", finished, "--set", "learning.steps=3", "--quiet")
    assert metrics.read_bytes().startswith(b"".join(lines))
    assert contents(finished / "rollouts").items() >= before.items()
    assert Run(finished).rollout_steps == [2, 3]
    said = "1 line of metrics.jsonl could not be read and is left out."
    assert said in uptrend("runs", "show", finished).flat
    assert said in uptrend("doctor", finished).flat


def test_a_resume_is_refused_where_metrics_are_gone(
    finished: Path, uptrend: Any, error_of: ErrorOf
) -> None:
    lines = (finished / "metrics.jsonl").read_bytes()
    (finished / "metrics.jsonl").write_bytes(b"")
    before = contents(finished)
    error = error_of("train", "--resume", finished, "--set", "learning.steps=3")
    assert (
        "metrics.jsonl has lost lines: rollouts/ holds steps that have none any more (1, 2)."
        in error
    )
    assert contents(finished) == before
    (finished / "metrics.jsonl").write_bytes(lines)
    uptrend("train", "--resume", finished, "--set", "learning.steps=3", "--quiet")
    assert Run(finished).rollout_steps == [1, 2, 3]


def test_what_a_resume_takes_back_is_set_aside(finished: Path, uptrend: Any) -> None:
    shutil.rmtree(finished / "checkpoints" / "step-000002")  # so that it goes on from step 1
    shutil.copytree(finished / "checkpoints" / "step-000001", finished / "checkpoints" / "best")
    state = finished / "checkpoints" / "best" / "state.json"
    state.write_text(state.read_text().replace('"step": 1,', '"step": 2,'))
    before = contents(finished)
    uptrend("train", "--resume", finished, "--quiet")
    moved = contents(finished / "set-aside" / "1")
    names = [
        "checkpoints/best/state.json",
        "evals/000002.parquet",
        "rollouts/000002/part-0.parquet",
    ]
    assert all(moved[name] == before[name] for name in names)
    for name in ("metrics.jsonl", "evals.jsonl"):
        kept = before[name].removesuffix(moved[name])
        assert len(kept) < len(before[name])
        assert (finished / name).read_bytes().startswith(kept)
    run = Run(finished)
    assert [line["step"] for line in run.metric_lines] == [1, 2]
    assert [line["step"] for line in run.eval_lines] == [0, 2]
    assert (
        "What was recorded after step 1 is in set-aside/1 now"
        in (finished / "logs" / "train.log").read_text()
    )
    listed = uptrend("runs", "list", finished.parent, "--json").json
    assert [run["name"] for run in listed["runs"]] == ["small"]


def test_a_state_with_a_flipped_bit_is_not_resumed_from(
    finished: Path, error_of: ErrorOf, uptrend: Any
) -> None:
    state = finished / "checkpoints" / "step-000002" / "state.json"
    text = state.read_text()
    position = text.index('"position": ') + len('"position": ')
    digit = chr(ord(text[position]) ^ 1)
    state.write_text(text[:position] + digit + text[position + 1 :])
    error = error_of("train", "--resume", finished, "--set", "learning.steps=3")
    assert (
        "step-000002 is damaged: state.json is not what was written. Move it out of checkpoints/"
        in error
    )
    first = json.loads(text)
    del first["checksum"]  # as the first checkpoints of this version have none
    state.write_text(json.dumps(first, indent=1))
    uptrend("train", "--resume", finished, "--set", "learning.steps=3", "--quiet")
    assert Run(finished).last_step == 3
