"""A process for work that takes seconds, reading logs and judging runs, so that pages don't wait for it. No torch.

    python -P -m uptrend.dashboard.worker

Its requests are `["read_log", path, ...]`.
"""

import os
from pathlib import Path
from typing import Any

from uptrend.dashboard import findings
from uptrend.records import RecordError
from uptrend.records.worker_process import WorkerDied, WorkerProcess, answer_requests

WORK = {work.__name__: work for work in (findings.read_log, findings.diagnose_run)}
# Seconds that one piece of work may take.
PATIENCE = 300.0
# Bytes of memory from which the process ends after its work; the next call starts another.
LARGEST = 400_000_000


class ReaderProcess:
    """Handle of the process."""

    def __init__(self) -> None:
        self._worker = WorkerProcess("uptrend.dashboard.worker")

    def call(self, work: str, *arguments: str, patience: float = PATIENCE) -> Any:
        """Have work done and return its result; RecordError where it failed, died or took too long."""
        try:
            answer = self._worker.call([work, *arguments], patience)
        except TimeoutError:
            raise RecordError(f"Reading {arguments[0]} took more than {patience:.0f} seconds.") from None
        except WorkerDied:
            raise RecordError(f"Reading {arguments[0]} failed: it may need more memory than there is.") from None
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


def answer(request: list[str]) -> dict[str, Any]:
    """Do what a request asks for."""
    work, *arguments = request
    try:
        found: dict[str, Any] = {"result": WORK[work](*arguments)}
    except RecordError as error:
        found = {"error": str(error)}
    except Exception as error:  # a log may hold anything, and the next one is not to blame
        found = {"error": f"{arguments[0]} could not be read: {type(error).__name__}: {error}"}
    return found | {"last": _memory() > LARGEST}


if __name__ == "__main__":
    os.nice(10)  # pages, and a training beside them, come first
    answer_requests(answer)
