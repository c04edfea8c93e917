"""Files of a few megabytes that hold gigabytes, as `uptrend doctor` and `uptrend serve` meet them:
each as a process.

The peak is that of the largest process that a command needed, and none may take all of the
machine's memory.
"""

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from synthetic import write_run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        sys.platform != "linux", reason="peaks are counted in another unit, or not at all"
    ),
]

# Bytes of memory that a command may need, and those at which the system ends it: a test must not
# take the machine.
ALLOWED, ENDED = 1_500_000_000, 8 << 30
# Starts a command, prints its process, and in the end its exit code and its peak in KiB. A process
# just started counts what its parent held, and this one holds little.
LAUNCHER = f"""
import os, resource, subprocess, sys
resource.setrlimit(resource.RLIMIT_AS, ({ENDED}, {ENDED}))
process = subprocess.Popen(sys.argv[1:])
print(process.pid, flush=True)
_, status, usage = os.wait4(process.pid, 0)
print("\\nlauncher", os.waitstatus_to_exitcode(status), usage.ru_maxrss, flush=True)
"""
MEMBER = 64 << 20  # bytes of an archive's member; many of them follow each other


def launch(home: Path, *words: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", LAUNCHER, sys.executable, "-m", "uptrend", *map(str, words)]
    environment = os.environ | {
        "UPTREND_HOME": str(home),
        "COLUMNS": "300",
        "PYTHONUNBUFFERED": "1",
    }
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, env=environment, cwd=home.parent
    )


