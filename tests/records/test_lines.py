"""Lines and whole files survive kills, torn writes and full disks."""

import json
import math
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from uptrend.records import RecordError
from uptrend.records.directory import append_line, read_lines, to_line, write_whole


def test_lines_come_back_in_order(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    lines = [{"step": i, "text": "a\nb – ü", "nested": {"k": [1, 2]}} for i in range(3)]
    for line in lines:
        append_line(path, line)
    assert list(read_lines(path)) == lines


def test_a_missing_file_has_no_lines(tmp_path: Path) -> None:
    assert list(read_lines(tmp_path / "none.jsonl")) == []


@pytest.mark.parametrize("cut", [1, 5, 9])
def test_a_torn_line_is_left_out_and_swallows_nothing(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "m.jsonl"
    append_line(path, {"step": 1})
    path.write_bytes(path.read_bytes() + to_line({"step": 2})[:cut])
    assert [line["step"] for line in read_lines(path)] == [1]
    append_line(path, {"step": 3})
    assert [line["step"] for line in read_lines(path)] == [1, 3]


def test_a_line_torn_at_its_very_end_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes(to_line({"step": 1})[:-1])
    append_line(path, {"step": 2})
    assert [line["step"] for line in read_lines(path)] == [1, 2]


def test_what_is_not_finite_becomes_null(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    append_line(path, {"a": math.nan, "b": [math.inf, 1.0], "c": {"d": -math.inf}, "e": np.float32("nan")})
    assert path.read_text() == '{"a":null,"b":[null,1.0],"c":{"d":null},"e":null}\n'


def test_numpy_numbers_are_numbers(tmp_path: Path) -> None:
    append_line(tmp_path / "m.jsonl", {"a": np.float32(0.5), "b": np.int64(3), "c": np.bool_(True)})
    assert list(read_lines(tmp_path / "m.jsonl")) == [{"a": 0.5, "b": 3, "c": True}]


@given(st.dictionaries(st.text(), st.floats() | st.integers() | st.text() | st.none()))
def test_every_object_is_one_line_of_json(value: dict[str, object]) -> None:
    line = to_line(value)
    assert line.count(b"\n") == 1
    assert list(json.loads(line)) == list(value)


def test_a_whole_file_replaces_the_old_one_and_leaves_nothing_beside(tmp_path: Path) -> None:
    write_whole(tmp_path / "run.json", b"old")
    write_whole(tmp_path / "run.json", b"new")
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("run.json", b"new")]


def test_nobody_sees_half_of_a_whole_file(tmp_path: Path) -> None:
    script = """
        import itertools, sys
        from pathlib import Path
        from uptrend.records.directory import write_whole
        for i in itertools.count():
            write_whole(Path(sys.argv[1]), bytes([i % 256]) * 2_000_000)
            print(i, flush=True)
    """
    path = tmp_path / "part-0.parquet"
    command = [sys.executable, "-c", textwrap.dedent(script), str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout
            process.stdout.readline()
            contents = [path.read_bytes() for _ in range(200)]
        finally:
            process.kill()
    assert {len(content) for content in contents} == {2_000_000}
    assert all(content == content[:1] * 2_000_000 for content in contents)
    assert len({content[0] for content in contents}) > 1


def test_a_folder_that_cannot_be_written_is_a_plain_sentence(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"no/run\.json could not be written: No such file"):
        write_whole(tmp_path / "no" / "run.json", b"")


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 64 KiB, where we may mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    if sys.platform != "linux" or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting needs root")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_is_a_plain_sentence_and_leaves_nothing_half(tiny_disk: Path) -> None:
    write_whole(tiny_disk / "run.json", b"{}")
    append_line(tiny_disk / "m.jsonl", {"step": 1})
    with pytest.raises(RecordError, match=r"part-0\.parquet could not be written: the disk is full\."):
        write_whole(tiny_disk / "part-0.parquet", os.urandom(100_000))
    assert sorted(p.name for p in tiny_disk.iterdir()) == ["m.jsonl", "run.json"]
    with pytest.raises(RecordError, match=r"m\.jsonl could not be written: the disk is full\."):
        append_line(tiny_disk / "m.jsonl", {"step": 2, "text": "x" * 100_000})
    assert (tiny_disk / "m.jsonl").read_bytes() == to_line({"step": 1})
    append_line(tiny_disk / "m.jsonl", {"step": 3})
    assert [line["step"] for line in read_lines(tiny_disk / "m.jsonl")] == [1, 3]


def test_a_file_that_may_not_grow_is_a_plain_sentence_and_leaves_nothing_half(tmp_path: Path) -> None:
    script = """
        import resource, sys
        from pathlib import Path
        from uptrend.records import RecordError
        from uptrend.records.directory import append_line, write_whole
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        folder = Path(sys.argv[1])
        append_line(folder / "m.jsonl", {"step": 1})
        for write in (lambda: write_whole(folder / "big", bytes(5000)),
                      lambda: append_line(folder / "m.jsonl", {"text": "x" * 5000})):
            try:
                write()
            except RecordError as error:
                print(error)
        append_line(folder / "m.jsonl", {"step": 2})
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(told) == 2
    assert all(line.endswith("could not be written: it would be larger than a file may be here.") for line in told)
    assert [p.name for p in tmp_path.iterdir()] == ["m.jsonl"]
    assert (tmp_path / "m.jsonl").read_bytes() == to_line({"step": 1}) + to_line({"step": 2})
