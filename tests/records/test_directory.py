"""A run directory has one writer, and reads at whatever moment it is killed, its line torn or its
disk full.
"""

import itertools
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from synthetic import evaluation_of, info_of, line_of, metrics_of, rollout_of
from uptrend.records import RecordError, Run, RunDirectory, RunLocked, rollouts_table
from uptrend.records.directory import PartDirectory
from uptrend.records.files import write_atomically
from uptrend.records.lines import append_line, read_lines, to_line

MakeRun = Callable[..., Path]


def write_forever(path: Path) -> None:
    """Create or continue a run; one line on stdout once the lock is held."""
    exists = (path / "run.json").exists()
    with (
        RunDirectory.reopen(path)
        if exists
        else RunDirectory.create(path, info_of(path.name)) as directory
    ):
        metrics = path / "metrics.jsonl"
        first = 1 + metrics.read_bytes().count(b"\n") if metrics.exists() else 1
        directory.event("resumed" if exists else "started", step=first - 1)
        print("writing", flush=True)
        for step in itertools.count(first):
            rollouts = [rollout_of(step, f"g{i}") for i in range(200)]
            line = {**metrics_of(step, 100, random.Random(step)), "padding": "x" * 20_000}
            directory.step(line, rollouts_table(path.name, rollouts))
            directory.evaluation(
                line_of(evaluation_of(step, 1, 2)), rollouts_table(path.name, rollouts[:2])
            )


