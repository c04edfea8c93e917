"""Records on their way to disk, off the loop's thread.

The loop hands over what it has and goes on; one thread turns it into Parquet and lines, in order, so that a
step's metrics line appears only when its rollouts are on disk. What goes wrong there is raised in the loop.
"""

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

from uptrend.records import Rollout, RunDirectory, rollouts_table

WAITING = 4
"""How many steps may wait before the loop waits for the disk."""


class Recorder:
    """Writes a run directory from a thread of its own."""

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory
        self._name = directory.path.resolve().name
        self._jobs: queue.Queue[Callable[[], None] | None] = queue.Queue(WAITING)
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._work, name="recorder", daemon=True)
        self._thread.start()

    def step(self, step: int, rollouts: Sequence[Rollout], metrics: dict[str, Any]) -> None:
        """A step's rollouts, then its metrics."""

        def write() -> None:
            self._directory.rollouts(step, rollouts_table(self._name, rollouts))
            self._directory.metrics(metrics)

        self._put(write)

    def evaluation(self, line: dict[str, Any], rollouts: Sequence[Rollout]) -> None:
        """An evaluation's rollouts, then its line."""
        self._put(lambda: self._directory.evaluation(line, rollouts_table(self._name, rollouts)))

    def drain(self) -> None:
        """Wait until everything is on disk."""
        self._jobs.join()
        self._raise()

    def close(self) -> None:
        """Write what is left and end the thread."""
        self._jobs.put(None)
        self._thread.join()
        self._raise()

    def _put(self, job: Callable[[], None]) -> None:
        self._raise()
        self._jobs.put(job)

    def _raise(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                if self._error is None:  # nothing later may be written past a hole
                    job()
            except Exception as error:
                self._error = error
            finally:
                self._jobs.task_done()
        self._jobs.task_done()
