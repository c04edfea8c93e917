"""Numbers on the findings' pages are those of the checks: each phrase is looked for with the constant's value in it."""

import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from uptrend.doctor.catalogue import CATALOGUE
from uptrend.doctor.pages import cause_page

TESTS = Path(__file__).parents[1]
WORDS = {0.1: "a tenth", 0.2: "a fifth", 0.25: "a quarter", 0.5: "half", 5.0: "five"}
QUOTED = tomllib.loads((TESTS / "data" / "quoted_thresholds.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("id", QUOTED)
def test_a_page_quotes_the_code(id: str) -> None:
    page = cause_page(CATALOGUE[id])
    for constant, phrase in QUOTED[id].items():
        module, name = constant.split(".")
        value = float(getattr(import_module(f"uptrend.doctor.checks.{module}"), name))
        scientific = f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e")
        ways = {phrase.format(way) for way in (f"{value:g}", scientific, f"{100 * value:g}%", WORDS.get(value, "?"))}
        assert any(way in page for way in ways), f"{id}.md has none of {sorted(ways)}"
