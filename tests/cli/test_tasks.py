"""`uptrend tasks`, through the real command line."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from uptrend.cli.tasks import app
from uptrend.records import ConfigError, TasksetError
from uptrend.tasks.musique.atlas import AtlasOptions, rows

run = CliRunner().invoke


def as_json(*arguments, code=0):
    result = run(app, [*arguments, "--json"])
    assert result.exit_code == code, result.output
    return json.loads(result.output)


def write(path, rows):
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return str(path)


def sums(count):
    return [{"prompt": f"{n} + {n} = ", "answer": 2 * n} for n in range(count)]


def test_list_names_every_taskset():
    output = run(app, ["list"]).output
    for name in ("arithmetic", "counting", "comparison", "binary", "mixed", "jsonl"):
        assert name in output
    assert "Convert 5 to binary" in output


def test_show_prints_tasks_and_notes():
    output = run(app, ["show", "binary", "--count", "3"]).output
    assert "12 to train on, 4 held out" in output
    assert output.count("to binary: '") == 3
    assert "fewer than asked for" in output


def test_show_as_json():
    shown = as_json("show", "arithmetic", "--set", "tasks.high=3", "--set", 'tasks.operations=["+"]', "--count", "2")
    assert shown["options"] == {"reward": "exact", "chat": False, "operations": ["+"], "low": 0, "high": 3}
    assert shown["train"] + shown["heldout"] == 16
    assert len(shown["tasks"]) == 2
    assert shown["tasks"][0]["messages"][0]["content"].startswith("Calculate: ")


@pytest.mark.parametrize("name", ["arithmetic", "counting", "comparison", "binary", "mixed"])
def test_validate_passes_on_the_families(name):
    result = run(app, ["validate", name])
    assert result.exit_code == 0
    assert result.output.count("✓") == 12
    assert "✗" not in result.output


def test_validate_a_file(tmp_path):
    found = as_json("validate", write(tmp_path / "t.jsonl", sums(40)))
    assert found["passed"] is True
    (report,) = found["reports"]
    assert (report["section"], report["taskset"]) == ("tasks", "jsonl")
    assert report["checks"][0]["figure"] == "30 to train on, 10 held out"


def test_a_failed_check_is_exit_code_1(tmp_path):
    file = write(tmp_path / "t.jsonl", [*sums(40), *sums(10)])
    result = run(app, ["validate", file])
    assert result.exit_code == 1
    assert result.output.count("✗") == 1
    assert "10 of 50 rows" in result.output
    assert as_json("validate", file, code=1)["passed"] is False
    assert run(app, ["validate", file, "--set", "tasks.duplicates=0.2"]).exit_code == 0


def test_validate_a_recipe_checks_each_stage_and_the_evaluation(tmp_path):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        '[tasks]\ntrain = 60\nstages = [{ start = 1, high = 10 }, { start = 5, name = "mixed" }]\n[eval]\ntasks = 50\n'
    )
    found = as_json("validate", str(recipe))
    assert [(r["section"], r["taskset"]) for r in found["reports"]] == [
        ("tasks.stages[0]", "arithmetic"), ("tasks.stages[1]", "mixed"), ("eval", "arithmetic")
    ]  # fmt: skip
    assert found["reports"][2]["checks"][0]["figure"] == "0 to train on, 50 held out"
    assert all(report["notes"] == [] for report in found["reports"])
    assert len(as_json("validate", str(recipe), "--set", "tasks.stages=[]")["reports"]) == 2


@pytest.fixture
def split_recipe(tmp_path):
    """Trains on every row of one file, and evaluates on every row of another."""
    made = list(rows(16, 0, AtlasOptions(paragraphs=6)))
    files = [write(tmp_path / "train.jsonl", made[:12]), write(tmp_path / "held.jsonl", made[12:])]
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        f'[tasks]\nname = "musique"\nfile = "{files[0]}"\nsplit = "train"\ntrain = 12\n'
        f'[eval]\nname = "musique"\nfile = "{files[1]}"\nsplit = "heldout"\ntasks = 4\n[sampling]\ngroups = 4\n'
    )
    return recipe, files[0]


@pytest.mark.slow
def test_a_stage_that_trains_on_every_row_need_not_hold_out_any(split_recipe):
    recipe, file = split_recipe
    found = as_json("validate", str(recipe))
    assert [r["checks"][0]["figure"] for r in found["reports"]] == [
        "12 to train on, 0 held out", "0 to train on, 4 held out"
    ]  # fmt: skip
    assert all(report["passed"] and report["notes"] == [] for report in found["reports"])
    more = as_json("validate", str(recipe), "--set", "tasks.train=13")
    (note,) = more["reports"][0]["notes"]
    assert note.endswith("has 12 tasks, fewer than asked for: all are to train on")
    (alone,) = as_json("validate", file, "--set", "tasks.split=train", code=1)["reports"]
    assert not alone["checks"][0]["passed"]


def test_a_recipe_whose_sections_do_not_go_together_is_an_error(tmp_path):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('[tasks]\nname = "binary"\n')
    error = run(app, ["validate", str(recipe)]).exception
    assert isinstance(error, TasksetError)
    assert "fewer than sampling.groups = 16" in str(error)


@pytest.mark.parametrize(
    ("arguments", "kind", "said"),
    [
        (["validate", "arithmatic"], TasksetError, "Did you mean arithmetic?"),
        (["validate", "arithmetic", "--set", "tasks.hihg=3"], ConfigError, "tasks.hihg is not a known key"),
        (
            ["validate", "musique", "--set", "eval.atlas={hops=[7]}"],
            ConfigError,
            "--set eval.atlas={hops=[7]}: musique is looked at as [tasks]; write it as --set tasks.atlas={hops=[7]}.",
        ),
        (["show", "arithmetic", "--set", "eval={high=3}"], ConfigError, "write it as --set tasks.KEY=VALUE"),
        (["validate", "musique", "--set", "tasks.atlas.hops=[7]"], ConfigError, "tasks.atlas.hops = [7] should have"),
        (["show", "none.jsonl"], TasksetError, "can't be read"),
        (["show", "none.toml"], ConfigError, "There is no recipe at none.toml"),
        (["show", "jsonl"], ConfigError, "tasks.file is missing"),
        (["show", "no_such_module:Class"], TasksetError, "can't be loaded"),
    ],
)
def test_bad_input_is_an_error_for_the_person(arguments, kind, said):
    error = run(app, arguments).exception
    assert isinstance(error, kind)
    assert said in str(error)


def test_help_teaches():
    assert "my_tasks.jsonl" in run(app, ["validate", "--help"]).output
    assert "tasks.high=10" in run(app, ["show", "--help"]).output


def test_no_torch_is_loaded():
    code = "import sys, uptrend.cli.tasks; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
