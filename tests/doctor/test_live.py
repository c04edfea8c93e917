"""The doctor beside a run: what it says, when, and that it ends with its run."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from uptrend.doctor.live import Announced, announced_before
from uptrend.records import Basis, Finding, Report, Run, RunDirectory, Severity, Trend, TrendKind
from uptrend.runner.observers import LiveDoctor
from uptrend.training.observer import StepRecord, Stop


def report(*ids: str, severity: Severity = Severity.WARNING, basis: Basis = Basis.PROOF) -> Report:
    findings = tuple(Finding(id, severity, basis, f"It is {id}.", ()) for id in ids)
    return Report("here", "uptrend", "run", 5, Trend(TrendKind.FLAT, ""), findings, ())


CURVE, INVARIANT = "kl.runaway", "mask.tool-trained"
NEWS: dict[str, list[tuple[Report, int, list[str]]]] = {
    "an invariant is told at once, once, and again when it is worse": [
        (report(INVARIANT), 1, [INVARIANT]),
        (report(INVARIANT), 2, []),
        (report(INVARIANT, severity=Severity.CRITICAL), 3, [INVARIANT]),
    ],
    "a curve is told when a later diagnosis still has it": [
        (report(CURVE), 40, []), (report(CURVE), 42, []), (report(CURVE), 44, [CURVE]),
    ],
    "what curves suggest of a cause that a probe proves waits too": [
        (report("optimizer.lr-small", basis=Basis.SIGNAL), 20, []),
        (report("optimizer.lr-small", basis=Basis.SIGNAL), 23, ["optimizer.lr-small"]),
    ],
    "a curve that looks bad once is not told": [(report(CURVE), 40, []), (report(), 44, []), (report(CURVE), 45, [])],
    "notes are not told": [(report("data.duplicates", severity=Severity.NOTE), 9, [])],
}  # fmt: skip


@pytest.mark.parametrize("diagnoses", NEWS.values(), ids=NEWS)
def test_news(diagnoses: list[tuple[Report, int, list[str]]]) -> None:
    announced = Announced()
    for told, step, expected in diagnoses:
        assert [finding.id for finding in announced.news(told, step)] == expected


def test_what_no_longer_asks_for_a_change_is_withdrawn_and_may_come_again() -> None:
    announced = Announced({CURVE: Severity.WARNING, INVARIANT: Severity.CRITICAL})
    both, note = report(CURVE, INVARIANT), report(CURVE, severity=Severity.NOTE)
    assert announced.withdrawn(both, 40) == []
    assert announced.withdrawn(note, 41) == []
    assert announced.withdrawn(both, 43) == [], "it came back"
    assert announced.withdrawn(note, 45) == []
    assert announced.withdrawn(note, 49) == [CURVE, INVARIANT]
    assert [finding.id for finding in announced.news(report(INVARIANT), 50)] == [INVARIANT]
    assert announced.withdrawn(report(), 51, is_last=True) == [INVARIANT]


def test_what_an_earlier_part_of_a_run_withdrew_is_announced_again(
    make_run: Callable[..., Path],
) -> None:
    directory = RunDirectory(make_run("resumed", steps=3))
    for id in (CURVE, INVARIANT):
        directory.event("finding", id=id, severity="warning", summary="It is so.", step=2)
    directory.event("withdrawn", id=CURVE, step=3)
    assert announced_before(Run(directory.path)) == {INVARIANT: Severity.WARNING}


def test_a_resumed_run_is_told_only_what_got_worse() -> None:
    announced = Announced({INVARIANT: Severity.WARNING})
    assert announced.news(report(INVARIANT), 1) == []
    assert announced.news(report(INVARIANT, severity=Severity.CRITICAL), 2) != []


def test_it_ends_when_nobody_listens(make_run: Callable[..., Path]) -> None:
    command = [sys.executable, "-m", "uptrend.doctor.live", str(make_run("alone", steps=3))]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, timeout=180, check=True
    )
    assert done.stdout == b""


def attended(path: Path, stop_on: str, live: bool = True) -> tuple[list[str], list[Stop]]:
    """What is said and wished for while a finished run is attended until the doctor has spoken or
    ended.
    """
    table = json.loads((path / "run.json").read_text())
    table["config"]["doctor"] = {"live": live, "stop_on": stop_on}
    (path / "run.json").write_text(json.dumps(table))
    said: list[str] = []
    observer = LiveDoctor(said.append)
    observer.before(Run(path))
    stops: list[Stop] = []
    deadline = time.monotonic() + 180
    while (
        live and not any("run.nonfinite" in line for line in said) and time.monotonic() < deadline
    ):
        wish = observer.step(StepRecord(1, {}, (), None))
        stops += [wish] if wish else []
        time.sleep(0.05)
    observer.after(Run(path))
    return said, stops


def with_nan(path: Path) -> Path:
    """A run whose loss is no longer a number."""
    rows: list[dict[str, Any]] = [
        json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()
    ]
    (path / "metrics.jsonl").unlink()
    for row in rows:
        RunDirectory(path).step({**row, "loss/total": None})
    return path


@pytest.mark.parametrize("stop_on", ["critical", "never"])
def test_a_finding_goes_to_the_terminal_the_events_and_the_loop(
    make_run: Callable[..., Path], stop_on: str
) -> None:
    path = with_nan(make_run("broken", steps=6))
    said, stops = attended(path, stop_on)
    assert any(line.startswith("doctor, after step 6: critical: run.nonfinite: ") for line in said)
    assert said[-1].startswith("Doctor, after step 6: ")
    assert {stop.by for stop in stops} == ({"doctor"} if stop_on == "critical" else set())
    assert {stop.finding for stop in stops} <= {line.split(": ")[2] for line in said[:-1]}
    events = [event for event in Run(path).events if event["event"] == "finding"]
    assert "run.nonfinite" in {event["id"] for event in events}
    table = json.loads((path / "findings.json").read_text())
    assert "run.nonfinite" in {finding["id"] for finding in table["findings"]}


def test_files_of_the_current_folder_do_not_end_it(
    make_run: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "select.py").write_text("raise SystemExit('a file of the current folder')\n")
    monkeypatch.chdir(tmp_path)
    said, _ = attended(with_nan(make_run("broken", steps=6)), "critical")
    assert any("run.nonfinite" in line for line in said)


def test_it_can_be_left_out(make_run: Callable[..., Path]) -> None:
    path = make_run("quiet", steps=3)
    assert attended(path, "critical", live=False) == ([], [])
    assert not (path / "findings.json").exists()


def test_a_run_says_who_stopped_it(make_run: Callable[..., Path]) -> None:
    directory = RunDirectory(make_run("mine", steps=3))
    assert Run(directory.path).stopped is None
    for stop in (Stop("enough"), Stop("It diverges.", by="doctor", finding="run.nonfinite")):
        directory.event("stopped", step=3, **stop.to_event())
        assert Run(directory.path).stopped == stop
    assert Run(directory.path).status == "stopped"
    directory.event("resumed")
    assert Run(directory.path).stopped is None
