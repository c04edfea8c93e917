"""Plain tables: differences between two configs, and TOML text that is read back the same."""

import json
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from uptrend.config import Config, difference, load_config, to_table
from uptrend.config.tables import flatten, nest, to_key, to_recipe, to_toml

RECIPES = sorted((Path(__file__).parents[2] / "recipes").rglob("*.toml"))
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
scalars = st.one_of(
    texts, st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False)
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3)
)


@given(st.dictionaries(texts, values, max_size=4))
@settings(max_examples=100, deadline=None)
def test_a_table_is_read_back(table: dict[str, object]) -> None:
    assert tomllib.loads(to_recipe(table)) == table
    assert tomllib.loads(f"x = {to_toml(table)}")["x"] == table


def test_what_is_none_is_left_out() -> None:
    assert tomllib.loads(to_recipe({"a": None, "b": {"c": None, "d": 1}})) == {"b": {"d": 1}}
    assert to_toml({"a": None}) == "{}"
    assert (to_key("learning"), to_key("learning.lr")) == ("learning", '"learning.lr"')
    with pytest.raises(TypeError, match="has no form in TOML"):
        to_toml(object())


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_resolved_recipe_is_a_recipe(recipe: Path) -> None:
    table = to_table(load_config(recipe))
    assert to_table(load_config(tomllib.loads(to_recipe(table)))) == table
    assert nest(flatten(table)) == table


def test_differences_are_dotted_keys_with_both_values() -> None:
    changes = ["learning.lr=2e-5", "learning.kl.beta=0.1", "tasks.digits=3", "model.lora.r=4"]
    found = difference(to_table(Config()), to_table(load_config({}, changes)))
    assert {key: found[key] for key in found if not key.startswith("model.lora.")} == {
        "tasks.digits": (None, 3), "learning.lr": (1e-5, 2e-5), "learning.kl.beta": (0.0, 0.1),
    }  # fmt: skip
    assert found["model.lora.r"] == (None, 4)


def test_lists_are_equal_however_they_were_kept() -> None:
    table = to_table(
        load_config(
            {"sampling": {"stop": ["a"]}, "tasks": {"stages": [{"start": 1, "ops": ["+"]}]}}
        )
    )
    assert difference(table, json.loads(json.dumps(table))) == {}
    assert difference({"a": (1, (2,))}, {"a": [1, [2]]}) == {}
