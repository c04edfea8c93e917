"""A process that reads the files of runs, logs and journals for the server. No torch.

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

# These take minutes for a long run, and so yield to pages and to a training run.
LOW_PRIORITY_FUNCTIONS = (findings.read_log, findings.diagnose_run)
PAGE_FUNCTIONS = (
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
FUNCTIONS_BY_NAME: dict[str, Callable[..., Any]] = {
    function.__name__: function for function in (*LOW_PRIORITY_FUNCTIONS, *PAGE_FUNCTIONS)
}
# Niceness that is added for those that yield.
LOW_PRIORITY_NICENESS = 10
REQUEST_TIMEOUT_S = 300.0
# Memory from which on the process ends after its answer; the next call starts another.
MAX_IDLE_MEMORY_BYTES = 400_000_000
# Limits of an answer: twice what 100,000 rollouts of a step take, or evaluations of 10,000 steps.
MAX_ANSWER_BYTES = 128_000_000
MAX_ANSWER_VALUES = 4_000_000


class ReaderProcess:
    """Handle of the process; it reads nothing outside the folders that `folders` returns."""

    def __init__(self, folders: Callable[[], list[str]] | None = None) -> None:
        self._folders = folders
        self._worker = WorkerProcess("uptrend.dashboard.worker")

    def call(
        self, function: str, path: str, *arguments: Any, timeout_s: float = REQUEST_TIMEOUT_S
    ) -> Any:
        """Run a function of the process and return its result; RecordError if it failed, died or
        took too long.
        """
        folders = None if self._folders is None else self._folders()
        try:
            answer = self._worker.call([function, folders, path, *arguments], timeout_s)
        except TimeoutError:
            raise RecordError(f"Reading {path} took more than {timeout_s:.0f} seconds.") from None
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


def _memory_bytes() -> int:
    """Return the memory that this process occupies; 0 if the system does not report it."""
    # Now, not at its peak: the peak of a process that was just started is its parent's.
    try:
        statm = Path("/proc/self/statm").read_text(encoding="ascii")
    except OSError:
        return 0
    resident_pages = int(statm.split()[1])
    return resident_pages * os.sysconf("SC_PAGE_SIZE")


@cache
def _lower_priority() -> None:
    """Let pages, and a training run beside them, come first; once, because niceness adds up."""
    os.nice(LOW_PRIORITY_NICENESS)


def answer(request: list[Any]) -> dict[str, Any]:
    """Return a request's result, or an error's sentence; `last` if the process ends with it."""
    name, folders, *arguments = request
    path = arguments[0]
    function = FUNCTIONS_BY_NAME[name]
    if function in LOW_PRIORITY_FUNCTIONS:
        _lower_priority()
    reply: dict[str, Any] = {}
    try:
        with reading_below(folders):
            result = function(*arguments)
        text = json.dumps(result)
        # The server keeps the answer in memory, and nothing else bounds its size.
        if len(text) > MAX_ANSWER_BYTES or count_values(text) > MAX_ANSWER_VALUES:
            size = megabytes(len(text))
            reply["error"] = f"{path} is too large: what a page needs of it are {size}."
        else:
            reply["result"] = result
    except RecordError as error:
        reply["error"] = str(error)
    except MemoryError:
        return {"error": str(too_much_memory(path)), "last": True}
    except Exception as error:  # a log may contain anything, and the next one is not to blame
        reply["error"] = f"{path} could not be read: {type(error).__name__}: {error}"
    reply["last"] = _memory_bytes() > MAX_IDLE_MEMORY_BYTES
    return reply


if __name__ == "__main__":
    limit_memory()
    answer_requests(answer)
