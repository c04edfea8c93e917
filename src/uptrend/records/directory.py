"""Writing a run directory: one process at a time, nothing half-written, readable whenever it is killed.

run.json            what the run is: resolved config, versions, tasksets with their hashes
metrics.jsonl       one line per step
evals.jsonl         one line per evaluation
events.jsonl        one line per event: started, checkpoint, finished, … (events.toml)
rollouts/000012/    part-0.parquet, the rollouts of step 12
evals/000050.parquet
checkpoints/step-000050/
.lock               held while a process writes; a dead process holds nothing
"""

import io
import json
import shutil
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from uptrend.records.errors import RecordError, RunLocked
from uptrend.records.events import check_event
from uptrend.records.lines import (
    append_line,
    plain_disk_errors,
    read_lines,
    remove_unfinished,
    to_line,
    write_whole,
)
from uptrend.records.lock import WriterLock

LINES = ("metrics.jsonl", "evals.jsonl")


class RunDirectory:
    """Writer of a run directory; use it as a context manager."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = WriterLock(path)

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
        remove_unfinished(path)
        return directory

    def lock(self) -> None:
        """Take the lock, or raise RunLocked."""
        with plain_disk_errors(self.path / ".lock"):
            self._lock.acquire()

    def unlock(self) -> None:
        """Give the lock back."""
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.unlock()

    def write_info(self, info: dict[str, Any]) -> None:
        """Write run.json whole."""
        write_whole(self.path / "run.json", json.dumps(info, indent=2, ensure_ascii=False).encode())

    def event(self, kind: str, **values: Any) -> None:
        """Append to events.jsonl; kinds and fields are those of events.toml."""
        check_event(kind, values)
        append_line(self.path / "events.jsonl", {"event": kind, "time": time.time(), **values})

    def metrics(self, line: dict[str, Any]) -> None:
        """Append a step's metrics."""
        append_line(self.path / "metrics.jsonl", line)

    def evaluation(self, line: dict[str, Any], table: pa.Table) -> None:
        """Write an evaluation's rollouts, then its line."""
        _write_parquet(self.path / "evals" / f"{line['step']:06d}.parquet", table)
        append_line(self.path / "evals.jsonl", line)

    def rollouts(self, step: int, table: pa.Table, part: int = 0) -> None:
        """Write one process's rollouts of a step."""
        _write_parquet(self.path / "rollouts" / f"{step:06d}" / f"part-{part}.parquet", table)

    def rewind(self, step: int) -> None:
        """Remove what was recorded after a step, so that the run can go on from its checkpoint."""
        for name in LINES:
            kept = [line for line in read_lines(self.path / name) if line["step"] <= step]
            write_whole(self.path / name, b"".join(map(to_line, kept)))
        for folder in ("rollouts", "evals"):
            for item in (self.path / folder).glob("[0-9]*"):
                if int(item.name[:6]) > step:
                    shutil.rmtree(item) if item.is_dir() else item.unlink()


def _write_parquet(path: Path, table: pa.Table) -> None:
    with plain_disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    write_whole(path, buffer.getvalue())
