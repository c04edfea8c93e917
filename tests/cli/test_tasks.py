"""`uptrend tasks`: tasksets listed, shown and validated without a model."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlgym_folder import write_folder
from uptrend.tasksets.musique.atlas import AtlasOptions, rows

Uptrend = Callable[..., Any]


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def sums(count: int) -> list[dict[str, Any]]:
    return [{"prompt": f"{n} + {n} = ", "answer": 2 * n} for n in range(count)]


def test_list_and_show(uptrend: Uptrend) -> None:
    listed = uptrend("tasks", "list").out
    for name in ("arithmetic", "counting", "comparison", "binary", "mixed", "data"):
        assert name in listed
    shown = uptrend("tasks", "show", "binary", "--count", "3").flat
    assert "12 to train on, 4 held out" in shown
    assert shown.count("to binary: '") == 3
    assert "note: " in shown
    arguments = (
        "arithmetic",
        "--set",
        "tasks.high=3",
        "--set",
        'tasks.operations=["+"]',
        "--count",
        "2",
    )
    plain = uptrend("tasks", "show", *arguments, "--json").json
    common = {"reward": "exact", "chat": False, "examples": "", "place": "start"}
    assert plain["options"] == {**common, "operations": ["+"], "low": 0, "high": 3}
    assert plain["train"] + plain["heldout"] == 16
    assert len(plain["tasks"]) == 2
    assert plain["tasks"][0]["messages"][0]["content"].startswith("Calculate: ")


def test_validate_a_file(tmp_path: Path, uptrend: Uptrend) -> None:
    for name in ("arithmetic", "counting", "comparison", "binary", "mixed"):
        shown = uptrend("tasks", "validate", name).out
        assert (shown.count("✓"), shown.count("✗")) == (12, 0)
    found = uptrend("tasks", "validate", write(tmp_path / "good.jsonl", sums(40)), "--json").json
    (report,) = found["reports"]
    assert (found["passed"], report["section"], report["taskset"]) == (True, "tasks", "data")
    assert report["checks"][0]["figure"] == "30 to train on, 10 held out"
    file = write(tmp_path / "bad.jsonl", [*sums(40), *sums(10)])
    shown = uptrend("tasks", "validate", file, code=1).out
    assert shown.count("✗") == 1
    assert "10 of 50 rows" in shown
    assert uptrend("tasks", "validate", file, "--json", code=1).json["passed"] is False
    uptrend("tasks", "validate", file, "--set", "tasks.duplicates=0.2")


def test_validate_a_recipe_checks_each_stage_and_the_evaluation(
    tmp_path: Path, uptrend: Uptrend
) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        '[tasks]\ntrain = 60\nstages = [{ start = 1, high = 10 }, { start = 5, name = "mixed" }]\n[eval]\ntasks = 50\n'
    )
    reports = uptrend("tasks", "validate", recipe, "--json").json["reports"]
    assert [(r["section"], r["taskset"]) for r in reports] == [
        ("tasks.stages[0]", "arithmetic"), ("tasks.stages[1]", "mixed"), ("eval", "arithmetic")
    ]  # fmt: skip
    assert reports[2]["checks"][0]["figure"] == "0 to train on, 50 held out"
    assert all(report["notes"] == [] for report in reports)
    assert (
        len(
            uptrend("tasks", "validate", recipe, "--set", "tasks.stages=[]", "--json").json[
                "reports"
            ]
        )
        == 2
    )
    recipe.write_text('[tasks]\nname = "binary"\n')
    assert "fewer than sampling.groups = 16" in uptrend("tasks", "validate", recipe, code=2).err


def test_validate_says_what_it_plays_and_how_far_it_is(tmp_path: Path, uptrend: Uptrend) -> None:
    shown = uptrend("tasks", "validate", "arithmetic", "--limit", "6")
    assert "Played 6 of 700 tasks; --limit 0 plays all." in shown.out
    assert shown.err.splitlines()[:2] == [
        "[tasks] making tasks of arithmetic",
        "[tasks] gold and corrupted answers: played 0 of 30",
    ]
    assert "[tasks] cheaters: played 0 of 18" in shown.err
    file = write(tmp_path / "sums.jsonl", sums(240))
    quiet = uptrend("tasks", "validate", file, "--json")
    assert [(r["played"], r["tasks"]) for r in quiet.json["reports"]] == [(200, 240)]
    assert "gold and corrupted answers: played 0 of" in quiet.err
    every = uptrend("tasks", "validate", file, "--limit", "0")
    assert "Played 240 of 240 tasks.\n" in every.out


@pytest.mark.slow
def test_validate_plays_a_few_tasks_of_slow_tasksets(tmp_path: Path, uptrend: Uptrend) -> None:
    extra = "  players: data/toy/players\n  par: 1.0\n"
    root = Path(write_folder(tmp_path, extra=extra))
    for name in ("one", "two"):  # a second problem with the same files
        (root / f"configs/tasks/{name}.yaml").write_text(
            (root / "configs/tasks/toy.yaml").read_text()
        )
    (root / "configs/tasks/toy.yaml").unlink()
    (root / "data/toy/players").mkdir()
    (root / "data/toy/players/weak-baseline.txt").write_text(
        "python baseline.py\n%%\nvalidate\n%%\nsubmit\n"
    )
    folder = ("--set", f"tasks.folder={root}", "--set", "tasks.sandbox=process")
    shown = uptrend("tasks", "validate", "mlgym", *folder, "--json")
    (report,) = shown.json["reports"]
    assert (report["passed"], report["played"], report["tasks"]) == (True, 4, 700)
    lines = [line for line in shown.err.splitlines() if "gold and corrupted answers" in line]
    assert lines[0] == "[tasks] gold and corrupted answers: played 0 of 4"


@pytest.mark.slow
def test_a_stage_may_train_on_every_row(tmp_path: Path, uptrend: Uptrend) -> None:
    made = list(rows(16, 0, AtlasOptions(paragraphs=6)))
    file, held = (
        write(tmp_path / "train.jsonl", made[:12]),
        write(tmp_path / "held.jsonl", made[12:]),
    )
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        f'[tasks]\nname = "musique"\nfile = "{file}"\nsplit = "train"\ntrain = 12\n'
        f'[eval]\nname = "musique"\nfile = "{held}"\nsplit = "heldout"\ntasks = 4\n[sampling]\ngroups = 4\n'
    )
    reports = uptrend("tasks", "validate", recipe, "--json").json["reports"]
    assert [r["checks"][0]["figure"] for r in reports] == [
        "12 to train on, 0 held out",
        "0 to train on, 4 held out",
    ]
    assert all(report["passed"] and report["notes"] == [] for report in reports)
    more = uptrend("tasks", "validate", recipe, "--set", "tasks.train=13", "--json").json
    assert len(more["reports"][0]["notes"]) == 1
    (alone,) = uptrend(
        "tasks", "validate", file, "--set", "tasks.split=train", "--json", code=1
    ).json["reports"]
    assert not alone["checks"][0]["passed"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["validate", "arithmatic"], "Did you mean arithmetic?"),
        (["validate", "arithmetic", "--set", "tasks.hihg=3"], "tasks.hihg is not a known key"),
        (
            ["validate", "musique", "--set", "eval.atlas={hops=[7]}"],
            "write --set tasks.atlas={hops=[7]}.",
        ),
        (["show", "arithmetic", "--set", "eval={high=3}"], "write --set tasks.KEY=VALUE"),
        (
            ["validate", "musique", "--set", "tasks.atlas.hops=[7]"],
            "tasks.atlas.hops = [7] should have",
        ),
        (["show", "none.jsonl"], "can't be read"),
        (["show", "none.toml"], "There is no recipe at none.toml"),
        (["show", "jsonl"], "tasks.file: it is missing"),
        (["show", "no_such_module:Class"], "can't be loaded"),
    ],
)
def test_bad_input_is_one_sentence(uptrend: Uptrend, arguments: list[str], message: str) -> None:
    assert message in uptrend("tasks", *arguments, code=2).err


@pytest.mark.slow
@pytest.mark.parametrize("place", ["../outside.jsonl", "{tmp_path}/outside.jsonl", "inside.jsonl"])
def test_a_dataset_folder_names_only_its_own_files(place: str, tmp_path: Path) -> None:
    folder, named = tmp_path / "mine", place.format(tmp_path=tmp_path)
    folder.mkdir()
    write(tmp_path / "outside.jsonl", sums(20))
    write(folder / "inside.jsonl", sums(20))
    (folder / "README.md").write_text(
        f"---\nconfigs:\n- config_name: default\n  data_files: {named}\n---\n"
    )
    words = [
        "-m",
        "uptrend",
        "tasks",
        "show",
        "data",
        "--set",
        "tasks.dataset=mine",
        "--set",
        "tasks.train=15",
        "--count",
        "1",
    ]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, *words],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if place == "inside.jsonl":
        assert "15 to train on" in done.stdout, done.stderr
        return
    assert done.returncode == 2
    assert "error: mine/README.md: data_files names" in done.stderr
    assert "outside.jsonl', which is outside of mine" in done.stderr
