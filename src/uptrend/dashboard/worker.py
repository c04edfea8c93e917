"""A process that reads what others wrote: runs, logs and journals. No torch.

    python -P -m uptrend.dashboard.worker

Its requests are `["read_log", folders, path, ...]`: folders outside which nothing is read, or null.
The server opens none of these files itself: what takes too much memory is refused here, or ends
this process, and the next request starts another.
"""

import json
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from uptrend.dashboard import findings, journals, reading
from uptrend.records import RecordError
from uptrend.records.files import (
    count_values,
    limit_memory,
    megabytes,
    reading_below,
    too_much_memory,
)
from uptrend.records.worker_process import WorkerDied, WorkerProcess, answer_requests

SLOW = (findings.read_log, findings.diagnose_run)
QUICK = (
    reading.read_run,
    reading.run_table,
    reading.pair_runs,
    reading.reward_bounds,
    reading.rollout_lines,
    reading.search_step,
    reading.show_rollout,
    journals.read_overview,
    journals.read_hypothesis,
)
WORK: dict[str, Callable[..., Any]] = {work.__name__: work for work in (*SLOW, *QUICK)}
# Seconds that one piece of work may take.
PATIENCE = 300.0
# Bytes of memory from which the process ends after its work; the next call starts another.
LARGEST = 400_000_000
# Bytes and values of an answer: 100,000 rollouts of a step, or the evaluations of 10,000 steps,
# have half as many.
MAX_ANSWER = 128_000_000
MAX_ANSWER_VALUES = 4_000_000


class ReaderProcess:
    """Handle of the process; `folders` returns those outside which it reads nothing."""

    def __init__(self, folders: Callable[[], list[str]] | None = None) -> None:
        self._folders = folders
        self._worker = WorkerProcess("uptrend.dashboard.worker")

    def call(self, work: str, path: str, *arguments: Any, patience: float = PATIENCE) -> Any:
        """Have work done and return its result; RecordError where it failed, died or took too
        long.
        """
        folders = None if self._folders is None else self._folders()
        try:
            answer = self._worker.call([work, folders, path, *arguments], patience)
        except TimeoutError:
            raise RecordError(f"Reading {path} took more than {patience:.0f} seconds.") from None
        except WorkerDied:
            raise RecordError(
                f"Reading {path} failed: it may need more memory than there is."
            ) from None
        if "error" in answer:
            raise RecordError(str(answer["error"]))
        return answer["result"]

    def close(self) -> None:
        """End the process."""
        self._worker.close()


def _memory() -> int:
    """Return the bytes that this process holds; 0 where the system does not tell."""
    # Not the most that it held: that of a process just started is its parent's.
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


@cache
def _step_back() -> None:
    os.nice(10)  # pages, and a training beside them, come first


def answer(request: list[Any]) -> dict[str, Any]:
    """Do what a request asks for."""
    work, folders, *arguments = request
    if WORK[work] in SLOW:
        _step_back()
    try:
        with reading_below(folders):
            result = WORK[work](*arguments)
        text = json.dumps(result)
        found: dict[str, Any] = {"result": result}
        # The server holds the answer, and nothing else bounds what it holds.
        if len(text) > MAX_ANSWER or count_values(text) > MAX_ANSWER_VALUES:
            found = {
                "error": (
                    f"{arguments[0]} is too large: what a page needs of it are"
                    f" {megabytes(len(text))}."
                )
            }
    except RecordError as error:
        found = {"error": str(error)}
    except MemoryError:
        found = {"error": str(too_much_memory(arguments[0])), "last": True}
    except Exception as error:  # a log may hold anything, and the next one is not to blame
        found = {"error": f"{arguments[0]} could not be read: {type(error).__name__}: {error}"}
    return {"last": _memory() > LARGEST, **found}


if __name__ == "__main__":
    limit_memory()
    answer_requests(answer)
