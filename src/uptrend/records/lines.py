"""Writing that neither a kill nor a full disk leaves half-done: whole files by rename, and flushed lines."""

import contextlib
import errno
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from uptrend.records.errors import RecordError


def append_line(path: Path, value: dict[str, Any]) -> None:
    """Append one object as one line, out of this process when this returns.

    A torn line that a killed process left behind is ended first, so that it can't swallow this one.
    """
    line = to_line(value)
    with plain_disk_errors(path):
        before = path.stat().st_size if path.exists() else 0
        try:
            with path.open("a+b") as file:
                if before > 0:
                    file.seek(-1, os.SEEK_END)
                    if file.read(1) != b"\n":
                        line = b"\n" + line
                file.write(line)
        except OSError:
            with contextlib.suppress(OSError):
                os.truncate(path, before)
            raise


def to_line(value: dict[str, Any]) -> bytes:
    """An object as one line of JSON. Numbers that are not finite become null: NaN is not JSON."""
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
    """The objects of a file of JSON lines; lines that a killed process tore are left out."""
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


def remove_unfinished(folder: Path) -> None:
    """Remove what a process left beside its place when it was killed; only for the one who holds the lock."""
    for path in (*folder.glob(".*.*"), *folder.glob("rollouts/*/.*"), *folder.glob("evals/.*")):
        if path.suffix[1:].isdigit() and path.is_file():
            path.unlink()


_REASONS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "it would be larger than a file may be here",
    errno.EACCES: "permission was denied",
    errno.EROFS: "the disk can only be read",
}


@contextlib.contextmanager
def plain_disk_errors(path: Path) -> Iterator[None]:
    """Turn what the system says of a write into a RecordError that a person can act on."""
    try:
        yield
    except OSError as error:
        reason = _REASONS.get(error.errno or 0) or error.strerror or str(error)
        raise RecordError(f"{path} could not be written: {reason}.") from error
