"""The process that records a watched run, so that the trainer's interpreter and thread stay its own. No torch.

    python -m uptrend.bridge.trl.recorder

What it is handed comes through stdin, each a length and a pickle; what it has to tell goes to stdout, a line of JSON
each. It ends with stdin, however that ends, and writes what it still holds: a killed trainer leaves a whole directory.
"""

import os
import pickle
import select
import struct
import sys
import traceback
from collections.abc import Callable, Iterator
from importlib.abc import MetaPathFinder
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from uptrend.bridge.trl.voice import Upward

LENGTH = struct.Struct("<Q")
LOOK = 2.0
"""Seconds between two looks whether the trainer lives: a process that it forked may hold the pipe open."""
KINDS = {"known": "know", "step": "write", "evaluation": "write_evaluation"}
"""What is handed over, and the writer's method for it."""


def frame(kind: str, *payload: Any) -> bytes:
    """What is handed over, as bytes."""
    body = pickle.dumps((kind, payload), protocol=5)
    return LENGTH.pack(len(body)) + body


def frames(pipe: int, is_alone: Callable[[], bool]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """All that comes through a pipe, until its end or until nobody is there who could write."""
    while (head := _exactly(pipe, LENGTH.size, is_alone)) is not None:
        body = _exactly(pipe, LENGTH.unpack(head)[0], is_alone)
        if body is None:
            return
        yield pickle.loads(body)


def _exactly(pipe: int, size: int, is_alone: Callable[[], bool]) -> bytes | None:
    """So many bytes; none where the pipe ends before."""
    got = bytearray()
    while len(got) < size:
        if not select.select([pipe], [], [], LOOK)[0]:
            if is_alone():
                return None
            continue
        piece = os.read(pipe, min(size - len(got), 1 << 20))
        if not piece:
            return None
        got += piece
    return bytes(got)


def record(handed: Iterator[tuple[str, tuple[Any, ...]]], voice: "Upward") -> None:
    """Write all that is handed over; what fails is told, and the next is tried."""
    from uptrend.bridge.trl.writer import Writer

    _, begun = next(handed, ("", ()))
    if not begun:
        return
    path, settings, scale = begun
    writer = Writer(path, settings, scale, voice)
    for kind, payload in handed:
        _try(voice, "evaluations" if kind == "evaluation" else "records", getattr(writer, KINDS[kind]), *payload)
    _try(voice, "records", writer.write_rollouts, True)


def _try(voice: "Upward", part: str, job: Callable[..., None], *payload: Any) -> None:
    try:
        job(*payload)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        voice.tell(failed=[part, f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})"])


class _NoPandas(MetaPathFinder):
    """Hides pandas: pyarrow would load it, for half a second, only to ask whether an array is one of its."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        del path, target
        if fullname == "pandas":
            raise ModuleNotFoundError("hidden", name=fullname)


def _main() -> None:
    sys.meta_path.insert(0, _NoPandas())
    from uptrend.bridge.trl.voice import Upward

    os.nice(10)  # training goes first
    parent = os.getppid()
    record(frames(sys.stdin.fileno(), lambda: os.getppid() != parent), Upward(sys.stdout))


if __name__ == "__main__":
    _main()
