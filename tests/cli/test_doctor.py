"""`uptrend doctor`: formats, exit codes, and what can't be read."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

MakeRun = Callable[..., Path]
Uptrend = Callable[..., Any]


def log(path: Path, **last: float) -> Path:
    """Write a log of a reward that rises; its last row may hold more."""
    lines = [{"step": i, "reward": 0.1 + 0.01 * i, "loss": 0.1} for i in range(40)]
    lines[-1] |= last
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_run_by_path_or_name(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, uptrend: Uptrend
) -> None:
    path = make_run("mine", steps=20)
    monkeypatch.chdir(path.parents[1])
    assert "20 points" in uptrend("doctor", "mine", "--no-save").out
    assert not (path / "findings.json").exists()
    assert "20 points" in uptrend("doctor", path).out
    assert json.loads((path / "findings.json").read_text())["schema"] == 2


def test_a_folder_of_runs(make_run: MakeRun, uptrend: Uptrend) -> None:
    runs = make_run("first", steps=20).parent
    make_run("second", steps=25)
    (make_run("torn", steps=20) / "run.json").write_text('{"schema"')
    table = uptrend("doctor", runs, "--format", "json").json
    assert [(each["name"], each["steps"]) for each in table["runs"]] == [
        ("first", 20),
        ("second", 25),
    ]
    assert table["name"] == "second"  # the longest
    assert "torn/run.json is not JSON" in table["notes"][-1]
    assert json.loads((runs / "second" / "findings.json").read_text())["name"] == "second"
    assert uptrend("doctor", runs, "--no-save").out.count(" points") >= 2


def test_a_run_that_cannot_be_judged_hides_no_other(make_run: MakeRun, uptrend: Uptrend) -> None:
    runs = make_run("first", steps=20).parent
    path = make_run("odd", steps=20) / "run.json"
    info = json.loads(path.read_text())
    path.write_text(
        json.dumps(
            info | {"config": info["config"] | {"sampling": {"size": {}}, "learning": ["many"]}}
        )
    )
    table = uptrend("doctor", runs, "--format", "json").json
    assert ("first", 20) in [(each["name"], each["steps"]) for each in table.get("runs", [table])]
    assert [run["name"] for run in uptrend("runs", "list", runs, "--json").json["runs"]] == [
        "first"
    ]


def test_a_log_is_not_written_over(tmp_path: Path, uptrend: Uptrend) -> None:
    before = log(tmp_path / "log.jsonl").read_bytes()
    error = uptrend("doctor", tmp_path / "log.jsonl", "--out", tmp_path / "log.jsonl", code=2).err
    assert "is a file to read. Choose another one: it would be overwritten." in error
    assert (tmp_path / "log.jsonl").read_bytes() == before


def test_torn_parquet_costs_only_its_rows(make_run: MakeRun, uptrend: Uptrend) -> None:
    path = make_run("mine", steps=20)
    torn = [*sorted(path.glob("rollouts/*/*.parquet"))[:1], *path.glob("evals/*.parquet")]
    for file in torn:
        file.write_bytes(file.read_bytes()[:200])
    printed = uptrend("doctor", path, "--no-save", "--format", "json")
    assert printed.err == ""
    assert any("are damaged and were left out" in note for note in printed.json["notes"])


def test_what_cannot_be_read_is_named_and_the_rest_reported(
    make_run: MakeRun, tmp_path: Path, uptrend: Uptrend
) -> None:
    good, empty, path = (
        log(tmp_path / "good.jsonl"),
        tmp_path / "empty.jsonl",
        make_run("mine", steps=20),
    )
    empty.write_text("")
    (path / "metrics.jsonl").unlink()
    (path / "metrics.jsonl").mkdir()
    printed = uptrend(
        "doctor", good, empty, path, tmp_path / "absent.csv", "--format", "json", code=2
    )
    assert printed.json["trend"] == "learning"
    assert "empty.jsonl" in printed.err
    assert "metrics.jsonl could not be read: it is no file." in printed.err
    assert "absent.csv does not exist" in printed.err


def test_fail_on(tmp_path: Path, uptrend: Uptrend) -> None:
    bad, good = log(tmp_path / "bad.jsonl", loss=float("nan")), log(tmp_path / "good.jsonl")
    uptrend("doctor", bad)
    for severity in ("critical", "warning"):
        uptrend("doctor", bad, "--fail-on", severity, code=1)
        uptrend("doctor", good, "--fail-on", severity)


@pytest.mark.parametrize("form", ["markdown", "html", "text", "json"])
def test_every_format_goes_to_stdout_or_a_file(tmp_path: Path, uptrend: Uptrend, form: str) -> None:
    path, out = log(tmp_path / "metrics.jsonl"), tmp_path / "report"
    assert "learning" in uptrend("doctor", path, "--format", form).out.lower()
    assert uptrend("doctor", path, path, "--format", form, "--out", out).out == ""
    assert "learning" in out.read_text().lower()


def rows_of(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_names_of_ones_own_are_mapped_and_a_log_without_a_reward_is_exit_code_2(
    tmp_path: Path, uptrend: Uptrend
) -> None:
    file = rows_of(
        tmp_path / "own.jsonl",
        [{"step": i, "points": 0.1 + 0.01 * i, "my_kl": 0.5} for i in range(40)],
    )
    printed = uptrend("doctor", file, code=2)
    assert (
        "has no reward: name it by --reward-key. Columns not known: my_kl, points." in printed.err
    )
    told = uptrend(
        "doctor", file, "--reward-key", "points", "--map", "my_kl=kl", "--format", "json"
    ).json
    assert (told["trend"], told["unknown"]) == ("learning", [])
    assert (
        uptrend("doctor", file, "--map", "points=reward/mean", "--format", "json").json["trend"]
        == "learning"
    )
    for given, words in {
        "my_lk=kl": "has no column my_lk. Did you mean my_kl?",
        "my_kl=klown": "klown is no metric that is known here",
        "my_kl": "--map my_kl should be COLUMN=METRIC",
    }.items():
        assert words in uptrend("doctor", file, "--map", given, code=2).err


def test_fragments_of_a_log_are_one_report_and_runs_come_longest_first(
    tmp_path: Path, uptrend: Uptrend
) -> None:
    spans = [3, 60, 2, 30, 1]
    rows = [
        {"step": i, "reward": 0.1 * n + 0.01 * i, "loss": 0.1 * i}
        for n, span in enumerate(spans)
        for i in range(span)
    ]
    told = uptrend("doctor", rows_of(tmp_path / "restarted.jsonl", rows), "--format", "json").json
    assert [run["steps"] for run in told["runs"]] == [60, 30]
    assert "3 more fragments with 6 points in all were left out" in told["notes"][-1]


PASTED = "{'loss': 0.0, 'grad_norm': 0.0, 'reward': 0.3, 'frac_reward_zero_std': 0.25}\n"
DOCTOR = [sys.executable, "-m", "uptrend", "doctor", "-"]


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """`pipe(data)` puts bytes into the standard input; it stays open if it `is_endless`."""

    def fill(data: bytes, is_endless: bool = False) -> int:
        reader, writer = os.pipe()
        os.write(writer, data)
        if not is_endless:
            os.close(writer)
        monkeypatch.setattr(sys, "stdin", os.fdopen(reader))
        return writer

    return fill


def test_what_is_piped_is_diagnosed(
    pipe: Callable[..., int], uptrend: Uptrend, tmp_path: Path
) -> None:
    pipe(PASTED.encode())
    table = uptrend("doctor", "-", "--json").json
    assert (table["source"], table["findings"][0]["id"]) == ("pasted text", "optimizer.frozen")
    assert [sign["id"] for sign in table["normal"]] == ["some-groups-dead"]
    pipe(PASTED.replace("'grad_norm': 0.0", "'grad_norm': 0.5").encode())
    printed = uptrend("doctor", "-").out
    assert "Normal here" in printed
    assert printed.index("NO FAULT IN 1 POINT") < printed.index("A loss of 0 is normal")
    # Beside files, and in the other formats.
    for form in ("markdown", "html"):
        pipe(PASTED.replace("'grad_norm': 0.0", "'grad_norm': 0.5").encode())
        report = uptrend("doctor", "-", log(tmp_path / "log.jsonl"), "--format", form).out
        assert "A loss of 0 is normal" in report
        assert "log.jsonl" in report


def test_names_of_ones_own_are_mapped_in_a_paste_too(
    pipe: Callable[..., int], uptrend: Uptrend
) -> None:
    pipe(b"points: 0.3, kl: 0.01, grad_norm: 0.5\n")
    assert "No fault shows" in uptrend("doctor", "-", "--reward-key", "points").out


@pytest.mark.parametrize(
    ("data", "words"),
    [(b"", "pasted text is empty"), (b"\0\1\2" * 9, "binary"), (b"hello", "holds no metrics")],
)
def test_what_is_no_log_gets_a_sentence(
    pipe: Callable[..., int], uptrend: Uptrend, data: bytes, words: str
) -> None:
    pipe(data)
    assert words in uptrend("doctor", "-", code=2).err


def test_an_endless_input_is_cut(
    pipe: Callable[..., int], uptrend: Uptrend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("uptrend.cli.doctor.STDIN_TIMEOUT_S", 0.2)
    writer = pipe(PASTED.encode(), is_endless=True)
    printed = uptrend("doctor", "-", width=100).flat
    assert "did not end within 0 seconds: only its beginning was read" in printed
    os.close(writer)
    writer = pipe(b"", is_endless=True)
    assert "and nothing arrived" in uptrend("doctor", "-", code=2).err
    os.close(writer)
    monkeypatch.setattr("uptrend.cli.doctor.MAX_STDIN_BYTES", 200)
    pipe(40 * PASTED.encode())
    notes = uptrend("doctor", "-", "--json").json["notes"]
    assert notes[0].startswith("The input is longer than")


@pytest.mark.skipif(sys.platform == "win32", reason="terminals of Unix")
def test_a_person_pastes_into_a_terminal_or_gives_up() -> None:
    import pty

    ours, terminal = pty.openpty()

    def start() -> subprocess.Popen[bytes]:
        doctor = subprocess.Popen(
            DOCTOR, stdin=terminal, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert doctor.stderr is not None
        assert b"then press Ctrl-D" in doctor.stderr.readline()
        return doctor

    doctor = start()
    doctor.send_signal(signal.SIGINT)
    out, err = doctor.communicate(timeout=60)
    assert (out, b"Traceback" in err, doctor.returncode) == (b"", False, 130)
    doctor = start()
    os.write(ours, PASTED.encode() + b"\x04")
    out, err = doctor.communicate(timeout=60)
    assert (b"optimizer.frozen" in out, err, doctor.returncode) == (True, b"", 0)
    os.close(ours)
    os.close(terminal)


def test_a_paste_is_diagnosed_without_torch() -> None:
    code = (
        "import sys; from uptrend.cli.main import app; app(['doctor', '-'], standalone_mode=False);"
    )
    code += "sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], input=PASTED.encode(), capture_output=True)
    assert done.returncode == 0, done.stderr
    assert b"optimizer.frozen" in done.stdout
