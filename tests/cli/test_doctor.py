"""`uptrend doctor` as it is typed: formats, exit codes, what can't be read."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from uptrend.cli.main import main


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """The exit code and what was said."""
    code = 0
    try:
        main(["doctor", *arguments])
    except SystemExit as end:
        code = int(end.code or 0)
    said = capsys.readouterr()
    return code, said.out, said.err


def log(path: Path, rows: int = 40, **last: float) -> Path:
    """A log of a reward that rises; its last row may hold more."""
    lines = [{"step": i, "reward": 0.1 + 0.01 * i, "loss": 0.1} for i in range(rows)]
    lines[-1] |= last
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_run_directory_is_told_and_its_findings_kept(
    make_run: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = make_run("mine", steps=20)
    code, out, _ = run(capsys, str(path))
    assert code == 0
    assert "20 points" in out
    assert json.loads((path / "findings.json").read_text())["schema"] == 2


def test_a_name_under_runs_will_do(
    make_run: Callable[..., Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(make_run("mine", steps=20).parents[1])
    code, out, _ = run(capsys, "mine", "--no-save")
    assert code == 0
    assert "20 points" in out
    assert not Path("runs/mine/findings.json").exists()


def test_a_folder_of_runs_is_every_run_in_it(make_run: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    runs = make_run("first", steps=20).parent
    make_run("second", steps=25)
    (make_run("torn", steps=20) / "run.json").write_text('{"schema"')
    code, out, _ = run(capsys, str(runs), "--format", "json")
    table = json.loads(out)
    assert code == 0
    assert [(each["name"], each["steps"]) for each in table["runs"]] == [("first", 20), ("second", 25)]
    assert "torn/run.json is not JSON" in table["notes"][-1]
    assert json.loads((runs / "second" / "findings.json").read_text())["name"] == "second"


def test_torn_parquet_costs_what_is_in_it_and_no_more(
    make_run: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = make_run("mine", steps=20)
    torn = [*sorted(path.glob("rollouts/*/*.parquet"))[:1], *path.glob("evals/*.parquet")]
    assert len(torn) >= 2
    for file in torn:
        file.write_bytes(file.read_bytes()[:200])
    code, out, err = run(capsys, str(path), "--no-save", "--format", "json")
    assert (code, err) == (0, "")
    assert any("are damaged and were left out" in note for note in json.loads(out)["notes"])


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_what_may_not_be_read_is_named_and_the_rest_told(
    make_run: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, secret = make_run("mine", steps=20), log(tmp_path / "secret.jsonl")
    for file in (path / "metrics.jsonl", secret):
        file.chmod(0)
    code, out, err = run(capsys, str(path), str(secret), str(log(tmp_path / "open.jsonl")), "--format", "json")
    assert code == 2
    assert json.loads(out)["steps"] == 40
    assert "metrics.jsonl could not be read" in err
    assert "secret.jsonl could not be read" in err


def test_a_reading_that_fails_in_the_system_is_a_sentence(
    make_run: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = make_run("mine", steps=20)
    (path / "metrics.jsonl").unlink()
    (path / "metrics.jsonl").mkdir()
    code, _, err = run(capsys, str(path), "--no-save")
    assert code == 2
    assert "metrics.jsonl could not be read: Is a directory." in err


def test_json_is_one_object_on_stdout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, str(log(tmp_path / "metrics.jsonl")), "--format", "json")
    assert code == 0
    assert json.loads(out)["trend"] == "learning"


@pytest.mark.parametrize(("fail_on", "code"), [(None, 0), ("critical", 1), ("warning", 1)])
def test_fail_on(tmp_path: Path, capsys: pytest.CaptureFixture[str], fail_on: str | None, code: int) -> None:
    path = log(tmp_path / "metrics.jsonl", loss=float("nan"))
    wish = ["--fail-on", fail_on] if fail_on else []
    assert run(capsys, str(path), "--format", "json", *wish)[0] == code


def test_nothing_to_fail_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, str(log(tmp_path / "metrics.jsonl")), "--fail-on", "warning")[0] == 0


def test_what_can_be_read_is_told_and_the_rest_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, empty = log(tmp_path / "good.jsonl"), tmp_path / "empty.jsonl"
    empty.write_text("")
    code, out, err = run(capsys, str(good), str(empty), str(tmp_path / "absent.csv"), "--format", "json")
    assert code == 2
    assert json.loads(out)["trend"] == "learning"
    assert "empty.jsonl" in err
    assert "absent.csv does not exist" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("form", ["markdown", "html", "text", "json"])
def test_a_file_to_write_it_to(tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str) -> None:
    out = tmp_path / "report"
    code, said, _ = run(capsys, str(log(tmp_path / "metrics.jsonl")), "--format", form, "--out", str(out))
    assert code == 0
    assert said == ""
    assert "learning" in out.read_text().lower()


def test_a_wrong_format_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, str(log(tmp_path / "metrics.jsonl")), "--format", "pdf")
    assert code == 2
    assert "pdf" in err
