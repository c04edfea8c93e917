"""Writing a run directory: one process at a time, readable whenever it is killed.

Whole files are written beside their place and renamed; lines are flushed. Neither a kill nor a full
disk leaves half. A step counts as recorded with its line, which is written after its rollouts; so
does an evaluation.

Nothing that was recorded is removed. What a resumed run takes back moves to set-aside/1,
set-aside/2, …, with the layout of the run directory itself; no reader looks there.
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

# folders of rollouts, and the lines that they go with
LINES_FILES = {"rollouts": "metrics.jsonl", "evals": "evals.jsonl"}
LOG_PATH = "logs/train.log"
SET_ASIDE_FOLDER = "set-aside"
START_EVENTS = ("started", "resumed")
END_EVENTS = ("finished", "stopped", "failed")
StoppedBy = Literal["user", "doctor", "preflight", "observer"]


class RunDirectory:
    """Writer of a run directory; use it as a context manager."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._identity = _identity(path)
        # A reader that asks whether the lock is held holds it for a moment itself: wait that long.
        self._lock = filelock.FileLock(path / ".lock", timeout=1, thread_local=False)

    @classmethod
    def create(cls, path: Path, info: dict[str, Any]) -> Self:
        """Make a new run directory; refused where one is already, or what is left of one."""
        if taken := why_occupied(path):
            raise RecordError(
                f"{taken} Choose another --name, continue it with --resume, or move it elsewhere."
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
        for left in (*path.glob(".*.*"), *path.glob("rollouts/*/.*"), *path.glob("evals/.*")):
            # a killed process left it half-written
            if left.suffix[1:].isdigit() and left.is_file():
                left.unlink()
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
        """Raise RecordError where the folder that is written to is no longer at its path."""
        now = _identity(self.path)
        self._identity = self._identity or now
        if now is None or now != self._identity:
            raise RecordError(
                f"{self.path} was renamed, moved or removed while its run was going on, so the run"
                " ends here. Where the folder is now it can go on: uptrend train --resume FOLDER"
            )

    def write_info(self, info: dict[str, Any]) -> None:
        self.check_not_moved()
        write_atomically(
            self.path / "run.json", json.dumps(info, indent=2, ensure_ascii=False).encode()
        )

    def event(self, kind: str, **values: Any) -> None:
        """Append to events.jsonl; kinds and fields are those of events.toml, which readers
        trust.
        """
        known = event_fields()
        assert kind in known, f"{kind} is no kind of event: add it to events.toml"
        unknown = [field for field in values if field not in known[kind]]
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
        moment = (
            datetime.fromtimestamp(at or time.time())
            .astimezone()
            .isoformat(sep=" ", timespec="seconds")
        )
        with explain_disk_errors(path):
            path.parent.mkdir(exist_ok=True)
            with path.open("a", encoding="utf-8") as file:
                file.write(f"{moment} {' '.join(text.split())}\n")

    def step(self, line: dict[str, Any], *tables: pa.Table) -> None:
        """Write a step: its rollouts, in parts, then its line, with which it counts as recorded."""
        step = line["step"]
        with _all_or_nothing([_part_path(self.path, step, part) for part in range(len(tables))]):
            for part, table in enumerate(tables):
                self.rollouts(step, table, part)
            append_line(self.path / "metrics.jsonl", line)

    def evaluation(
        self, line: dict[str, Any], table: pa.Table, sets: Mapping[str, pa.Table] | None = None
    ) -> None:
        """Write an evaluation: its rollouts, those on further sets by label, then the line with
        which it counts.
        """
        tables = {
            eval_path(self.path, line["step"], label): one
            for label, one in {"": table, **(sets or {})}.items()
        }
        with _all_or_nothing(tables):
            for path, one in tables.items():
                self._write_parquet(path, one)
            append_line(self.path / "evals.jsonl", line)

    def rollouts(self, step: int, table: pa.Table, part: int = 0) -> None:
        """Write a part of a step's rollouts apart from its line; without a line nobody reads
        them.
        """
        self._write_parquet(_part_path(self.path, step, part), table)

    def part_count(self, step: int) -> int:
        """Return the number of parts that a step's rollouts are in."""
        return len(list(_part_path(self.path, step, 0).parent.glob("part-*.parquet")))

    def _write_parquet(self, path: Path, table: pa.Table) -> None:
        self.check_not_moved()
        with explain_disk_errors(path):
            folder = self.path
            # the run's own folder is never made anew
            for name in path.parent.relative_to(self.path).parts:
                folder /= name
                folder.mkdir(exist_ok=True)
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
        """Raise RecordError where lines up to a step are gone although its rollouts are there.

        A line that can't be read is no reason: it may be the line of any step.
        """
        for folder, name in LINES_FILES.items():
            kept, _ = _split_lines(self.path / name, step)
            with_line = {
                record["step"]
                for _, record in kept
                if record is not None and record["step"] <= step
            }
            recorded = {its for its in recorded_steps(self.path / folder).values() if its <= step}
            lost = sorted(recorded - with_line)
            if len(lost) > sum(record is None or record["step"] > step for _, record in kept):
                named = ", ".join(map(str, lost[:5])) + (f" … {lost[-1]}" if len(lost) > 5 else "")
                raise RecordError(
                    f"{self.path / name} has lost lines: {folder}/ holds steps that have none any"
                    f" more ({named}). Put the lines back from a copy of the file; or, to go on"
                    f" without them, move the rollouts of these steps out of {self.path / folder}."
                )

    def rewind(self, step: int, also: Iterable[Path] = ()) -> Path | None:
        """Set aside what was recorded after a step, so that the run can go on from its checkpoint.

        `also` names further files and folders of the run to be moved. Return the folder below
        set-aside that has it all now, None where there was nothing; what stays is not rewritten.
        """
        self.check_not_moved()
        numbers = [
            int(path.name)
            for path in (self.path / SET_ASIDE_FOLDER).glob("*")
            if path.name.isdecimal()
        ]
        place = self.path / SET_ASIDE_FOLDER / str(max(numbers, default=0) + 1)
        moved = [
            path
            for folder in LINES_FILES
            for path, its in recorded_steps(self.path / folder).items()
            if its > step
        ]
        # Lines come last: where a file can't be moved, the run is still as it was for its readers.
        for path in (*moved, *also):
            target = place / path.relative_to(self.path)
            with explain_disk_errors(target):
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.move(path, target)  # checkpoints/ may be a link to another disk
        for name in LINES_FILES.values():
            kept, later = _split_lines(self.path / name, step)
            if later:
                with explain_disk_errors(place):
                    place.mkdir(parents=True, exist_ok=True)
                # before they are cut off: a kill between leaves them twice
                write_atomically(place / name, later)
                write_atomically(self.path / name, b"".join(line for line, _ in kept))
        if not place.exists():
            return None
        self.event("set-aside", step=step, folder=str(place.relative_to(self.path)))
        self.log(f"What was recorded after step {step} is in {place.relative_to(self.path)} now.")
        return place


class PartDirectory(RunDirectory):
    """A run directory of another process, to which this one adds parts of rollouts and nothing
    else.
    """

    def check_not_moved(self) -> None:
        """Make the folder where this machine has none: not every machine of a run sees the first
        one's disk.
        """
        if self._identity is None:
            with explain_disk_errors(self.path):
                self.path.mkdir(parents=True, exist_ok=True)
        super().check_not_moved()

    def write_info(self, info: dict[str, Any]) -> None:
        """Leave it to the process that writes the directory, as all that follows."""

    def event(self, kind: str, **values: Any) -> None: ...

    def log(self, text: str, at: float | None = None) -> None: ...

    def rewind(self, step: int, also: Iterable[Path] = ()) -> Path | None: ...

    def sync(self) -> None: ...


def why_occupied(path: Path) -> str:
    """Return what keeps a new run out of a folder, in a sentence; empty where nothing does."""
    if (path / "run.json").exists():
        return f"{path} already holds a run."
    left = [
        name
        for name in (*LINES_FILES, *LINES_FILES.values(), "checkpoints")
        if (path / name).exists()
    ]
    return (
        f"{path} holds {left[0]}, and no run.json: of a run that lost it, or of somebody's own."
        if left
        else ""
    )


def free_path(path: Path) -> Path:
    """Return the path; where something keeps a new run out, with the first number from 2 at which
    nothing does.
    """
    numbered = (path.with_name(f"{path.name}-{number}") for number in itertools.count(2))
    return next(place for place in itertools.chain([path], numbered) if not why_occupied(place))


def describe_location(path: Path, name: str) -> str:
    """Say where a run of that name records, why its folder got a number, and how to look at it; one
    line.
    """
    is_numbered = re.fullmatch(re.escape(name) + r"-\d+", path.name)
    taken = why_occupied(path.with_name(name)) if is_numbered else ""
    reason = f", since {taken.rstrip('.')}" if taken else ""
    return f"{path}{reason}. To look at it: uptrend runs show {shlex.quote(str(path))}"


def _identity(path: Path) -> tuple[int, int] | None:
    """Return what a folder keeps when it is renamed, and another one in its place has not; None
    without a folder.
    """
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _part_path(folder: Path, step: int, part: int) -> Path:
    return folder / "rollouts" / f"{step:06d}" / f"part-{part}.parquet"


def eval_path(folder: Path, step: int, label: str = "") -> Path:
    """Return the file of an evaluation's rollouts; further held-out sets have a label."""
    return folder / "evals" / f"{step:06d}{f'-{label}' if label else ''}.parquet"


def set_aside(path: Path) -> Path:
    """Move a file or a folder to `set-aside` beside it, under its name and a number; return where
    it is now.
    """
    places = (
        path.parent / SET_ASIDE_FOLDER / f"{path.name}-{number}" for number in itertools.count(1)
    )
    place = next(place for place in places if not place.exists())
    with explain_disk_errors(place):
        place.parent.mkdir(exist_ok=True)
        path.rename(place)
    return place


def recorded_steps(folder: Path) -> dict[Path, int]:
    """Return what a folder of rollouts or evaluations holds, by its step; a user's own files are
    left out.
    """
    items = (
        (path, re.fullmatch(r"(\d{6,})(?:(?:-.+)?\.parquet)?", path.name))
        for path in folder.glob("[0-9]*")
    )
    return {path: int(match[1]) for path, match in sorted(items) if match}


@contextlib.contextmanager
def _all_or_nothing(paths: Collection[Path]) -> Iterator[None]:
    """Take files back where they, or the line with which they count, could not be written."""
    try:
        yield
    except Exception:
        # Not KeyboardInterrupt: the line may be written by then, and may not be without rollouts.
        with contextlib.suppress(OSError):
            for path in paths:
                path.unlink(missing_ok=True)
            for folder in {path.parent for path in paths}:
                folder.rmdir()  # fails where it holds more
        raise


def _split_lines(path: Path, step: int) -> tuple[list[tuple[bytes, dict[str, Any] | None]], bytes]:
    """Part a run's lines after the last one up to a step: lines to keep with their records, and the
    rest as it is.

    Where the step's own line is missing, damaged lines that follow may be it, and are kept; a torn
    end is later.
    """
    lines = list(parse_lines(path))
    is_kept = [record is not None and record["step"] <= step for _, record in lines]
    count = len(lines) - is_kept[::-1].index(True) if True in is_kept else 0
    last = max(
        (record["step"] for _, record in lines[:count] if record and record["step"] <= step),
        default=-1,
    )
    while (
        last < step
        and count < len(lines)
        and lines[count][1] is None
        and lines[count][0].endswith(b"\n")
    ):
        count += 1
    return lines[:count], b"".join(line for line, _ in lines[count:])


def is_being_written(folder: Path) -> bool:
    """Return True where a living process holds the lock of a run directory."""
    # Asked with a shared lock on a file opened to read: readers neither take each other for the
    # writer nor need the right to write.
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
        with open_file(path) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except BlockingIOError:
        return True
    except (OSError, RecordError):
        # No lock was ever taken, this disk knows none, or it is something else.
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
        return {
            "stopped_by": self.by,
            **({"finding": self.finding} if self.finding else {}),
            "reason": self.reason,
        }


@cache
def event_fields() -> Mapping[str, Mapping[str, str]]:
    """Return the meaning of each field by kind of event."""
    return tomllib.loads(Path(__file__).with_name("events.toml").read_text(encoding="utf-8"))
