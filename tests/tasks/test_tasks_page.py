"""The example taskset and the recipes of the guide on tasks work."""

import json
import re
import sys
import types
from pathlib import Path

import pytest

from uptrend.config import load_config
from uptrend.tasks.pool import make_heldout, make_pool, make_taskset
from uptrend.tasks.validate import validate

PAGE = (Path(__file__).parents[2] / "docs" / "guide" / "tasks.md").read_text(encoding="utf-8")
RECIPES = [
    recipe
    for recipe in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    if "reasoning-gym" not in recipe
]


def test_the_example_taskset_passes(monkeypatch):
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (code,) = [block for block in blocks if "class Doubling" in block]
    module = types.ModuleType("doubling")
    monkeypatch.setitem(sys.modules, "doubling", module)
    exec(code, module.__dict__)
    assert validate(lambda: make_taskset("doubling:Doubling", {"largest": 300}, 0), 150, 50).passed
    config = load_config({"tasks": {"name": "doubling:Doubling"}})
    assert make_pool(config, make_heldout(config)).stages[0].taskset.name == "doubling"


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_recipes_load(recipe, tmp_path, monkeypatch):
    (tmp_path / "recipe.toml").write_text(recipe)
    rows = [json.dumps({"prompt": f"Question {i}", "answer": str(i)}) for i in range(100)]
    for name in re.findall(r'^file = "(\w+\.jsonl)"', recipe, re.MULTILINE):
        (tmp_path / name).write_text("\n".join(rows))
    for name, function in re.findall(r'^reward = "(\w+\.py):(\w+)"', recipe, re.MULTILINE):
        (tmp_path / name).write_text(f"def {function}(completion, answer): return 1.0\n")
    monkeypatch.chdir(tmp_path)
    config = load_config(tmp_path / "recipe.toml")
    assert make_pool(config, make_heldout(config)).stages
