"""docs/records.md says every file and column, and its snippet runs."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from synthetic import info_of
from uptrend.records.directory import event_fields
from uptrend.records.schema import ROLLOUTS

PAGE = (Path(__file__).parents[2] / "docs" / "records.md").read_text(encoding="utf-8")


def test_every_column_has_its_line() -> None:
    documented = re.findall(r"^\| `(\w+)` \| [\w ]+(?:\([\w, ]+\))? \| .+ \|$", PAGE, re.MULTILINE)
    assert documented == ROLLOUTS.names


def test_every_key_of_run_json_has_its_line() -> None:
    table = PAGE.split("## run.json")[1].split("##")[0]
    assert set(re.findall(r"`(\w+)`", table)) >= set(info_of("demo"))


def test_every_event_has_its_line() -> None:
    rows = [
        f"| `{kind}` | {'; '.join(f'`{name}`: {meaning}' for name, meaning in fields.items())} |"
        for kind, fields in event_fields().items()
    ]
    assert "\n".join(rows) in PAGE, "write these lines: \n" + "\n".join(rows)


def test_every_file_is_named(make_run: Callable[..., Path]) -> None:
    for path in make_run("demo", steps=1).iterdir():
        assert path.name in PAGE


def test_the_snippet_runs(
    make_run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(make_run("quickstart", steps=4).parents[1])
    (snippet,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(snippet, "records.md", "exec"), {})
    told = capsys.readouterr().out
    assert "finished, 4 of 4 steps" in told
    assert "0.375" in told
