"""`uptrend lab report` from the command line."""

import json
import subprocess
import sys
import webbrowser
from pathlib import Path

import pytest
from typer.testing import CliRunner

from journals import validated_kl
from uptrend.cli.lab import app
from uptrend.records import LabError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A lab with a verdict."""
    return validated_kl(tmp_path / "lab")[0].folder


def report(*arguments: object) -> str:
    """Run the command as the command line does, and give what it printed."""
    result = CliRunner().invoke(app, ["report", *map(str, arguments)])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0
    return result.output


def test_a_page_beside_the_lab_or_where_it_is_asked_for(folder: Path, tmp_path: Path) -> None:
    assert report(folder, "--html").strip() == f"Wrote {folder / 'report.html'}"
    report(folder, "--html", "--out", tmp_path / "other.html")
    assert (tmp_path / "other.html").read_text() == (folder / "report.html").read_text()
    assert (tmp_path / "other.html").read_text().startswith("<!doctype html>")


def test_markdown_is_printed_unless_told_otherwise(folder: Path, tmp_path: Path) -> None:
    said = report(folder)
    assert said.startswith("# lab\n")
    assert "H01 VALIDATED: A KL penalty is required" in said
    report(folder, "--format", "markdown", "--out", tmp_path / "lab.md")
    assert (tmp_path / "lab.md").read_text() == said


def test_json_for_programs(folder: Path) -> None:
    table = json.loads(report(folder, "--format", "json"))
    assert (table["schema"], table["title"]) == (1, "lab")
    assert table["hypotheses"][0]["verdict"]["status"] == "validated"


def test_opening_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    report(folder, "--open")
    assert opened == [(folder / "report.html").resolve().as_uri()]


def test_two_wishes_and_a_folder_that_is_no_lab_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"--html and --format json ask for two things"):
        report(folder, "--html", "--format", "json")
    with pytest.raises(LabError, match=r"is not a lab\. Make one with: uptrend lab init"):
        report(tmp_path / "nowhere", "--html")


def test_it_loads_neither_torch_nor_scipys_statistics(folder: Path) -> None:
    code = (
        "import sys\nsys.argv = ['uptrend', 'lab', 'report', '.', '--html']\nfrom uptrend.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
        "print(sorted({'torch', 'scipy.stats', 'ray'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
