"""Work off the trainer's thread, in order: records on their way to disk and what is computed from them."""

import queue
import threading
import time
from collections.abc import Callable


def breathe() -> None:
    """Let the trainer's thread have the interpreter at once: it would wait five milliseconds for it otherwise."""
    time.sleep(0)


WAITING = 8
"""How many steps may wait before the trainer waits for the disk."""


class Scribe:
    """One thread that does what it is handed; what fails there is told, never raised."""

    def __init__(self, failed: Callable[[str, Exception], None]) -> None:
        self._failed = failed
        self._jobs: queue.Queue[tuple[str, Callable[[], None]] | None] = queue.Queue(WAITING)
        self._thread = threading.Thread(target=self._work, name="uptrend-watch", daemon=True)
        self._thread.start()

    def do(self, part: str, job: Callable[[], None]) -> None:
        """Hand over a job."""
        self._jobs.put((part, job))

    def drain(self) -> None:
        """Wait until all is done."""
        self._jobs.join()

    def close(self) -> None:
        """Do what is left and end the thread."""
        self._jobs.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (handed := self._jobs.get()) is not None:
            part, job = handed
            try:
                job()
            except Exception as error:
                self._failed(part, error)
            finally:
                self._jobs.task_done()
        self._jobs.task_done()
