"""Plain values written as TOML are read back the same."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from uptrend.config import load_config, to_table
from uptrend.config.toml_text import to_key, to_recipe, to_toml

RECIPES = sorted((Path(__file__).parents[2] / "recipes").rglob("*.toml"))
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
scalars = st.one_of(texts, st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False))
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3))


@given(values)
@settings(max_examples=100, deadline=None)
def test_a_value_is_read_back(value: object) -> None:
    assert tomllib.loads(f"x = {to_toml(value)}")["x"] == value


@given(st.dictionaries(texts, values, max_size=4))
@settings(max_examples=100, deadline=None)
def test_a_table_is_read_back(table: dict[str, object]) -> None:
    assert tomllib.loads(to_recipe(table)) == table


def test_what_is_none_is_left_out() -> None:
    assert tomllib.loads(to_recipe({"a": None, "b": {"c": None, "d": 1}})) == {"b": {"d": 1}}
    assert to_toml({"a": None}) == "{}"
    assert (to_key("learning"), to_key("learning.lr")) == ("learning", '"learning.lr"')
    with pytest.raises(TypeError, match="has no form in TOML"):
        to_toml(object())


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_resolved_recipe_is_a_recipe(recipe: Path, tmp_path: Path) -> None:
    table = to_table(load_config(recipe))
    path = tmp_path / "again.toml"
    path.write_text(to_recipe(table), encoding="utf-8")
    assert to_table(load_config(path)) == table
