"""Append-only JSON lines that survive a kill: each is flushed, and a torn last line is left out on reading."""

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def append_line(path: Path, value: dict[str, Any]) -> None:
    """Append one object as one line, out of this process when this returns.

    A torn line that a killed process left behind is ended first, so that it can't swallow this one.
    Numbers that are not finite become null: NaN is not JSON.
    """
    line = json.dumps(_finite(value), ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
    with path.open("a+b") as file:
        if file.tell() > 0:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
        file.write(line)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
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
    try:
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
