"""One writer a run directory: a lock that the system takes back from a dead process, so it is never stale."""

import sys
from pathlib import Path

import filelock

from uptrend.records.errors import RunLocked

NAME = ".lock"


class WriterLock:
    """The right to write a run directory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # A reader that asks whether the lock is held holds it for a moment itself: wait that long.
        self._lock = filelock.FileLock(folder / NAME, timeout=1, thread_local=False)

    def acquire(self) -> None:
        """Take it, or say that somebody has it."""
        try:
            self._lock.acquire()
        except filelock.Timeout:
            raise RunLocked(
                f"{self._folder} is being written by another process. Wait for it, or choose another --name."
            ) from None

    def release(self) -> None:
        """Give it back."""
        self._lock.release()


def is_being_written(folder: Path) -> bool:
    """Whether a living process holds the lock of a run directory.

    Asked with a shared lock on a file opened to read: readers neither take each other for the writer nor
    need the right to write.
    """
    path = folder / NAME
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
