"""Recipes with rows and rewards of their own: they validate, and Countdown's reward computes what
is said.
"""

import json
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from uptrend.cli.main import main

RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.mark.parametrize("name", ["gsm8k", "countdown"])
def test_rows_are_those_of_their_script_and_validate(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)  # rows and rewards are found beside the recipe
    with pytest.raises(SystemExit) as end:
        main(["tasks", "validate", str(RECIPES / name / f"{name}.toml"), "--json"])
    assert not end.value.code, capsys.readouterr().out
    assert json.loads(capsys.readouterr().out)["passed"]
    rows = RECIPES / name / "rows.jsonl"
    (tmp_path / "make_rows.py").write_text((RECIPES / name / "make_rows.py").read_text())
    runpy.run_path("make_rows.py", run_name="__main__")
    assert (tmp_path / "rows.jsonl").read_text() == rows.read_text()
    assert len(rows.read_text().splitlines()) >= 200
    assert rows.stat().st_size < 100_000


@pytest.fixture(scope="module")
def countdown() -> dict[str, Callable[..., Any]]:
    return runpy.run_path(str(RECIPES / "countdown" / "rewards.py"))


@pytest.mark.parametrize(
    ("said", "right"),
    [
        ("<answer>(3 + 4) * 2</answer>", 1.0),
        ("so <answer>3</answer>, no: <answer> 2 * (4 + 3) </answer>", 1.0),  # the last one counts
        ("(3 + 4) * 2", 0.0),
        ("<answer>14</answer>", 0.0),
        ("<answer>3 + 4 + 2</answer>", 0.0),
        ("<answer>7 * 2</answer>", 0.0),
        ("<answer>(3 + 4) * 2 + 2 - 2</answer>", 0.0),  # twice
        ("<answer>(3 + 4) * 2 / (2 - 2)</answer>", 0.0),
        ("<answer>-3 + 4 * 2</answer>", 0.0),
        ("<answer>(3 + 4) * 2 if True else 0</answer>", 0.0),
        ("<answer>__import__('os').getpid()</answer>", 0.0),
        ("<answer>9**9**9</answer>", 0.0),
        (f"<answer>{'(' * 90}3</answer>", 0.0),
        ("<answer>3 +</answer>", 0.0),
        ("<answer>(3.0 + 4) * 2</answer>", 0.0),
    ],
)
def test_countdown_uses_each_number_once(
    countdown: dict[str, Any], said: str, right: float
) -> None:
    assert countdown["correct"](said, [4, 2, 3], 14) == right


def test_countdown_computes_exactly_and_knows_the_form(countdown: dict[str, Any]) -> None:
    assert countdown["correct"]("<answer>8 / (3 - 8 / 3)</answer>", [8, 8, 3, 3], 24) == 1.0
    assert countdown["has_form"]("<answer>1</answer>") == 1.0
    assert countdown["has_form"]("<answer>1</answer> <answer>2</answer>") == 0.0
    assert countdown["has_form"]("1") == 0.0
