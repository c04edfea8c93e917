"""Runs that version 0.2 made (tests/data/runs02): read, diagnosed, served, exported, replayed and
resumed.
"""

import base64
import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

RUNS02 = Path(__file__).parents[1] / "data" / "runs02"
Uptrend = Callable[..., Any]
NOTES = {"eval.noise": "note", "run.too-short": "note"}


@dataclass(frozen=True)
class Made:
    """What is known of a run."""

    step: int
    taskset: str
    right: tuple[int, int, int] | None
    """Held-out tasks answered rightly before and after, of how many; None of a run that was not
    evaluated.
    """
    findings: dict[str, str] = field(default_factory=lambda: NOTES)
    """Severities by cause."""
    trend: str = "too-short"
    status: str = "finished"
    groups: int = 4
    """Groups of each step."""


RUNS = {
    "own": Made(5, "arithmetic", (3, 1, 12), NOTES | {"advantage.dead-groups-high": "note"}),
    "musique": Made(4, "musique", (0, 0, 6), groups=3),
    "mlgym": Made(
        3,
        "mlgym",
        (0, 0, 2),
        NOTES | {"advantage.dead-groups-low": "warning", "optimizer.dead-steps": "warning"},
        groups=2,
    ),
    "two-ranks": Made(3, "arithmetic", (2, 1, 10)),
    "trl": Made(6, "trl dataset", None, {"run.too-short": "note"}, groups=8),
    "trl-cut": Made(
        6,
        "trl dataset",
        None,
        {
            "reward.gold-rejected": "critical",
            "reward.constant": "critical",
            "optimizer.dead-steps": "warning",
            "advantage.dead-groups-low": "critical",
        },
        trend="flat",
        groups=8,
    ),
    "interrupted": Made(2, "arithmetic", (0, 0, 10), status="stopped"),
}
REPLAYED = [name for name in RUNS if not name.startswith("trl")]
every_run = pytest.mark.parametrize("name", RUNS)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a copy of the runs, and of the models and questions that they
    name.
    """
    shutil.copytree(RUNS02, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("UPTREND_HOME", str(tmp_path / "home"))
    return tmp_path / "here"


@every_run
@pytest.mark.usefixtures("folder")
def test_a_run_is_read(uptrend: Uptrend, name: str) -> None:
    made = RUNS[name]
    run = uptrend("runs", "show", name, "--json").json
    assert (run["status"], run["step"], run["taskset"]) == (made.status, made.step, made.taskset)
    assert len(run["curves"]["reward/mean"]) == made.step
    assert run["doctor"]["trend"] == made.trend
    if made.right:
        before, after = run["before"], run["after"]
        assert (before["correct"], after["correct"], after["tasks"]) == made.right
    else:
        assert run["before"] is run["after"] is None
    groups = uptrend("runs", "show", name, "--rollout", made.step, "--json").json["groups"]
    assert len(groups) == made.groups


@pytest.mark.usefixtures("folder")
def test_rollouts_have_their_turns_calls_and_commands(uptrend: Uptrend) -> None:
    def rollout(name: str) -> Any:
        return uptrend("runs", "show", name, "--rollout", "1/0/0", "--json").json

    called = [
        json.loads(message["calls"])
        for message in rollout("musique")["messages"]
        if message["calls"]
    ]
    assert called[0][0]["name"] == "retrieve_documents"
    assert rollout("mlgym")["commands"][0]["command"] == "open strategy.py"
    watched = rollout("trl-cut")
    assert (watched["reward"], watched["answer"]) == (0.0, "10")
    (sequence,) = rollout("two-ranks")["sequences"]
    assert len(sequence["ids"]) == 23
    best = uptrend("runs", "show", "own", "--best", 2).out.splitlines()
    assert [line.split()[0] for line in best[-2:]] == ["1/0/0", "1/0/3"]


@every_run
@pytest.mark.usefixtures("folder")
def test_a_run_is_diagnosed(uptrend: Uptrend, name: str) -> None:
    report = uptrend("doctor", name, "--no-save", "--format", "json").json
    assert report["trend"] == RUNS[name].trend
    found = {finding["id"]: finding["severity"] for finding in report["findings"]}
    assert found == RUNS[name].findings


@pytest.mark.usefixtures("folder")
def test_runs_are_listed(uptrend: Uptrend) -> None:
    listed = uptrend("runs", "list", ".", "--json").json
    assert listed["broken"] == []
    steps = {run["path"]: (run["status"], run["step"]) for run in listed["runs"]}
    assert steps == {name: (made.status, made.step) for name, made in RUNS.items()}


@pytest.mark.slow
def test_the_dashboard_lists_them(folder: Path) -> None:
    command = [sys.executable, "-P", "-m", "uptrend", "serve", ".", "--port", "0", "--no-token"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        address = re.search(r"http://\S+/", process.stdout.readline())
        assert address, "no address was printed"
        try:
            rows = wait_for_rows(f"{address[0]}api")
        finally:
            process.send_signal(signal.SIGINT)
    steps = {Path(row["path"]).name: (row["status"], row["step"]) for row in rows}
    assert steps == {name: (made.status, made.step) for name, made in RUNS.items()}


def wait_for_rows(api: str) -> list[dict[str, Any]]:
    """Return the dashboard's rows once it has read all folders."""
    with httpx.Client(timeout=60) as client:
        until = time.monotonic() + 120
        while client.get(f"{api}/status").json()["indexing"]:
            assert time.monotonic() < until
            time.sleep(0.05)
        rows: list[dict[str, Any]] = client.get(f"{api}/runs").json()["rows"]
        return rows


