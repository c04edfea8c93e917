"""What folders hold, and what is known of it when files, the index or the worker come, go and
break.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from journals import KL, make_lab
from synthetic import info_of, write_refused_run, write_run
from uptrend.dashboard import curves
from uptrend.dashboard.api import show_run
from uptrend.dashboard.filters import choose
from uptrend.dashboard.index import INDEX_SCHEMA
from uptrend.dashboard.library import Library
from uptrend.dashboard.rollouts import RolloutSet, find_rollouts
from uptrend.dashboard.sources import MAX_FOLDER_DEPTH, find_sources
from uptrend.dashboard.worker import ReaderProcess
from uptrend.records import RecordError, Run, RunDirectory
from uptrend.records.directory import set_aside
from uptrend.records.schema import SCHEMA_VERSION
from uptrend.records.summary import find_runs

DATA = Path(__file__).parents[1] / "data"
LOG = DATA / "formats" / "trl-bars" / "raw" / "out.log"
NAMED = DATA / "formats" / "json-named-runs" / "raw" / "log.json"
Ask = Callable[..., Any]
Serve = Callable[..., str]
STATE = json.dumps(
    {
        "global_step": 9,
        "log_history": [{"step": n, "reward": 0.1 * n, "loss": 0.0} for n in range(1, 10)],
    }
)


@pytest.fixture
def open_library(tmp_path: Path) -> Iterator[Callable[..., Library]]:
    """`open_library(folder)` has looked at a folder once, as the first of many looks."""
    opened: list[Library] = []

    def look(*folders: Path, home: Path | None = None) -> Library:
        opened.append(Library(folders, home or tmp_path / "home"))
        opened[-1].refresh()
        return opened[-1]

    yield look
    for library in opened:
        library.close()


def put(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_sources_of_a_tree(tmp_path: Path) -> None:
    root = tmp_path / "work"
    for name in (
        "one",
        "sweep/two",
        ".hidden/three",
        "node_modules/four",
        "/".join("abcdefg"[: MAX_FOLDER_DEPTH + 1]),
    ):
        write_run(root / name, steps=1)
    write_run(root / "/".join("ABCDEF"[: MAX_FOLDER_DEPTH - 1]) / "five", steps=1)
    make_lab(root / "lab", KL)
    write_run(root / "lab" / "runs" / "arm", steps=1)
    put(root / "trl" / "checkpoint-9" / "trainer_state.json", STATE)
    put(root / "loose" / "train.log")
    put(root / "loose" / "wandb" / "more.csv")
    put(root / "one" / "logs" / "train.log")
    put(root / "README.md")
    put(root / "sweep" / "notes.txt")
    found = find_sources(
        [
            root,
            root / "one",
            root / "loose" / "train.log",
            tmp_path / "other" / "work",
            tmp_path / "none",
        ]
    )
    kinds = {id: source.kind for id, source in found.items()}
    deep = f"work/{'/'.join('ABCDEF'[: MAX_FOLDER_DEPTH - 1])}/five"
    assert kinds == {
        "work/one": "run", "work/sweep/two": "run", "work/sweep/notes.txt": "log", deep: "run", "work/lab": "lab",
        "work/lab/runs/arm": "run", "work/trl": "log", "work/loose": "log", "one": "run", "train.log": "log",
    }  # fmt: skip
    assert not found["work/loose"].strong
    assert found["work/trl"].strong
    twice = find_sources([root / "sweep", put(tmp_path / "b" / "sweep" / "run.json").parent])
    assert [id for id, source in twice.items() if source.kind == "run"] == ["sweep/two", "sweep~2"]


def test_what_the_runs_of_a_lab_printed_are_no_runs(tmp_path: Path, serve: Serve, ask: Ask) -> None:
    printed = "".join(f"step {n}, reward: {0.01 * n}, kl: 0.001\n" for n in range(1, 30))
    lab = tmp_path / "work" / "lab"
    make_lab(lab, KL)
    for name in ("h01/control-0", "h01/arm-0", "h01/failed-0", "flat-0"):
        put(lab / "runs" / f"{name}.log", printed)
        if "failed" not in name:
            write_run(lab / "runs" / name, steps=2)
    put(lab / "experiments.log", printed)
    write_run(tmp_path / "work" / "mine", steps=2)
    put(tmp_path / "work" / "mine.log", printed)
    put(tmp_path / "work" / "other" / "train.log", printed)
    for folder in (tmp_path / "work", lab, lab / "runs", lab / "runs" / "h01"):
        rows = ask(serve(folder), "runs")["rows"]
        logs = [row["name"] for row in rows if row["kind"] == "log"]
        assert logs == (["other"] if folder.name == "work" else []), folder
        assert len(rows) == {"work": 5, "h01": 2}.get(folder.name, 3), folder


@pytest.mark.slow
def test_runs_that_come_change_and_go_are_noticed(
    tmp_path: Path, serve: Serve, ask: Ask, wait: Any
) -> None:
    runs = tmp_path / "runs"
    url = serve(runs)
    assert ask(url, "runs")["rows"] == []
    assert ask(url, "status")["folders"] == [{"path": str(runs), "exists": False}]

    def known() -> dict[str, str]:
        return {row["name"]: row["status"] for row in ask(url, "runs")["rows"]}

    with httpx.stream("GET", f"{url}/api/live", timeout=60) as events:
        lines = events.iter_lines()
        next(lines)
        timer = threading.Timer(0.8, lambda: write_run(runs / "killed", steps=2, end=None))
        timer.start()
        assert next(line for line in lines if line.startswith("data: ")) == 'data: {"run": null}'
        timer.join()
    wait(lambda: known() == {"killed": "killed"})
    with RunDirectory.reopen(runs / "killed") as directory:
        wait(lambda: known() == {"killed": "running"})
        directory.event("finished", step=2)
    wait(lambda: known() == {"killed": "finished"})
    shutil.rmtree(runs / "killed")
    wait(lambda: known() == {}, 10)


def test_runs_that_can_not_be_read_say_why_and_old_ones_have_todays_names(
    tmp_path: Path, open_library: Any
) -> None:
    runs = tmp_path / "runs"
    put(runs / "torn" / "run.json", '{"schema": 2, "conf')
    put(runs / "list" / "run.json", "[]")
    put(runs / "newer" / "run.json", json.dumps({**info_of("newer"), "schema": SCHEMA_VERSION + 1}))
    put(runs / "deep" / "run.json", '{"schema": 2, "config": ' + '{"a":' * 100_000)
    put(runs / "odd" / "run.json", json.dumps({"schema": 2, "config": [1]}))
    put(runs / "fresh" / "run.json", json.dumps(info_of("fresh")))
    put(write_run(runs / "report", steps=2) / "findings.json", "[]")
    put(
        write_run(runs / "nan", steps=2) / "evals.jsonl",
        (runs / "nan/evals.jsonl").read_text().replace("0.5", "NaN"),
    )
    (runs / "empty").mkdir()
    shutil.copytree(DATA / "schema1", runs / "old")
    library = open_library(runs)
    rows = {row["name"]: row for row in library.rows()}
    errors = {name: row["error"] for name, row in rows.items() if row["status"] == "unreadable"}
    assert set(errors) == {"torn", "list", "newer", "deep", "odd"}
    assert "is not JSON" in errors["torn"]
    assert "written by a newer Uptrend" in errors["newer"]
    assert "is not JSON" in errors["deep"]
    assert (rows["fresh"]["step"], rows["fresh"]["status"], rows["report"]["status"]) == (
        0,
        "killed",
        "finished",
    )
    old = Run(runs / "old")
    table = library.table(library.entry("runs/old"))
    assert (table["step"].to_pylist(), rows["old"]["step"]) == ([1, 2, 3], 3)
    assert set(table.column_names) <= set(old.metrics.column_names)
    assert rows["old"]["config"]["model.weights"] == old.config["model"]["weights"]
    assert (
        find_rollouts(RolloutSet(library.entry("runs/old"), library), step=2)["total"]
        == old.rollouts(2).num_rows
    )


def test_a_row_has_the_columns_and_values_of_the_terminals_list(
    tmp_path: Path, open_library: Any
) -> None:
    folder = tmp_path / "runs"
    path = write_run(folder / "a", steps=6, rights=(10, 20))
    lines = (path / "metrics.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])
    del last["reward/mean"]  # nothing of the last step could be scored
    (path / "metrics.jsonl").write_text("\n".join([*lines[:-1], json.dumps(last)]) + "\n")
    shutil.copy(LOG, folder / "out.log")
    rows = {row["name"]: row for row in open_library(folder).rows()}
    (listed,), _ = find_runs(folder)
    created = datetime.fromisoformat(listed["created"]).timestamp()
    assert {key: rows["a"][key] for key in listed} == {**listed, "created": created}
    assert listed["reward"] == json.loads(lines[-2])["reward/mean"]
    assert set(listed) <= set(rows["runs/out.log"])


def test_a_name_with_an_at_sign_is_found_before_its_turn(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "lr@1e-5", steps=1)
    library = Library([tmp_path / "runs"], tmp_path / "home")
    assert library.entry("runs/lr@1e-5").row["step"] == 1
    library.close()


@pytest.mark.slow
@pytest.mark.parametrize("trouble", ["deleted", "unwritable", "damaged", "damaged in the middle"])
def test_an_index_that_breaks_costs_a_reading_and_no_more(
    trouble: str, tmp_path: Path, open_library: Any, make_run: Callable[..., Path]
) -> None:
    runs, home = make_run("a", steps=3).parent, tmp_path / "home"
    shutil.copytree(LOG.parent, runs / "log")
    database = home / f"index-{INDEX_SCHEMA}" / "index.sqlite"
    if trouble == "unwritable":
        put(home)
    if trouble == "damaged":
        put(database, "no database")
    library = open_library(runs)
    if trouble == "damaged in the middle":
        library.close()
        data = database.read_bytes()
        database.write_bytes(data[:4096] + os.urandom(len(data) - 4096))
        library = open_library(runs)
    if trouble == "deleted":
        shutil.rmtree(home)
    write_run(runs / "b", steps=2)
    library.refresh()
    assert {row["name"]: row["status"] for row in library.rows()} == {
        "a": "finished",
        "b": "finished",
        "log": "log",
    }
    log = library.entry("runs/log")
    assert len(library.table(log)) == library.log_facts(log)["report"]["steps"] == 20
    for name, steps in (("a", 3), ("b", 2)):
        found = find_rollouts(RolloutSet(library.entry(f"runs/{name}"), library))
        assert (found["total"], found["indexed"], len(found["rollouts"])) == (steps, steps, steps)


@pytest.mark.parametrize("is_large", [False, True])  # columns of large files are kept too
def test_a_second_start_reads_nothing_twice(
    is_large: bool,
    make_run: Callable[..., Path],
    open_library: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(curves, "MIN_INDEXED_BYTES", 1000 if is_large else 10**9)
    file = make_run("a", steps=30) / "metrics.jsonl"
    first = open_library(file.parents[1])
    row, table = dict(first.rows()[0]), first.table(first.entry("runs/a"))
    first.close()
    data, times = file.read_bytes(), (file.stat().st_atime_ns, file.stat().st_mtime_ns)
    file.write_bytes(
        b"#" * (len(data) - curves.TAIL_BYTES) + data[-curves.TAIL_BYTES :]
    )  # what is read again is damaged
    os.utime(file, ns=times)
    second = open_library(file.parents[1])
    assert second.rows() == [row]
    assert second.table(second.entry("runs/a")).equals(table) == is_large
    file.write_bytes(data + b'{"step": 31, "reward/mean": 0.5}\n')
    assert second.current_entry("runs/a").row["step"] == 31
    file.write_bytes(data)
    assert second.current_entry("runs/a").row["step"] == 30


@pytest.mark.slow
def test_a_log_that_holds_fewer_runs_or_none_loses_its_rows(
    tmp_path: Path, open_library: Any
) -> None:
    file = tmp_path / "logs" / "a" / "log.json"
    file.parent.mkdir(parents=True)
    shutil.copy(NAMED, file)
    library = open_library(tmp_path / "logs")
    ids = sorted(row["id"] for row in library.rows())
    assert len(ids) == 2
    assert library.log_facts(library.entry(ids[1]))["report"]["steps"] == len(
        library.table(library.entry(ids[1]))
    )
    rows = [{"step": n, "reward": 0.1 * n, "loss": 0.5} for n in range(1, 12)]
    file.write_text(json.dumps(rows))
    library.refresh()
    assert [(row["id"], row["step"]) for row in library.rows()] == [(ids[0], 11)]
    file.write_text("nothing of the kind")
    library.refresh()
    version = library.progress.version
    library.refresh()
    assert (library.rows(), library.progress.version) == ([], version)


@pytest.mark.slow
def test_a_log_that_was_being_read_at_the_end_is_read_at_the_next_start(
    tmp_path: Path, open_library: Any, wait: Any
) -> None:
    folder = put(tmp_path / "logs" / "a" / "trainer_state.json", STATE).parents[1]
    library = Library([folder], tmp_path / "home").start()
    wait(
        lambda: any(
            b"dashboard.worker" in Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children()
        )
    )
    library.close()
    assert [(row["status"], row["step"]) for row in open_library(folder).rows()] == [("log", 9)]


def children() -> set[int]:
    """Processes that this one has started, in any thread."""
    return {
        int(pid)
        for file in Path("/proc/self/task").glob("*/children")
        for pid in file.read_text().split()
    }


@pytest.mark.slow
def test_the_worker_outlives_logs_that_break_it(tmp_path: Path) -> None:
    worker, before = ReaderProcess(), children()
    target = (str(tmp_path), "columns-0")
    try:
        with pytest.raises(RecordError, match=r"missing does not exist"):
            worker.call("read_log", "missing", *target)
        with pytest.raises(RecordError, match=r"could not be read: TypeError"):
            worker.call("read_log", str(LOG))
        assert worker.call("read_log", str(LOG), *target)[0]["trainer"] == "trl"
        (process,) = children() - before
        os.kill(process, signal.SIGKILL)  # before the next request, which another answers
        assert worker.call("read_log", str(LOG), *target)[0]["trainer"] == "trl"
        with pytest.raises(RecordError, match=r"took more than 0 seconds"):
            worker.call("read_log", str(LOG), *target, timeout_s=0.0)
        assert worker.call("read_log", str(LOG), *target)[0]["last_step"] == 100
    finally:
        worker.close()
    assert children() <= before


@pytest.mark.slow
def test_the_dashboard_loads_no_torch() -> None:
    code = "import sys, uptrend.dashboard.server, uptrend.dashboard.export; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "starlette" in loaded
    assert not loaded & {
        "torch",
        "transformers",
        "peft",
        "tokenizers",
        "plotly",
        "pandas",
        "statsmodels",
        "matplotlib",
    }


def test_a_run_that_ends_while_it_is_read_is_finished_not_killed(tmp_path: Path) -> None:
    path = write_run(tmp_path / "runs" / "one", steps=2, end=None)
    library = Library([tmp_path / "runs"], tmp_path / "home")
    with RunDirectory.reopen(path) as directory:
        directory.event("finished", step=2)
        library.refresh()
        assert [row["status"] for row in library.rows()] == ["running"]  # it still holds its lock
    library.refresh()
    assert [row["status"] for row in library.rows()] == ["finished"]
    library.close()


@pytest.mark.parametrize(
    "line",
    [
        b'{"reward/mean": 0.5}',
        b'{"step": 2.5, "reward/mean": 0.5}',
        b'{"step": "2", "reward/mean": 0.5}',
        b'{"step": 2, "reward/me\xffn": 0.5}',
        b'{"step": 2, "\\ud800": 0.5}',
        b'{"step": 99999999999999999999, "reward/mean": 0.5}',
        b'{"step": 2, "deep": ' + 300_000 * b"[" + 300_000 * b"]" + b"}",
    ],
    ids=lambda line: line[:30].decode("latin1"),
)
def test_a_bad_line_costs_the_dashboard_itself_alone(
    open_library: Callable[..., Library], tmp_path: Path, line: bytes
) -> None:
    path = write_run(tmp_path / "runs" / "damaged", steps=4)
    write_run(tmp_path / "runs" / "whole", steps=4)
    lines = (path / "metrics.jsonl").read_bytes().splitlines()
    (path / "metrics.jsonl").write_bytes(b"\n".join([lines[0], line, *lines[2:], b""]))
    library = open_library(tmp_path / "runs")
    assert {row["name"]: row["step"] for row in library.rows()} == {"damaged": 4, "whole": 4}
    entry = library.entry("runs/damaged")
    assert library.table(entry)["step"].to_pylist() == [1, 3, 4]
    assert show_run(library, "runs/damaged")["notes"] == [
        "1 line of metrics.jsonl could not be read and is left out."
    ]


def test_what_was_set_aside_is_no_source(
    open_library: Callable[..., Library], tmp_path: Path
) -> None:
    write_run(tmp_path / "runs" / "own")
    set_aside(write_run(tmp_path / "runs" / "other"))
    assert [row["name"] for row in open_library(tmp_path / "runs").rows()] == ["own"]
    assert [run["name"] for run in find_runs(tmp_path / "runs")[0]] == ["own"]


def test_a_refused_run_is_not_started_in_its_row_and_on_its_page(
    open_library: Callable[..., Library], tmp_path: Path
) -> None:
    write_refused_run(tmp_path / "runs" / "refused")
    write_run(tmp_path / "runs" / "other")
    library = open_library(tmp_path / "runs")
    assert library.entry("runs/refused").row["headline"] is None  # nobody has judged it
    library.diagnose(library.entry("runs/refused").source)
    row = library.entry("runs/refused").row
    assert (row["headline"], row["trend"]) == ("not started", "too-short")
    report = show_run(library, "runs/refused")["report"]
    assert report["headline"] == "not started"
    assert report["sentence"].startswith("Preflight did not let it begin.")
    for words in ('"not started"', "headline~started"):
        assert [found["name"] for found in choose(library.rows(), words)] == ["refused"]
