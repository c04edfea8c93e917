"""Writing a run directory: one process at a time, readable whenever it is killed.

Whole files are written beside their place and renamed; lines are flushed. Neither a kill nor a full disk leaves half.
A step counts as recorded with its line, which is written after its rollouts; so does an evaluation.
"""

import contextlib
import errno
import io
import json
import math
import os
import shutil
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, Literal, Self

import filelock
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from uptrend.records.errors import RecordError, RunLocked

LINES = {"rollouts": "metrics.jsonl", "evals": "evals.jsonl"}  # folders of rollouts, and the lines that they go with
LOG = "logs/train.log"
STARTS = ("started", "resumed")
ENDS = ("finished", "stopped", "failed")
StoppedBy = Literal["user", "doctor", "preflight", "observer"]


class RunDirectory:
    """Writer of a run directory; use it as a context manager."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # A reader that asks whether the lock is held holds it for a moment itself: wait that long.
        self._lock = filelock.FileLock(path / ".lock", timeout=1, thread_local=False)

    @classmethod
    def create(cls, path: Path, info: dict[str, Any]) -> Self:
        """Make a new run directory; refused where one is already."""
        if (path / "run.json").exists():
            raise RecordError(f"{path} already holds a run. Choose another --name, or continue it with --resume.")
        with plain_disk_errors(path):
            path.mkdir(parents=True, exist_ok=True)
        directory = cls(path)
        directory.lock()
        try:
            if (path / "run.json").exists():
                raise RunLocked(f"{path} was just started by another process. Choose another --name.")
            directory.write_info(info)
        except BaseException:
            directory.unlock()
            raise
        return directory

    @classmethod
    def reopen(cls, path: Path) -> Self:
        """Open an existing run directory to go on writing."""
        if not (path / "run.json").exists():
            raise RecordError(f"{path} holds no run (no run.json).")
        directory = cls(path)
        directory.lock()
        for left in (*path.glob(".*.*"), *path.glob("rollouts/*/.*"), *path.glob("evals/.*")):
            if left.suffix[1:].isdigit() and left.is_file():  # a killed process left it half-written
                left.unlink()
        for folder, name in LINES.items():  # or without the line that counts
            steps = {line["step"] for line in read_lines(path / name)}
            directory._remove(folder, lambda step, steps=steps: step not in steps)  # type: ignore[misc]
        return directory

    def lock(self) -> None:
        """Take the lock, or raise RunLocked."""
        with plain_disk_errors(self.path / ".lock"):
            try:
                self._lock.acquire()
            except filelock.Timeout:
                message = f"{self.path} is being written by another process. Wait for it, or choose another --name."
                raise RunLocked(message) from None

    def unlock(self) -> None:
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.unlock()

    def write_info(self, info: dict[str, Any]) -> None:
        write_whole(self.path / "run.json", json.dumps(info, indent=2, ensure_ascii=False).encode())

    def event(self, kind: str, **values: Any) -> None:
        """Append to events.jsonl; kinds and fields are those of events.toml, which readers trust."""
        known = event_fields()
        assert kind in known, f"{kind} is no kind of event: add it to events.toml"
        unknown = [field for field in values if field not in known[kind]]
        assert not unknown, f"the event {kind} has no field {', '.join(unknown)}: add it to events.toml"
        append_line(self.path / "events.jsonl", {"event": kind, "time": time.time(), **values})

    def log(self, text: str, at: float | None = None) -> None:
        """Append a line for a person to logs/train.log, out of this process when this returns; `at` is its time."""
        path = self.path / LOG
        moment = datetime.fromtimestamp(at or time.time()).astimezone().isoformat(sep=" ", timespec="seconds")
        with plain_disk_errors(path):
            path.parent.mkdir(exist_ok=True)
            with path.open("a", encoding="utf-8") as file:
                file.write(f"{moment} {' '.join(text.split())}\n")

    def step(self, line: dict[str, Any], *tables: pa.Table) -> None:
        """Write a step: its rollouts, in parts, then its line, with which it counts as recorded."""
        with self._all_or_nothing("rollouts", line["step"]):
            for part, table in enumerate(tables):
                self.rollouts(line["step"], table, part)
            append_line(self.path / "metrics.jsonl", line)

    def evaluation(self, line: dict[str, Any], table: pa.Table, sets: Mapping[str, pa.Table] | None = None) -> None:
        """Write an evaluation: its rollouts, those on further sets by label, then the line with which it counts."""
        with self._all_or_nothing("evals", line["step"]):
            for label, one in {"": table, **(sets or {})}.items():
                _write_parquet(eval_path(self.path, line["step"], label), one)
            append_line(self.path / "evals.jsonl", line)

    def rollouts(self, step: int, table: pa.Table, part: int = 0) -> None:
        """Write a part of a step's rollouts apart from its line; without a line nobody reads them."""
        _write_parquet(self.path / "rollouts" / f"{step:06d}" / f"part-{part}.parquet", table)

    @contextlib.contextmanager
    def _all_or_nothing(self, folder: str, step: int) -> Iterator[None]:
        """Take the rollouts back where they or the line could not be written."""
        try:
            yield
        except Exception:  # not KeyboardInterrupt: the line may be written by then, and may not be without rollouts
            with contextlib.suppress(OSError):
                self._remove(folder, lambda other: other == step)
            raise

    def _remove(self, folder: str, chosen: Callable[[int], bool]) -> None:
        """Remove the rollouts of some steps."""
        for item in (self.path / folder).glob("[0-9]*"):
            if chosen(int(item.name[:6])):
                shutil.rmtree(item) if item.is_dir() else item.unlink()

    def rewind(self, step: int) -> None:
        """Remove what was recorded after a step, so that the run can go on from its checkpoint."""
        for name in LINES.values():
            kept = [line for line in read_lines(self.path / name) if line["step"] <= step]
            write_whole(self.path / name, b"".join(map(to_line, kept)))
        for folder in LINES:
            self._remove(folder, lambda other: other > step)


