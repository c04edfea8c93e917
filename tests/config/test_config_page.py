"""docs/config.md has a line for every key, with its type, its bounds and its default."""

import dataclasses
import json
import re
import types
import typing
from pathlib import Path
from typing import Any

import pytest

from uptrend.config import Config, load_config
from uptrend.config.check import bounds_of, in_words
from uptrend.records import ConfigError

PAGE = (Path(__file__).parents[2] / "docs" / "config.md").read_text(encoding="utf-8")
ROWS = {row[0]: row[1:] for row in re.findall(r"^\| `([\w.]+)` \| (.+?) \| (.*?) ?\| (.+) \|$", PAGE, re.MULTILINE)}
TYPES = {int: "whole number", float: "number", str: "text", bool: "true, false"}


def every_key(cls: type, where: str = "") -> dict[str, tuple[Any, Any, Any]]:
    """Every dotted key with its type, the same with its bounds, and its default."""
    keys: dict[str, tuple[Any, Any, Any]] = {}
    hints, annotated = typing.get_type_hints(cls), typing.get_type_hints(cls, include_extras=True)
    for field in dataclasses.fields(cls):
        key, kind, default = f"{where}{field.name}", hints[field.name], getattr(cls(), field.name)
        if isinstance(kind, types.UnionType):
            kind = next(option for option in typing.get_args(kind) if option is not type(None))
        if field.name == "options":
            continue
        if not (dataclasses.is_dataclass(kind) and not where):  # a section has no row of its own
            keys[key] = kind, annotated[field.name], default
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            keys |= every_key(kind, f"{key}.")
    return keys


KEYS = every_key(Config)


def test_every_key_has_its_line_and_every_line_its_key() -> None:
    assert set(ROWS) == set(KEYS)
    assert len(KEYS) > 50


@pytest.mark.parametrize("key", KEYS)
def test_a_line_says_type_and_default(key: str) -> None:
    kind, hint, default = KEYS[key]
    said_type, said_default, meaning = ROWS[key]
    assert meaning
    if dataclasses.is_dataclass(kind):
        assert said_type == "table"
        return
    if typing.get_origin(kind) is typing.Literal:
        assert said_type == ", ".join(typing.get_args(kind))
    elif typing.get_origin(kind) is tuple:
        assert said_type.startswith("list of")
    else:
        bounds = in_words(bounds_of(hint))
        assert said_type == (f"{TYPES[kind]}, {bounds}" if bounds else TYPES[kind])
    plain = list(default) if isinstance(default, tuple) else default
    assert said_default == f"`{json.dumps(plain)}`"


def test_the_errors_on_the_page_are_what_is_said() -> None:
    (block,) = re.findall(r"```\n(learning\.lrr.*?)```", PAGE, re.DOTALL)
    wrong = ["learning.lrr=1", "sampling.size=1", "learning.minibatches=3"]
    for override, sentence in zip(wrong, block.splitlines(), strict=True):
        with pytest.raises(ConfigError) as caught:
            load_config({}, [override])
        assert str(caught.value) == sentence


def test_the_recipe_on_the_page_loads(tmp_path: Path) -> None:
    (recipe,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "recipe.toml").write_text(recipe)
    assert load_config(tmp_path / "recipe.toml", ["learning.loss=dapo"]).learning.kl.beta == 0.1
