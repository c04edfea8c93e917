"""Writing a run directory: one process at a time, readable whenever it is killed.

Whole files are written under another name and renamed; lines are flushed. Neither a kill nor a full
disk leaves half a file or line. A step is recorded with its line, which is written after its
rollouts; so is an evaluation.

Nothing that was recorded is removed. Steps that a resumed run repeats move to set-aside/1,
set-aside/2, …, with the layout of the run directory itself; readers leave these folders out.
"""

import contextlib
import io
import itertools
import json
import re
import shlex
import shutil
import sys
import time
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, Literal, Self

import filelock
import pyarrow as pa
import pyarrow.parquet as pq

from uptrend.records.errors import RecordError, RunLocked
from uptrend.records.files import explain_disk_errors, open_file, sync, write_atomically
from uptrend.records.lines import append_line, parse_lines

# Files of lines, by the folder of rollouts that they go with.
LINES_FILES = {"rollouts": "metrics.jsonl", "evals": "evals.jsonl"}
LOG_PATH = "logs/train.log"
SET_ASIDE_FOLDER = "set-aside"
START_EVENTS = ("started", "resumed")
END_EVENTS = ("finished", "stopped", "failed")
# Lost steps that an error names.
MAX_STEPS_NAMED = 5
# A reader that tests the lock holds it for a moment itself: a writer waits that long.
LOCK_TIMEOUT_S = 1
# Where the lock can only be tested by taking it, a reader tries this long.
LOCK_TEST_S = 0.05
StoppedBy = Literal["user", "doctor", "preflight", "observer"]