@contextmanager
def writer(path: Path) -> Iterator[subprocess.Popen[str]]:
    """A living process that writes a run; killed at the end, if it is not dead by then."""
    inherited = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(inherited)}
    command = [sys.executable, __file__, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout
        try:
            assert process.stdout.readline() == "writing\n"
            yield process
        finally:
            process.kill()


def test_a_killed_run_reads_at_every_moment(tmp_path: Path) -> None:
    path, chance, seen = tmp_path / "run", random.Random(0), 0
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
        assert all(run.rollouts(step).num_rows == 200 for step in steps)
        assert all(run.eval_rollouts(line["step"]).num_rows == 2 for line in run.eval_lines)
        for file in path.rglob("*.parquet"):
            pq.read_table(file)
        assert len(steps) >= seen
        seen = len(steps)
    assert seen > 0


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


def test_readers_are_not_taken_for_the_writer_and_leave_no_lock(make_run: MakeRun) -> None:
    fcntl = pytest.importorskip("fcntl")
    path = make_run("demo", steps=1)
    with (path / ".lock").open("rb") as another_reader:
        fcntl.flock(another_reader, fcntl.LOCK_SH)
        assert Run(path).status == "finished"
    (path / ".lock").unlink()
    assert Run(path).status == "finished"
    assert not (path / ".lock").exists()


def test_a_run_is_created_once_and_there_is_one_to_reopen(
    make_run: MakeRun, tmp_path: Path
) -> None:
    path = make_run("demo", steps=1)
    with pytest.raises(RecordError, match=r"already holds a run\. Choose another --name"):
        RunDirectory.create(path, info_of("demo"))
    assert Run(path).last_step == 1
    with pytest.raises(RecordError, match=r"holds no run \(no run\.json\)"):
        RunDirectory.reopen(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match=r"file could not be written: File exists"):
        RunDirectory.create(tmp_path / "file", info_of("run"))


def test_a_failed_creation_holds_no_lock(tmp_path: Path) -> None:
    with pytest.raises(TypeError) as caught:
        RunDirectory.create(tmp_path / "run", {"not json": object()})
    with RunDirectory.create(tmp_path / "run", info_of("run")):
        assert caught.tb  # as long as the error is kept, so is all that its frames hold


def test_rewind_forgets_later_steps_alone(make_run: MakeRun) -> None:
    path = make_run("demo", steps=10)
    before = (path / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (path / "checkpoints" / "step-000005").mkdir(parents=True)
    later = {
        name: (path / "rollouts" / name / "part-0.parquet").read_bytes()
        for name in ("000006", "000010")
    }
    with RunDirectory.reopen(path) as directory:
        assert directory.rewind(5) == path / "set-aside" / "1"
        assert directory.rewind(5) is None
    run = Run(path)
    assert (path / "metrics.jsonl").read_bytes() == b"".join(before[:5])
    assert (path / "set-aside" / "1" / "metrics.jsonl").read_bytes() == b"".join(before[5:])
    for name, content in later.items():
        assert (
            path / "set-aside" / "1" / "rollouts" / name / "part-0.parquet"
        ).read_bytes() == content
    assert [line["step"] for line in read_lines(path / "set-aside" / "1" / "evals.jsonl")] == [10]
    assert [line["step"] for line in run.eval_lines] == [0, 5]
    assert sorted(set(run.rollouts()["step"].to_pylist())) == [1, 2, 3, 4, 5]
    assert sorted(p.name for p in (path / "evals").iterdir()) == [
        "000000.parquet",
        "000005.parquet",
    ]
    assert [p.name for p in run.checkpoints] == ["step-000005"]
    assert [event["event"] for event in run.events] == ["started", "finished", "set-aside"]


# What a disk or an editor does to a line; each is longer than the line of a step that it stands
# for.
DAMAGED = {
    "a flipped bit": lambda line: line.replace(b'"step"', b'"rtep"'),
    "no JSON": lambda line: line.replace(b":", b";", 1),
    "no UTF-8": lambda line: line.replace(b"reward/mean", b"reward/me\xffn"),
    "zeros": lambda line: bytes(len(line) - 1) + b"\n",
    "a step that is none": lambda line: line.replace(b'"step":3', b'"step":"3"').replace(
        b'"step":5', b'"step":5.5'
    ),
    "another step": lambda line: line.replace(b'"step":3', b'"step":73').replace(
        b'"step":5', b'"step":85'
    ),
}


# A later step in the checkpoint's own line, the fifth, reads like one that is taken back.
@pytest.mark.parametrize(
    ("damage", "damaged"),
    [(name, n) for name in DAMAGED for n in (3, 5) if (name, n) != ("another step", 5)],
)
def test_a_damaged_line_takes_nothing_with_it(make_run: MakeRun, damage: str, damaged: int) -> None:
    path = make_run("demo", steps=10)
    lines = (path / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    lines[damaged - 1] = DAMAGED[damage](lines[damaged - 1])
    (path / "metrics.jsonl").write_bytes(b"".join(lines))
    files = {file.relative_to(path): file.read_bytes() for file in path.rglob("*.parquet")}
    with RunDirectory.reopen(path) as directory:
        directory.check_lines(5)
        directory.rewind(5)
    assert (path / "metrics.jsonl").read_bytes() == b"".join(lines[:5])
    assert (path / "set-aside" / "1" / "metrics.jsonl").read_bytes() == b"".join(lines[5:])
    for name, content in files.items():
        is_later = int(name.parts[1][:6]) > 5
        assert (path / ("set-aside/1" if is_later else "") / name).read_bytes() == content


def test_a_torn_end_belongs_to_what_came_last(make_run: MakeRun) -> None:
    path = make_run("demo", steps=3)
    whole = (path / "metrics.jsonl").read_bytes()
    (path / "metrics.jsonl").write_bytes(whole + b'{"step": 4, "rew')
    with RunDirectory.reopen(path) as directory:
        directory.rewind(3)
        directory.step(metrics_of(4, 10, random.Random(4)), rollouts_table("demo", [rollout_of(4)]))
    assert [line["step"] for line in Run(path).metric_lines] == [1, 2, 3, 4]
    assert Run(path).notes == []
    assert (path / "set-aside" / "1" / "metrics.jsonl").read_bytes() == b'{"step": 4, "rew'


@pytest.mark.parametrize("name", ["metrics.jsonl", "evals.jsonl"])
@pytest.mark.parametrize("left", [b"", None], ids=["emptied", "removed"])
def test_lines_that_are_gone_are_missed_before_anything_moves(
    make_run: MakeRun, name: str, left: bytes | None
) -> None:
    path = make_run("demo", steps=10)
    (path / name).unlink() if left is None else (path / name).write_bytes(left)
    before = sorted(path.rglob("*"))
    with RunDirectory.reopen(path) as directory:
        with pytest.raises(
            RecordError, match=rf"{name} has lost lines: .* Put the lines back from a copy"
        ):
            directory.check_lines(5)
        assert sorted(path.rglob("*")) == before
        folder = {"metrics.jsonl": "rollouts", "evals.jsonl": "evals"}[name]
        (path / folder).rename(path.parent / "elsewhere")  # the way on that the message tells
        directory.check_lines(5)


def test_a_users_own_files_are_no_steps_and_stay(make_run: MakeRun) -> None:
    path = make_run("demo", steps=10)
    own = [
        path / "rollouts" / name for name in ("000007-good", "7", "000007.bak", "1abc", "notes.txt")
    ]
    for place in own:
        shutil.copytree(path / "rollouts" / "000007", place)
    with RunDirectory.reopen(path) as directory:
        directory.rewind(5)
    assert Run(path).rollout_steps == [1, 2, 3, 4, 5]
    assert all((place / "part-0.parquet").exists() for place in own)


@pytest.mark.parametrize("moved", ["renamed", "removed", "replaced"])
def test_a_folder_that_is_moved_while_it_is_written_is_not_made_anew(
    make_run: MakeRun, moved: str
) -> None:
    path = make_run("demo", steps=2)
    table = rollouts_table("demo", [rollout_of(3)])
    with RunDirectory.reopen(path) as directory:
        path.rename(path.with_name("elsewhere"))
        if moved == "replaced":
            path.mkdir()
        if moved == "removed":
            shutil.rmtree(path.with_name("elsewhere"))
        for write in (
            lambda: directory.step({"step": 3}, table),
            lambda: directory.evaluation({"step": 3}, table),
            lambda: directory.event("finished", step=3),
            lambda: directory.log("hello"),
            lambda: directory.write_info({}),
            lambda: directory.rewind(1),
            directory.sync,
        ):
            with pytest.raises(
                RecordError, match=r"demo was renamed, moved or removed .*--resume FOLDER"
            ):
                write()
    assert list(path.glob("*")) == []
    assert path.exists() == (moved == "replaced")
    if moved == "renamed":
        assert Run(path.with_name("elsewhere")).last_step == 2


def test_what_is_left_of_a_run_is_not_written_over(make_run: MakeRun) -> None:
    path = make_run("demo", steps=2)
    (path / "run.json").unlink()
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    with pytest.raises(RecordError, match=r"demo holds rollouts, and no run\.json: "):
        RunDirectory.create(path, info_of("demo"))
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before


def test_a_machine_that_does_not_see_the_runs_folder_makes_its_own(tmp_path: Path) -> None:
    table = rollouts_table("demo", [rollout_of(1, "a", 0, True, "t")])
    PartDirectory(tmp_path / "elsewhere" / "demo").rollouts(1, table, part=1)
    assert (tmp_path / "elsewhere" / "demo" / "rollouts" / "000001" / "part-1.parquet").exists()


@pytest.mark.skipif(
    not os.access("/dev/shm", os.W_OK) or os.stat("/dev/shm").st_dev == os.stat("/tmp").st_dev,
    reason="needs two disks",
)
def test_what_lies_on_another_disk_is_set_aside_too(make_run: MakeRun) -> None:
    path = make_run("demo", steps=4)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as other:
        (Path(other) / "best").mkdir()
        (Path(other) / "best" / "state.json").write_text("mine")
        (path / "checkpoints").symlink_to(other)
        with RunDirectory.reopen(path) as directory:
            place = directory.rewind(2, [path / "checkpoints" / "best"])
        assert place is not None
        assert (place / "checkpoints" / "best" / "state.json").read_text() == "mine"
        assert not (Path(other) / "best").exists()
    assert Run(path).last_step == 2


def test_large_integers_are_numbers_of_a_column(make_run: MakeRun) -> None:
    path = make_run("demo", steps=3)
    append_line(path / "metrics.jsonl", {"step": 4, "reward/mean": 123456789012345678})
    append_line(
        path / "metrics.jsonl", {"step": 10**17, "reward/mean": 0.5}
    )  # no step that anybody makes
    run = Run(path)
    assert run.metrics["reward/mean"].to_pylist()[-1] == pytest.approx(1.2345678901234568e17)
    assert (run.last_step, type(run.metric_lines[-1]["step"])) == (4, int)
    assert run.notes == ["1 line of metrics.jsonl could not be read and is left out."]


def test_several_processes_write_parts_of_one_step(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path / "run", info_of("run")) as directory:
        parts = [
            rollouts_table("run", [rollout_of(1, f"g{part}", i) for i in range(2)])
            for part in range(2)
        ]
        directory.step({"step": 1}, *parts)
    assert Run(tmp_path / "run").rollouts(1)["group"].to_pylist() == ["g0", "g0", "g1", "g1"]


@pytest.mark.parametrize("cut", [0, 1, 5, 9, 10])
def test_a_torn_line_is_left_out_and_swallows_nothing(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "m.jsonl"
    assert list(read_lines(path)) == []
    append_line(path, {"step": 1, "text": "a\nb – ü", "nested": {"k": [1, 2]}})
    path.write_bytes(path.read_bytes() + to_line({"step": 2})[:cut])
    whole = [2] if cut == 10 else []  # only its line break is missing
    assert [line["step"] for line in read_lines(path)] == [1, *whole]
    append_line(path, {"step": 3})
    assert [line["step"] for line in read_lines(path)] == [1, *whole, 3]


@given(st.dictionaries(st.text(), st.floats() | st.integers() | st.text() | st.none()))
def test_every_object_is_one_line_of_json(value: dict[str, object]) -> None:
    line = to_line(value)
    assert line.count(b"\n") == 1
    assert list(json.loads(line)) == list(value)


def test_numbers_of_numpy_are_numbers_and_those_not_finite_null() -> None:
    value = {
        "a": math.nan,
        "b": [math.inf, 1.0],
        "c": {"d": -math.inf},
        "e": np.float32("nan"),
        "f": np.int64(3),
    }
    assert to_line(value) == b'{"a":null,"b":[null,1.0],"c":{"d":null},"e":null,"f":3}\n'


def test_nobody_sees_half_of_a_whole_file(tmp_path: Path) -> None:
    path, seen = tmp_path / "part-0.parquet", list[bytes]()
    write_atomically(path, bytes(2_000_000))

    def write() -> None:
        for i in itertools.count():
            write_atomically(path, bytes([i % 256]) * 2_000_000)
            if len(seen) == 200:
                return

    thread = threading.Thread(target=write)
    thread.start()
    while len(seen) < 200:
        seen.append(path.read_bytes())
    thread.join()
    assert all(content == content[:1] * 2_000_000 for content in seen)
    assert len({content[0] for content in seen}) > 1


def test_a_file_that_may_not_grow_is_a_plain_sentence_and_leaves_nothing_half(
    tmp_path: Path,
) -> None:
    resource = pytest.importorskip("resource")
    path, limits = tmp_path / "m.jsonl", resource.getrlimit(resource.RLIMIT_FSIZE)
    append_line(path, {"step": 1})
    writes = [
        lambda: write_atomically(tmp_path / "big", bytes(5000)),
        lambda: append_line(path, {"text": "x" * 5000}),
    ]
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        for write in writes:
            with pytest.raises(
                RecordError,
                match="could not be written: it would be larger than a file may be here",
            ):
                write()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    append_line(path, {"step": 2})
    assert [p.name for p in tmp_path.iterdir()] == ["m.jsonl"]
    assert path.read_bytes() == to_line({"step": 1}) + to_line({"step": 2})
    with pytest.raises(RecordError, match=r"no/run\.json could not be written: No such file"):
        write_atomically(tmp_path / "no" / "run.json", b"")


if __name__ == "__main__":
    write_forever(Path(sys.argv[1]))