@every_run
def test_a_run_is_exported(uptrend: Uptrend, folder: Path, name: str) -> None:
    # The report of then is shown as long as it holds, by the dates of files that a checkout sets
    # anew.
    (folder / name / "findings.json").unlink(missing_ok=True)
    uptrend("export", name, "--out", "page.html")
    packed = re.search(
        r'<script [^>]*id="data">([^<]+)</script>', (folder / "page.html").read_text()
    )
    assert packed
    data = gzip.decompress(base64.b64decode(packed[1])).decode()
    for cause in RUNS[name].findings:
        assert f'"{cause}"' in data


@pytest.mark.slow
@pytest.mark.parametrize("name", REPLAYED)
@pytest.mark.usefixtures("folder")
def test_a_run_is_replayed(uptrend: Uptrend, name: str) -> None:
    words = ("--step", 0, "--steps", 1, "--quiet", "--format", "json", "--runs", "replays")
    replayed = uptrend("replay", name, *words).json
    (line,) = replayed["steps"]
    # Not to the bit: another CPU than the one of the recording may have trained.
    assert line["replay"]["sampler/ess/share"] == pytest.approx(1.0, abs=1e-3)
    for metric in ("loss/total", "gradient/norm/before", "weights/update/norm"):
        assert line["replay"][metric] == pytest.approx(line["source"][metric], rel=1e-2, abs=1e-5)


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
def test_a_watched_run_is_not_replayed(uptrend: Uptrend) -> None:
    error = uptrend("replay", "trl", "--step", 0, code=2).err
    assert "is a run of trl; only a run of uptrend train can be replayed." in error


@pytest.mark.slow
def test_an_interrupted_run_is_resumed(uptrend: Uptrend, folder: Path) -> None:
    before = (folder / "interrupted" / "metrics.jsonl").read_text()
    uptrend("train", "--resume", "interrupted", "--quiet")
    after = (folder / "interrupted" / "metrics.jsonl").read_text()
    assert after.startswith(before)
    lines = [json.loads(line) for line in after.splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 9))
    # The schedule goes on, falling to 0 after the last step; the optimizer's state lets weights
    # move no further.
    assert [line["optimizer/lr"] for line in lines] == pytest.approx(
        [1e-3 * (8 - n) / 8 for n in range(8)]
    )
    run = uptrend("runs", "show", "interrupted", "--json").json
    assert (run["status"], run["step"], run["after"]["step"]) == ("finished", 8, 8)
    tasks = [
        group["task"]
        for step in range(1, 9)
        for group in uptrend("runs", "show", "interrupted", "--rollout", step, "--json").json[
            "groups"
        ]
    ]
    assert len(set(tasks)) == len(tasks) == 32  # no task comes twice


def test_no_file_names_the_machine_that_made_it() -> None:
    names = [str(Path.home()), os.sep + "tmp" + os.sep, str(RUNS02.parents[2])]
    for path in RUNS02.rglob("*"):
        text = path.read_bytes().decode("utf-8", "replace") if path.is_file() else ""
        assert not [name for name in names if name in text], path