class RunDirectory:
    """Writer of a run directory; use it as a context manager."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._identity = _identity(path)
        self._lock = filelock.FileLock(path / ".lock", timeout=LOCK_TIMEOUT_S, thread_local=False)

    @classmethod
    def create(cls, path: Path, info: dict[str, Any]) -> Self:
        """Make a new run directory; refuse a folder with a run, or with the remains of one."""
        reason = why_occupied(path)
        if reason:
            raise RecordError(
                f"{reason} Choose another --name, continue it with --resume, or move it elsewhere."
            )
        with explain_disk_errors(path):
            path.mkdir(parents=True, exist_ok=True)
        directory = cls(path)
        directory.lock()
        try:
            if (path / "run.json").exists():
                raise RunLocked(
                    f"{path} was just started by another process. Choose another --name."
                )
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
        # Files that a killed process left half-written: `write_atomically` adds its process id.
        hidden = (*path.glob(".*.*"), *path.glob("rollouts/*/.*"), *path.glob("evals/.*"))
        for file in hidden:
            if file.suffix[1:].isdigit() and file.is_file():
                file.unlink()
        return directory

    def lock(self) -> None:
        """Take the lock, or raise RunLocked."""
        with explain_disk_errors(self.path / ".lock"):
            try:
                self._lock.acquire()
            except filelock.Timeout:
                message = (
                    f"{self.path} is being written by another process. Wait for it, or choose"
                    " another --name."
                )
                raise RunLocked(message) from None

    def unlock(self) -> None:
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.unlock()

    def check_not_moved(self) -> None:
        """Raise RecordError if the folder that is written to is no longer at its path."""
        identity = _identity(self.path)
        self._identity = self._identity or identity
        if identity is None or identity != self._identity:
            raise RecordError(
                f"{self.path} was renamed, moved or removed while its run was going on, so the run"
                " ends here. Where the folder is now it can go on: uptrend train --resume FOLDER"
            )

    def write_info(self, info: dict[str, Any]) -> None:
        """Write run.json."""
        self.check_not_moved()
        text = json.dumps(info, indent=2, ensure_ascii=False)
        write_atomically(self.path / "run.json", text.encode())

    def event(self, kind: str, **values: Any) -> None:
        """Append to events.jsonl; kinds and fields are those of events.toml, on which readers
        rely.
        """
        fields_by_kind = event_fields()
        assert kind in fields_by_kind, f"{kind} is no kind of event: add it to events.toml"
        unknown = [name for name in values if name not in fields_by_kind[kind]]
        assert not unknown, (
            f"the event {kind} has no field {', '.join(unknown)}: add it to events.toml"
        )
        self.check_not_moved()
        append_line(self.path / "events.jsonl", {"event": kind, "time": time.time(), **values})

    def log(self, text: str, at: float | None = None) -> None:
        """Append a line for a person to logs/train.log, out of this process when this returns; `at`
        is its time.
        """
        self.check_not_moved()
        path = self.path / LOG_PATH
        moment = datetime.fromtimestamp(at or time.time()).astimezone()
        line = f"{moment.isoformat(sep=' ', timespec='seconds')} {' '.join(text.split())}\n"
        with explain_disk_errors(path):
            path.parent.mkdir(exist_ok=True)
            with path.open("a", encoding="utf-8") as file:
                file.write(line)

    def step(self, line: dict[str, Any], *tables: pa.Table) -> None:
        """Write a step: its rollouts, in parts, then its line, with which it is recorded."""
        step = line["step"]
        paths = [_part_path(self.path, step, part) for part in range(len(tables))]
        with _all_or_nothing(paths):
            for part, table in enumerate(tables):
                self.rollouts(step, table, part)
            append_line(self.path / "metrics.jsonl", line)

    def evaluation(
        self, line: dict[str, Any], table: pa.Table, sets: Mapping[str, pa.Table] | None = None
    ) -> None:
        """Write an evaluation: its rollouts, those on further sets by label, then its line, with
        which it is recorded.
        """
        tables: dict[Path, pa.Table] = {}
        for label, set_table in {"": table, **(sets or {})}.items():
            tables[eval_path(self.path, line["step"], label)] = set_table
        with _all_or_nothing(tables):
            for path, set_table in tables.items():
                self._write_parquet(path, set_table)
            append_line(self.path / "evals.jsonl", line)

    def rollouts(self, step: int, table: pa.Table, part: int = 0) -> None:
        """Write a part of a step's rollouts without its line; they are not read before the line is
        there.
        """
        self._write_parquet(_part_path(self.path, step, part), table)

    def part_count(self, step: int) -> int:
        """Return the number of parts that a step's rollouts are in."""
        return len(list(_part_path(self.path, step, 0).parent.glob("part-*.parquet")))

    def _write_parquet(self, path: Path, table: pa.Table) -> None:
        self.check_not_moved()
        with explain_disk_errors(path):
            # Folder by folder, because the run's own is never made anew.
            folder = self.path
            for name in path.parent.relative_to(self.path).parts:
                folder /= name
                folder.mkdir(exist_ok=True)
        # Only runs with several sources have the column.
        if "source" in table.column_names and table["source"].null_count == len(table):
            table = table.drop_columns(["source"])
        buffer = io.BytesIO()
        pq.write_table(table, buffer, compression="zstd")
        write_atomically(path, buffer.getvalue())

    def sync(self) -> None:
        """Wait until all lines are on disk: a checkpoint must not outlive the lines of its
        steps.
        """
        self.check_not_moved()
        files = [self.path / name for name in (*LINES_FILES.values(), "events.jsonl")]
        for path in (*files, self.path):
            if path.exists():
                with explain_disk_errors(path):
                    sync(path)

    def check_lines(self, step: int) -> None:
        """Raise RecordError if lines up to a step are gone although their rollouts exist.

        Each line that can't be read may be that of any step, and makes up for one that is missing.
        """
        for folder, name in LINES_FILES.items():
            lines, _ = _split_lines(self.path / name, step)
            steps_with_line: set[int] = set()
            n_unclear = 0
            for _, record in lines:
                if record is None or record["step"] > step:
                    n_unclear += 1
                else:
                    steps_with_line.add(record["step"])
            rollout_steps = set(recorded_steps(self.path / folder).values())
            lost = sorted(lost for lost in rollout_steps - steps_with_line if lost <= step)
            if len(lost) > n_unclear:
                steps_text = ", ".join(map(str, lost[:MAX_STEPS_NAMED]))
                if len(lost) > MAX_STEPS_NAMED:
                    steps_text += f" … {lost[-1]}"
                raise RecordError(
                    f"{self.path / name} has lost lines: {folder}/ holds steps that have none any"
                    f" more ({steps_text}). Put the lines back from a copy of the file; or, to go"
                    " on without them, move the rollouts of these steps out of"
                    f" {self.path / folder}."
                )

    def rewind(self, step: int, also: Iterable[Path] = ()) -> Path | None:
        """Set aside the records of all later steps, so that the run can go on from its checkpoint.

        `also` are further files and folders of the run to move. Returns the folder below set-aside
        that has them now, None if there were none; other files are not rewritten.
        """
        self.check_not_moved()
        target_folder = self._next_set_aside_folder()
        moved: list[Path] = []
        for folder in LINES_FILES:
            for path, recorded_step in recorded_steps(self.path / folder).items():
                if recorded_step > step:
                    moved.append(path)
        # Lines come last: if a file can't be moved, the run is still as it was for its readers.
        for path in (*moved, *also):
            target = target_folder / path.relative_to(self.path)
            with explain_disk_errors(target):
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.move(path, target)  # checkpoints/ may be a link to another disk
        for name in LINES_FILES.values():
            lines, later = _split_lines(self.path / name, step)
            if later:
                with explain_disk_errors(target_folder):
                    target_folder.mkdir(parents=True, exist_ok=True)
                # Before they are cut off: a kill between the two leaves them twice.
                write_atomically(target_folder / name, later)
                write_atomically(self.path / name, b"".join(line for line, _ in lines))
        if not target_folder.exists():
            return None
        relative = target_folder.relative_to(self.path)
        self.event("set-aside", step=step, folder=str(relative))
        self.log(f"What was recorded after step {step} is in {relative} now.")
        return target_folder

    def _next_set_aside_folder(self) -> Path:
        folder = self.path / SET_ASIDE_FOLDER
        numbers = [int(path.name) for path in folder.glob("*") if path.name.isdecimal()]
        return folder / str(max(numbers, default=0) + 1)


