"""Commands on a recipe with two tasksets, and on its run: each taskset is shown apart."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from uptrend.config import load_config, to_table
from uptrend.config.tables import to_recipe

Uptrend = Callable[..., Any]
LABELS = ("sums", "words")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a recipe of arithmetic, and counting with twice its weight."""
    folder = tmp_path_factory.mktemp("two")
    table = {
        "name": "two",
        "model": {"name": "tiny", "chat": False},
        "tasks": [
            {"name": "arithmetic", "label": "sums", "train": 40, "high": 9},
            {"name": "counting", "label": "words", "weight": 2, "train": 40},
        ],
        "eval": {"tasks": 5},
        "sampling": {"groups": 3, "size": 2, "max_tokens": 4},
        "learning": {"steps": 3, "lr": 1e-5},
        "compute": {"threads": 1},
        "doctor": {"live": False},
    }
    (folder / "two.toml").write_text(to_recipe(to_table(load_config(table))))
    return folder


@pytest.fixture
def run(folder: Path, uptrend: Uptrend) -> Path:
    path = folder / "runs" / "run"
    if not path.exists():
        arguments = ("--runs", path.parent, "--name", path.name, "--no-preflight")
        printed = uptrend("train", folder / "two.toml", *arguments).out
        (folder / "printed.txt").write_text(printed)
    return path


def test_the_tasks_of_each_are_shown(folder: Path, uptrend: Uptrend) -> None:
    printed = uptrend("tasks", "show", folder / "two.toml", "--count", "1").out
    assert "[tasks.sums] arithmetic: 40 to train on, 5 held out" in printed
    assert "[tasks.words] counting: 40 to train on, 5 held out" in printed
    sources = uptrend("tasks", "show", folder / "two.toml", "--count", "1", "--json").json[
        "sources"
    ]
    assert [source["label"] for source in sources] == list(LABELS)
    assert [len(source["tasks"]) for source in sources] == [1, 1]


def test_held_out_tasks_are_counted_by_their_own_set(folder: Path, uptrend: Uptrend) -> None:
    sets = '[{label = "words", tasks = 3}]'
    table = load_config(folder / "two.toml", [f"eval.sets={sets}"])
    (folder / "fewer.toml").write_text(to_recipe(to_table(table)))
    printed = uptrend("tasks", "show", folder / "fewer.toml").out
    assert "[tasks.words] counting: 40 to train on, 3 held out" in printed


def test_each_is_validated_with_its_held_out_tasks(folder: Path, uptrend: Uptrend) -> None:
    arguments = ("tasks", "validate", folder / "two.toml", "--limit", "3", "--json")
    reports = uptrend(*arguments).json["reports"]
    sections = [report["section"] for report in reports]
    assert sections == ["tasks.sums", "tasks.words", "eval.sets.sums", "eval.sets.words"]
    arguments = ("tasks", "validate", folder / "two.toml", "--set", "sampling.groups=90")
    refused = uptrend(*arguments, code=2).err
    assert "tasks.words has 40 tasks, and up to 60 of a step's 90 groups are its share" in refused


def test_overrides_name_a_taskset(folder: Path, uptrend: Uptrend) -> None:
    refused = uptrend("train", folder / "two.toml", "--set", "tasks.weight=2", code=2).err
    assert "--set tasks.weight=2: [[tasks]] has several tasksets, sums, words." in refused


def test_what_takes_one_taskset_says_so(folder: Path, uptrend: Uptrend) -> None:
    recipe = folder / "two.toml"
    package = ("tasks", "package", recipe, "--to", folder / "package")
    assert "has several [[tasks]] (sums, words)" in uptrend(*package, code=2).err
    convert = ("convert", recipe, "--to", "trl", "--out", folder / "train.py")
    assert "[[tasks]] has several tasksets (sums, words)" in uptrend(*convert, code=2).err


def test_a_run_prints_each_apart(folder: Path, run: Path) -> None:
    assert run.exists()
    lines = (folder / "printed.txt").read_text().splitlines()
    assert "sums: 40 examples, 1 per step, 40 steps per epoch, 0.075 epochs" in lines
    steps = [line for line in lines if line.startswith("step ")]
    assert all(f"{label} reward" in line for label in LABELS for line in steps[-1:])
    for label in LABELS:
        assert any(line.startswith(f"{label} after step 3: ") for line in lines)
        assert any(line.startswith(f"{label}: ") and "5 tasks" in line for line in lines)
    assert any(line.startswith("held-out after step 3: ") and "10 tasks" in line for line in lines)
    log = (run / "logs" / "train.log").read_text()
    assert "tiny on arithmetic + counting" in log
    assert "words dead groups" in log


def test_a_run_is_shown_apart(run: Path, uptrend: Uptrend) -> None:
    printed = uptrend("runs", "show", run).flat
    assert "sums: 33.3% of groups, count 40" in printed
    assert "words: 66.7% of groups, count 40" in printed
    for label in LABELS:
        assert f"source/{label}/reward/mean" in printed
        assert f"eval/set/{label}/accuracy" in printed
        assert f"{label} after step 3" in printed
    assert "arithmetic + counting" in uptrend("runs", "list", run.parent).out
    compared = uptrend("runs", "compare", run, run, "--json").json["curves"]
    assert "source/words/advantage/dead/share" in compared


def test_an_evaluation_scores_each(run: Path, uptrend: Uptrend) -> None:
    scored = uptrend("eval", run, "--json").json
    assert set(scored["sets"]) == set(LABELS)
    assert scored["tasks"] == sum(each["tasks"] for each in scored["sets"].values()) == 10


def test_another_model_is_scored_on_the_held_out_tasks_of_each(
    folder: Path, run: Path, uptrend: Uptrend
) -> None:
    scored = uptrend("eval", "tiny", "--tasks", folder / "two.toml", "--json").json
    of_run = uptrend("eval", run, "--json").json
    assert set(scored["sets"]) == set(LABELS)
    assert scored["hash"] == of_run["hash"]
