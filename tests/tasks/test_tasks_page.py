"""The page on tasks says what is true, and its example runs."""

import re
import sys
import types
from pathlib import Path

import pytest

from uptrend.config import load_config
from uptrend.tasks.pool import heldout, make_taskset, pool
from uptrend.tasks.registry import BUILT_IN
from uptrend.tasks.validate import validate

PAGE = (Path(__file__).parents[2] / "docs" / "tasks.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_example_taskset_passes(monkeypatch):
    (code,) = blocks("python")
    module = types.ModuleType("doubling")
    monkeypatch.setitem(sys.modules, "doubling", module)
    exec(code, module.__dict__)
    report = validate(lambda: make_taskset("doubling:Doubling", {"largest": 300}, 0), 150, 50)
    assert [check for check in report.checks if not check.passed] == []
    config = load_config({"tasks": {"name": "doubling:Doubling"}, "sampling": {"groups": 16}})
    assert pool(config, heldout(config)).stages[0].taskset.name == "doubling"


@pytest.mark.parametrize("recipe", blocks("toml"))
def test_the_recipes_load(recipe, tmp_path, monkeypatch):
    rows = [f'{{"prompt": "{n} = ", "answer": {n}}}' for n in range(40)]
    (tmp_path / "my_tasks.jsonl").write_text("\n".join(rows))
    (tmp_path / "recipe.toml").write_text(recipe)
    monkeypatch.chdir(tmp_path)
    config = load_config(tmp_path / "recipe.toml")
    assert pool(config, heldout(config)).stages


def test_every_option_of_musique_is_on_its_page():
    page = (Path(__file__).parents[2] / "docs" / "musique.md").read_text()
    for field in BUILT_IN["musique"].Options.__dataclass_fields__:
        assert f"`{field}`" in page


def test_every_family_and_its_size_is_on_the_page():
    for name, cls in BUILT_IN.items():
        (row,) = re.findall(rf"^\| {name} \|.*$", PAGE, re.MULTILINE)
        if name == "musique":  # has a page of its own
            continue
        if name not in ("mixed", "jsonl"):
            taskset = cls(cls.Options(), 0)
            count = len(taskset.train(10_000)) + len(taskset.heldout(10_000))
            assert row.endswith(f"| {count} |")
        for field in cls.Options.__dataclass_fields__:
            assert f"`{field}" in PAGE or f"tasks.{field}" in PAGE or field in BUILT_IN