class PartDirectory(RunDirectory):
    """A run directory of another process, to which this one adds parts of rollouts and nothing
    else.
    """

    def check_not_moved(self) -> None:
        """Make the folder if this machine has none: not every machine of a run sees the first one's
        disk.
        """
        if self._identity is None:
            with explain_disk_errors(self.path):
                self.path.mkdir(parents=True, exist_ok=True)
        super().check_not_moved()

    def write_info(self, info: dict[str, Any]) -> None:
        """Do nothing, as the methods below: the process that writes the directory does it."""

    def event(self, kind: str, **values: Any) -> None: ...

    def log(self, text: str, at: float | None = None) -> None: ...

    def rewind(self, step: int, also: Iterable[Path] = ()) -> Path | None: ...

    def sync(self) -> None: ...


def why_occupied(path: Path) -> str:
    """Return the reason why a new run can't use a folder, as a sentence; empty if it can."""
    if (path / "run.json").exists():
        return f"{path} already holds a run."
    for name in (*LINES_FILES, *LINES_FILES.values(), "checkpoints"):
        if (path / name).exists():
            return f"{path} holds {name}, and no run.json: a run lost it, or {name} is no run's."
    return ""


def free_path(path: Path) -> Path:
    """Return the path if a new run can use it, else the path with the first number from 2 that is
    free.
    """
    if not why_occupied(path):
        return path
    numbered = (path.with_name(f"{path.name}-{number}") for number in itertools.count(2))
    return next(candidate for candidate in numbered if not why_occupied(candidate))


def describe_location(path: Path, name: str) -> str:
    """Return one line on where a run of that name records, why its folder got a number, and how to
    look at it.
    """
    reason = ""
    if re.fullmatch(re.escape(name) + r"-\d+", path.name):
        occupied = why_occupied(path.with_name(name))
        if occupied:
            reason = f", since {occupied.rstrip('.')}"
    return f"{path}{reason}. To look at it: uptrend runs show {shlex.quote(str(path))}"


def _identity(path: Path) -> tuple[int, int] | None:
    """Return the device and inode of a folder, which renaming does not change; None without a
    folder.
    """
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _part_path(folder: Path, step: int, part: int) -> Path:
    return folder / "rollouts" / f"{step:06d}" / f"part-{part}.parquet"


