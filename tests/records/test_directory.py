"""A run directory has one writer, and reads at whatever moment the writer dies."""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from synthetic import info_of, rollout_of
from uptrend.records import RecordError, Run, RunDirectory, RunLocked, rollouts_table

TESTS = Path(__file__).parent.parent
MakeRun = Callable[..., Path]


@contextmanager
def writer(path: Path) -> Iterator[subprocess.Popen[str]]:
    """A living process that writes a run; killed at the end, if it is not dead by then."""
    command = [sys.executable, str(TESTS / "records" / "writer.py"), str(path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout
        try:
            assert process.stdout.readline() == "writing\n"
            yield process
        finally:
            process.kill()


def test_a_killed_run_reads_at_every_moment(tmp_path: Path) -> None:
    path, chance = tmp_path / "run", random.Random(0)
    seen = 0
    for attempt in range(6):
        with writer(path) as process:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(chance.uniform(0.05, 0.35))
            while attempt == 5 and not Run(path).metric_lines:  # a busy machine may need longer
                with pytest.raises(subprocess.TimeoutExpired):
                    process.wait(0.05)
            process.send_signal(signal.SIGKILL)
            process.wait()
        run = Run(path)
        assert run.status == "killed"
        steps = [line["step"] for line in run.metric_lines]
        assert steps == sorted(steps)
        assert all(len(line["padding"]) == 20_000 for line in run.metric_lines)
        for line in run.metric_lines:
            assert run.rollouts(line["step"]).num_rows == 200
        for line in run.eval_lines:
            assert run.eval_rollouts(line["step"]).num_rows == 2
        for file in path.rglob("*.parquet"):
            pq.read_table(file)
        assert len(steps) >= seen
        seen = len(steps)
    assert seen > 0


def test_what_a_killed_process_left_beside_is_removed_on_reopening(make_run: MakeRun) -> None:
    path = make_run("demo", steps=2)
    left = [
        path / ".run.json.123",
        path / "rollouts/000001/.part-0.parquet.123",
        path / "evals/.000000.parquet.9",
    ]
    for file in left:
        file.write_bytes(b"half")
    with RunDirectory.reopen(path):
        assert not any(file.exists() for file in left)
    assert Run(path).rollouts().num_rows == 2


def test_a_second_writer_is_refused_while_the_first_lives(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with writer(path) as process:
        assert Run(path).status == "running"
        with pytest.raises(RunLocked, match="is being written by another process"):
            RunDirectory.reopen(path)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert Run(path).status == "killed"
    with RunDirectory.reopen(path):
        assert Run(path).status == "running"


def test_readers_are_not_taken_for_the_writer(make_run: MakeRun) -> None:
    fcntl = pytest.importorskip("fcntl")
    path = make_run("demo", steps=1)
    with (path / ".lock").open("rb") as another_reader:
        fcntl.flock(another_reader, fcntl.LOCK_SH)
        assert Run(path).status == "finished"


def test_reading_leaves_no_lock_behind(make_run: MakeRun) -> None:
    path = make_run("demo", steps=1)
    (path / ".lock").unlink()
    assert Run(path).status == "finished"
    assert not (path / ".lock").exists()


def test_a_run_is_created_once(make_run: MakeRun) -> None:
    path = make_run("demo", steps=1)
    with pytest.raises(RecordError, match=r"already holds a run\. Choose another --name"):
        RunDirectory.create(path, info_of("demo"))
    assert Run(path).last_step == 1


def test_a_failed_creation_holds_no_lock(tmp_path: Path) -> None:
    with pytest.raises(TypeError) as caught:
        RunDirectory.create(tmp_path / "run", {"not json": object()})
    with RunDirectory.create(tmp_path / "run", info_of("run")):
        assert caught.tb  # as long as the error is kept, so is all that its frames hold


def test_a_path_that_is_a_file_is_a_plain_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match=r"file could not be written: File exists"):
        RunDirectory.create(tmp_path / "file", info_of("run"))


def test_there_is_nothing_to_reopen(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"holds no run \(no run\.json\)"):
        RunDirectory.reopen(tmp_path)


def test_rewind_forgets_later_steps_alone(make_run: MakeRun) -> None:
    path = make_run("demo", steps=10)
    before = (path / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (path / "checkpoints" / "step-000005").mkdir(parents=True)
    with RunDirectory.reopen(path) as directory:
        directory.rewind(5)
    run = Run(path)
    assert (path / "metrics.jsonl").read_bytes() == b"".join(before[:5])
    assert [line["step"] for line in run.eval_lines] == [0, 5]
    assert sorted(set(run.rollouts()["step"].to_pylist())) == [1, 2, 3, 4, 5]
    assert sorted(p.name for p in (path / "evals").iterdir()) == ["000000.parquet", "000005.parquet"]
    assert [p.name for p in run.checkpoints] == ["step-000005"]
    assert [event["event"] for event in run.events] == ["started", "finished"]


def test_several_processes_write_parts_of_one_step(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path / "run", info_of("run")) as directory:
        for part in range(2):
            table = rollouts_table("run", [rollout_of(1, f"g{part}", i) for i in range(2)])
            directory.rollouts(1, table, part)
    assert Run(tmp_path / "run").rollouts(1)["group"].to_pylist() == ["g0", "g0", "g1", "g1"]