class PartDirectory(RunDirectory):
    """A run directory of another process, to which this one adds parts of rollouts and nothing else."""

    def write_info(self, info: dict[str, Any]) -> None:
        """Leave it to the process that writes the directory, as all that follows."""

    def event(self, kind: str, **values: Any) -> None: ...

    def log(self, text: str, at: float | None = None) -> None: ...

    def rewind(self, step: int) -> None: ...


def eval_path(folder: Path, step: int, label: str = "") -> Path:
    """Return the file of an evaluation's rollouts; further held-out sets have a label."""
    return folder / "evals" / f"{step:06d}{f'-{label}' if label else ''}.parquet"


def _write_parquet(path: Path, table: pa.Table) -> None:
    with plain_disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    write_whole(path, buffer.getvalue())


def append_line(path: Path, value: dict[str, Any]) -> None:
    """Append one object as one line, out of this process when this returns."""
    line = to_line(value)
    with plain_disk_errors(path):
        before = path.stat().st_size if path.exists() else 0
        try:
            with path.open("a+b") as file:
                if before > 0:
                    file.seek(-1, os.SEEK_END)
                    if file.read(1) != b"\n":  # a killed process tore a line, which must not swallow this one
                        line = b"\n" + line
                file.write(line)
        except OSError:
            with contextlib.suppress(OSError):
                os.truncate(path, before)
            raise


def to_line(value: dict[str, Any]) -> bytes:
    """Return an object as one line of JSON. Numbers that are not finite become null: NaN is not JSON."""
    return json.dumps(_plain(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file of JSON lines; lines that a killed process tore are left out."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for line in file:
            try:
                value = json.loads(line)
            except ValueError:
                continue
            if isinstance(value, dict):
                yield value


def write_whole(path: Path, data: bytes) -> None:
    """Write a whole file beside its place and rename it there, so that nobody sees half of it."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with plain_disk_errors(path):
        try:
            with beside.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)


_REASONS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "it would be larger than a file may be here",
    errno.EACCES: "permission was denied",
    errno.EROFS: "the disk can only be read",
}


@contextlib.contextmanager
def plain_disk_errors(path: Path) -> Iterator[None]:
    """Turn an error of the system into a RecordError that a person can act on."""
    try:
        yield
    except OSError as error:
        reason = _REASONS.get(error.errno or 0) or error.strerror or str(error)
        raise RecordError(f"{path} could not be written: {reason}.") from error


def is_being_written(folder: Path) -> bool:
    """Return True where a living process holds the lock of a run directory."""
    # Asked with a shared lock on a file opened to read: readers neither take each other for the writer nor need the
    # right to write.
    path = folder / ".lock"
    if sys.platform == "win32":
        lock = filelock.FileLock(path, timeout=0.05)
        try:
            with lock:
                return False
        except filelock.Timeout:
            return True
    import fcntl

    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except BlockingIOError:
        return True
    except OSError:  # no lock was ever taken, or this disk knows none
        return False


@dataclass(frozen=True)
class Stop:
    """Wish to end a run after the current step, with its origin; the run's record keeps it."""

    reason: str
    by: StoppedBy = "observer"
    finding: str = ""
    """Cause that the doctor or the preflight found; empty for others."""

    @property
    def sentence(self) -> str:
        """Reason, after the cause where there is one."""
        return f"{self.finding}: {self.reason}" if self.finding else self.reason

    def to_event(self) -> dict[str, str]:
        """Return the fields of the event `stopped`."""
        return {"stopped_by": self.by, **({"finding": self.finding} if self.finding else {}), "reason": self.reason}


@cache
def event_fields() -> Mapping[str, Mapping[str, str]]:
    """Return the meaning of each field by kind of event."""
    return tomllib.loads(Path(__file__).with_name("events.toml").read_text(encoding="utf-8"))