def ended(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    """Wait for a command; return exit code, stdout and stderr, having compared its peak."""
    out, err = process.communicate(timeout=600)
    out, _, last = out.rpartition("launcher ")
    code, peak = map(int, last.split())
    assert peak * 1024 < ALLOWED, f"{peak / 1024:.0f} MiB; {err[-500:]}"
    return code, out, err


def zipped(path: Path, unit: bytes, members: int, head: bytes = b"", tail: bytes = b"") -> Path:
    """Write a gzip file of `members` times 64 MiB."""
    member = gzip.compress(unit * (MEMBER // len(unit)), 9)
    path.write_bytes(gzip.compress(head) + member * members + gzip.compress(tail))
    return path


def nulls(path: Path, rows: int, *columns: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table(
        {name: pa.nulls(rows, pa.string()) for name in columns}
        | {"step": pa.nulls(rows, pa.int64())}
    )
    pq.write_table(table, path, compression="zstd")
    return path


def own_columns(path: Path) -> Path:
    """Write rows that have a column each: a table of them has 400 million cells."""
    path.write_text("".join(json.dumps({"step": n, f"m{n}": 0.5}) + "\n" for n in range(20_000)))
    return path


def sparse(path: Path) -> Path:
    """Write a file of 30 GB that takes no place on disk."""
    path.write_text('{"step": 1, "reward": 0.5}\n')
    os.truncate(path, 30_000_000_000)
    return path


def long_text(path: Path) -> Path:
    """Write a text of 8 MB that 2,000 rows share."""
    kinds = {name: pa.DictionaryArray.from_arrays(pa.array(np.zeros(2000, np.int32)), ["x" * 8_000_000])
             for name in ("prompt", "completion")}  # fmt: skip
    pq.write_table(
        pa.table({"step": pa.array([1] * 2000), **kinds}),
        path,
        compression="zstd",
        store_schema=False,
    )
    return path


HOSTILE: dict[str, Callable[[Path], Path]] = {
    "spaces in JSON": lambda folder: zipped(folder / "a.json.gz", b" ", 18, b"[", b"]"),
    "rows of JSON": lambda folder: zipped(
        folder / "a.jsonl.gz", b'{"step": 1, "reward": 0.5, "loss": 0.1}\n', 18
    ),
    "a console": lambda folder: zipped(folder / "a.log.gz", b"step 1, reward: 0.5, kl: 0.1\n", 18),
    "a table": lambda folder: zipped(folder / "a.csv.gz", b"1,0.5,0.1\n", 18, b"step,reward,kl\n"),
    "values in JSON": lambda folder: zipped(folder / "a.json.gz", b"[],", 1, b"[", b"[]]"),
    "one line": lambda folder: zipped(folder / "a.jsonl.gz", b'"a":0.5,', 3, b"{", b'"b":1}'),
    "rows of Parquet": lambda folder: nulls(
        folder / "completions_00001.parquet", 5_000_000, "prompt", "completion"
    ),
    "texts of Parquet": lambda folder: long_text(folder / "completions_00001.parquet"),
    "columns": lambda folder: own_columns(folder / "a.jsonl"),
    "a sparse file": lambda folder: sparse(folder / "a.jsonl"),
}


@pytest.mark.parametrize("make", HOSTILE.values(), ids=HOSTILE.keys())
def test_the_doctor_refuses_what_would_take_all_memory(
    make: Callable[[Path], Path], tmp_path: Path
) -> None:
    file = make(tmp_path)
    assert file.stat().st_blocks * 512 < 10_000_000
    code, out, err = ended(launch(tmp_path / "home", "doctor", file))
    assert code == 2, err
    lines = err.strip().splitlines()
    assert len(lines) == 1, err
    # A table is opened by its columns, before any row is read: these are no rollouts.
    reason = "a table without columns of" if file.suffix == ".parquet" else "too large: "
    assert lines[0].startswith(f"error: {file} is {reason}"), err
    assert out.strip().isdecimal(), "nothing but the launcher's line"


@pytest.mark.parametrize(("rows", "characters"), [(5_000_000, 1), (2000, 8_000_000)])
def test_saved_rollouts_are_read_as_far_as_memory_goes(
    rows: int, characters: int, tmp_path: Path
) -> None:
    """Tables with all columns of rollouts, so that rows are read: many, or long texts."""
    file = tmp_path / "completions_00001.parquet"
    text = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), ["x" * characters])
    table = pa.table(
        {
            "step": np.ones(rows, np.int64),
            "prompt": text,
            "completion": text,
            "reward": np.zeros(rows),
        }
    )
    pq.write_table(table, file, compression="zstd", store_schema=False)
    assert file.stat().st_size < 1_000_000
    code, out, err = ended(launch(tmp_path / "home", "doctor", file))
    assert code == 0, err
    assert re.search(r"Step 1 has more than .* rollouts: the first [\d,]+ were read", out)


def test_a_large_log_is_read_in_little_memory(tmp_path: Path) -> None:
    rows, file = 700_000, tmp_path / "train.jsonl"
    with file.open("w") as log:
        for step in range(1, rows + 1):
            reward, kl = step / rows, 0.01 + (step % 7) / 1000
            log.write(
                f'{{"step": {step}, "loss": 0.01, "reward": {reward}, "kl": {kl}, "entropy": 0.5, "lr": 1e-6}}\n'
            )
    code, out, err = ended(launch(tmp_path / "home", "doctor", file, "--format", "json"))
    assert code == 0, err
    (report,) = [json.loads(out.partition("\n")[2])]
    report = report["runs"][0] if "runs" in report else report
    assert report["trend"] == "learning"
    assert 5_000 <= report["steps"] <= 10_000
    assert any("700,000 rows of one kind" in note for note in report["notes"])


def test_rollouts_that_are_too_large_cost_the_doctor_their_step_alone(tmp_path: Path) -> None:
    run = write_run(tmp_path / "runs" / "one", steps=6)
    nulls(run / "rollouts" / "000003" / "part-0.parquet", 5_000_000, "group", "task")
    code, out, err = ended(launch(tmp_path / "home", "doctor", run))
    assert code == 0, err
    assert "The rollouts of step 3 are too large to be read and were left out." in " ".join(
        out.split()
    )


@contextmanager
def serving(home: Path, *paths: Path) -> Iterator[Callable[..., httpx.Response]]:
    """Serve folders by a process of its own; its peak, and its readers', is compared when it
    ends.
    """
    process = launch(home, "serve", "--port", "0", "--no-token", *paths)
    assert process.stdout is not None
    try:
        pid = int(process.stdout.readline())
        try:
            url = process.stdout.readline().split()[-1]
            client = httpx.Client(base_url=url, timeout=300)

            def ask(path: str, **query: Any) -> httpx.Response:
                return client.get(f"api/{path}", params=query)

            until = time.monotonic() + 300
            while ask("status").json()["indexing"]:
                assert time.monotonic() < until
                time.sleep(0.2)
            yield ask
        finally:
            os.kill(pid, signal.SIGINT)
        ended(process)
    finally:
        process.kill()
        process.communicate()


def test_the_dashboard_says_what_is_too_large_and_shows_the_rest(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    write_run(runs / "whole", steps=6)
    rollouts = write_run(runs / "rollouts", steps=6)
    for file in (
        "rollouts/000003/part-0.parquet",
        "rollouts/000006/part-0.parquet",
        "evals/000006.parquet",
    ):
        nulls(rollouts / file, 5_000_000, "group", "task")
    sparse(write_run(runs / "lines", steps=6) / "metrics.jsonl")
    own_columns(write_run(runs / "columns", steps=6) / "metrics.jsonl")
    archive = zipped(tmp_path / "a.jsonl.gz", b'{"step": 1, "reward": 0.5}\n', 18)
    with serving(tmp_path / "home", runs, archive) as ask:
        rows = {
            row["name"].partition("/")[2] or row["name"]: row for row in ask("runs").json()["rows"]
        }
        assert {name: row["status"] for name, row in rows.items()} == {
            "whole": "finished", "rollouts": "finished",
            "lines": "unreadable", "columns": "unreadable", "a.jsonl.gz": "unreadable",
        }  # fmt: skip
        for name in ("lines", "columns", "a.jsonl.gz"):
            assert "is too large: " in rows[name]["error"]
        # Its curves are there, and so are the rollouts of other steps.
        id = rows["rollouts"]["id"]
        assert ask("run", run=id).json()["row"]["step"] == 6
        assert len(ask("curves", run=id, keys="reward/mean").json()["step"]) == 6
        assert ask("rollouts", run=id, step=2).json()["total"] == 1
        assert ask("rollouts", run=id, text="the", heldout="false").status_code == 200
        assert ask("rollouts", run=id, heldout="true", step=6).json()["total"] == 0
        refused = ask("rollout", run=id, step=3, group="g", index=0)
        assert (refused.status_code, "5,000,000 rows" in refused.json()["error"]) == (404, True)
        compared = ask("compare", runs=f"{id},{rows['whole']['id']}").json()
        assert compared["paired"][0]["tasks"] == 0
        # The other run misses nothing.
        id = rows["whole"]["id"]
        assert ask("rollouts", run=id, step=6).json()["total"] == 1
        assert ask("run", run=id).json()["bounds"] is not None
        # The doctor judges both.
        for name in ("whole", "rollouts"):
            until = time.monotonic() + 300
            while ask("run", run=rows[name]["id"]).json()["report"] is None:
                assert time.monotonic() < until
                time.sleep(0.2)
        notes = ask("run", run=rows["rollouts"]["id"]).json()["report"]["notes"]
        assert any("too large to be read" in note for note in notes)
