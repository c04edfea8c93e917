"""Recipes, settings, rows, task folders and notes of others that nest deeply, have endless digits,
or fill a disk.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlgym_folder import write_folder
from uptrend.lab.notebook import Notebook
from uptrend.records import Arm, Hypothesis

Uptrend = Callable[..., Any]
DEEP = "[" * 50_000 + "]" * 50_000
DIGITS = "9" * 100_000
HUGE = 8 << 30  # bytes of a file that has no blocks on disk
ARMS = (Arm("control", {}, True), Arm("larger", {"sampling.size": 16}))
RECIPE = (
    'model = {{ name = "tiny" }}\ntasks = {{ name = "data", file = "{file}", reward = "exact" }}\n'
)


@pytest.mark.parametrize("value", [DEEP, DIGITS])
def test_a_recipe_and_an_override(tmp_path: Path, uptrend: Uptrend, value: str) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(f"steps = {value}\n")
    assert str(recipe) in uptrend("train", recipe, code=2).err
    assert str(recipe) in uptrend("convert", recipe, "--to", "trl", code=2).err
    recipe.write_text(RECIPE.format(file=tmp_path / "rows.jsonl"))
    said = uptrend("train", recipe, "--set", f"learning.steps={value}", code=2).err
    assert "learning.steps" in said


@pytest.mark.parametrize("value", [DEEP, DIGITS])
def test_settings_of_another_trainer(tmp_path: Path, uptrend: Uptrend, value: str) -> None:
    settings = tmp_path / "grpo.json"
    settings.write_text(f'{{"num_generations": 8, "learning_rate": 1e-5, "max_steps": {value}}}')
    assert str(settings) in uptrend("convert", settings, code=2).err


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json"])
@pytest.mark.parametrize("value", [DEEP, DIGITS])
def test_rows(tmp_path: Path, uptrend: Uptrend, name: str, value: str) -> None:
    row = f'{{"prompt": "a", "answer": {value}}}'
    (tmp_path / name).write_text(row if name.endswith("l") else f"[{row}]")
    (tmp_path / "recipe.toml").write_text(RECIPE.format(file=tmp_path / name))
    said = uptrend("train", tmp_path / "recipe.toml", "--runs", tmp_path / "runs", code=2).err
    assert str(tmp_path / name) in said


def test_a_task_of_mlgym(tmp_path: Path, uptrend: Uptrend) -> None:
    write_folder(tmp_path / "mlgym")
    table = tmp_path / "mlgym" / "configs" / "tasks" / "toy.yaml"
    table.write_text(f"id: {DEEP}")
    assert (
        str(table)
        in uptrend(
            "tasks", "show", "mlgym", "--set", f"tasks.folder={tmp_path / 'mlgym'}", code=2
        ).err
    )


@pytest.mark.parametrize("kind", ["deep", "huge"])
def test_a_hypothesis_hides_no_other(tmp_path: Path, uptrend: Uptrend, kind: str) -> None:
    lab = Notebook.init(tmp_path / "lab")
    lab.add(Hypothesis("h01", "A larger group learns more", "base.toml", ARMS), {})
    hostile = lab.folder / "hypotheses" / "h02-hostile.md"
    hostile.write_text(f"+++\ntitle = {DEEP}\n+++\n")
    if kind == "huge":
        with hostile.open("r+b") as file:
            file.truncate(HUGE)
    printed = uptrend("lab", "list", "--dir", lab.folder)
    assert "A larger group learns more" in printed.flat
    assert "h02-hostile.md" in printed.flat + printed.err


def test_notes_without_end(tmp_path: Path, uptrend: Uptrend) -> None:
    notes = tmp_path / "notes.md"
    with notes.open("wb") as file:
        file.truncate(HUGE)
    assert "is too large" in uptrend("lab", "import", notes, "--into", tmp_path / "lab", code=2).err
