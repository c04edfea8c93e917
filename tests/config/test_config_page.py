"""The errors and the recipe on docs/config.md are real; its tables are generated."""

import re
from pathlib import Path

import pytest

from uptrend.config import load_config
from uptrend.records import ConfigError

PAGE = (Path(__file__).parents[2] / "docs" / "config.md").read_text(encoding="utf-8")


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