def eval_path(folder: Path, step: int, label: str = "") -> Path:
    """Return the file of an evaluation's rollouts; further held-out sets have a label."""
    return folder / "evals" / f"{step:06d}{f'-{label}' if label else ''}.parquet"


def set_aside(path: Path) -> Path:
    """Move a file or a folder to `set-aside` beside it, under its name and a number; return its new
    path.
    """
    folder = path.parent / SET_ASIDE_FOLDER
    candidates = (folder / f"{path.name}-{number}" for number in itertools.count(1))
    target = next(candidate for candidate in candidates if not candidate.exists())
    with explain_disk_errors(target):
        target.parent.mkdir(exist_ok=True)
        path.rename(target)
    return target


def recorded_steps(folder: Path) -> dict[Path, int]:
    """Return the steps of the files and folders in a folder of rollouts or evaluations; a user's
    own files are left out.
    """
    steps: dict[Path, int] = {}
    for path in sorted(folder.glob("[0-9]*")):
        match = re.fullmatch(r"(\d{6,})(?:(?:-.+)?\.parquet)?", path.name)
        if match:
            steps[path] = int(match[1])
    return steps


@contextlib.contextmanager
def _all_or_nothing(paths: Collection[Path]) -> Iterator[None]:
    """Remove files again if one of them, or the line that records them, could not be written."""
    try:
        yield
    except Exception:
        # Not KeyboardInterrupt: the line may be written by then, and may not be without rollouts.
        with contextlib.suppress(OSError):
            for path in paths:
                path.unlink(missing_ok=True)
            for folder in {path.parent for path in paths}:
                folder.rmdir()  # fails unless it is empty
        raise


def _split_lines(path: Path, step: int) -> tuple[list[tuple[bytes, dict[str, Any] | None]], bytes]:
    """Part a run's lines after the last one up to a step: lines that stay with their records, and
    the rest as it is.

    If the step's own line is missing, damaged lines that follow may be it, and stay; a torn end is
    later.
    """
    lines = list(parse_lines(path))
    count = 0  # lines that stay
    last_step = -1
    for number, (_, record) in enumerate(lines, start=1):
        if record is not None and record["step"] <= step:
            count = number
            last_step = max(last_step, record["step"])
    if last_step < step:
        for line, record in lines[count:]:
            is_damaged = record is None and line.endswith(b"\n")
            if not is_damaged:
                break
            count += 1
    return lines[:count], b"".join(line for line, _ in lines[count:])


def is_being_written(folder: Path) -> bool:
    """Return True if a living process holds the lock of a run directory."""
    # By a shared lock on a file opened to read: readers neither take each other for the writer nor
    # need the right to write.
    path = folder / ".lock"
    if sys.platform == "win32":
        lock = filelock.FileLock(path, timeout=LOCK_TEST_S)
        try:
            with lock:
                return False
        except filelock.Timeout:
            return True
    import fcntl

    try:
        with open_file(path) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except BlockingIOError:
        return True
    except (OSError, RecordError):
        # There never was a lock, this disk has no locks, or the path is something else.
        return False


@dataclass(frozen=True)
class Stop:
    """Request to end a run after the current step, with its origin; the run's record keeps it."""

    reason: str
    by: StoppedBy = "observer"
    finding: str = ""
    """Cause that the doctor or the preflight reported; empty for others."""

    @property
    def sentence(self) -> str:
        """Reason, after the cause if there is one."""
        return f"{self.finding}: {self.reason}" if self.finding else self.reason

    def to_event(self) -> dict[str, str]:
        """Return the fields of the event `stopped`."""
        event: dict[str, str] = {"stopped_by": self.by}
        if self.finding:
            event["finding"] = self.finding
        event["reason"] = self.reason
        return event


@cache
def event_fields() -> Mapping[str, Mapping[str, str]]:
    """Return the meaning of each field by kind of event."""
    return tomllib.loads(Path(__file__).with_name("events.toml").read_text(encoding="utf-8"))
