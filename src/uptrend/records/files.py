"""Opening files that others can change: regular files alone, and below some folders alone where a
reader says so.

A server looks at folders in which others write. Between a look at a file and its opening a link or
a pipe may take its place, so what was opened is judged, never what was there before.
"""

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import BinaryIO

from uptrend.records.errors import RecordError

# Tries to open a file that its writer is just putting another one in the place of.
TRIES = 5
# O_NONBLOCK: a pipe would be waited for, and with it whoever asked. Windows has neither the flag
# nor such pipes.
FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
)

_folders: ContextVar[tuple[Path, ...] | None] = ContextVar("folders", default=None)


@contextlib.contextmanager
def reading_below(folders: Iterable[Path | str] | None) -> Iterator[None]:
    """Let `open_file` open what lies below these folders alone, whatever links are on the way; None
    sets no limit.
    """
    places = (
        None if folders is None else tuple(Path(os.path.realpath(folder)) for folder in folders)
    )
    before = _folders.set(places)
    try:
        yield
    finally:
        _folders.reset(before)


def open_file(path: Path) -> BinaryIO:
    """Open a file to read its bytes; RecordError where it is a pipe or a device, or lies where it
    may not.

    What the system says, such as FileNotFoundError, is passed on.
    """
    folders = _folders.get()
    for _ in range(TRIES):
        descriptor = os.open(path, FLAGS)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise RecordError(f"{path} could not be read: it is no file.")
            if folders is None:
                return os.fdopen(descriptor, "rb")
            real = Path(os.path.realpath(path))
            with contextlib.suppress(FileNotFoundError):
                # The place is that of the file which is open; else one took the other's place
                # meanwhile.
                if os.path.samestat(os.lstat(real), status):
                    if not any(real.is_relative_to(folder) for folder in folders):
                        raise RecordError(
                            f"{path} is a link to a place outside the folders that are read: not"
                            " read."
                        )
                    return os.fdopen(descriptor, "rb")
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
    raise RecordError(f"{path} could not be read: it is being replaced over and over.")


def open_named(path: Path) -> BinaryIO:
    """Open a file that somebody named: where no folders are set it may be a pipe, such as
    /dev/stdin.
    """
    return path.open("rb") if _folders.get() is None else open_file(path)
