"""The pages on tasks name every option, and their examples run."""

import re
import sys
import types
from pathlib import Path

import pytest

from uptrend.config import load_config
from uptrend.tasks.pool import heldout, make_taskset, pool
from uptrend.tasks.registry import BUILT_IN
from uptrend.tasks.validate import validate

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "tasks.md").read_text()


def test_the_example_taskset_passes(monkeypatch):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    module = types.ModuleType("doubling")
    monkeypatch.setitem(sys.modules, "doubling", module)
    exec(code, module.__dict__)
    assert validate(lambda: make_taskset("doubling:Doubling", {"largest": 300}, 0), 150, 50).passed
    config = load_config({"tasks": {"name": "doubling:Doubling"}})
    assert pool(config, heldout(config)).stages[0].taskset.name == "doubling"


@pytest.mark.parametrize("recipe", re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL))
def test_the_recipes_load(recipe, tmp_path, monkeypatch):
    (tmp_path / "my_tasks.jsonl").write_text("".join(f'{{"prompt": "{n} = ", "answer": {n}}}\n' for n in range(40)))
    (tmp_path / "recipe.toml").write_text(recipe)
    monkeypatch.chdir(tmp_path)
    config = load_config(tmp_path / "recipe.toml")
    assert pool(config, heldout(config)).stages


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_option_and_size_is_on_the_page(name):
    cls, page = BUILT_IN[name], (DOCS / "musique.md").read_text() if name == "musique" else PAGE
    (row,) = re.findall(rf"^\| {name} \|.*$", PAGE, re.MULTILINE)
    for field in cls.Options.__dataclass_fields__:
        assert f"`{field}" in page or f"tasks.{field}" in page or field in BUILT_IN
    if name not in ("mixed", "jsonl", "musique"):
        taskset = cls(cls.Options(), 0)
        assert row.endswith(f"| {len(taskset.train(10_000)) + len(taskset.heldout(10_000))} |")
