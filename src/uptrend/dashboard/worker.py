"""A process for work that takes seconds, reading logs and judging runs, so that pages don't wait for it. No torch.

    python -m uptrend.dashboard.worker

It answers lines of JSON, `["read_log", path, ...]`, and ends with its stdin: when the server is gone, so is it.
"""

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from uptrend.dashboard import findings
from uptrend.records import RecordError

WORK = {work.__name__: work for work in (findings.read_log, findings.diagnose_run)}
# Seconds that one piece of work may take.
PATIENCE = 300.0
# Bytes of memory from which the process ends after its work; the next call starts another.
LARGEST = 400_000_000


class ReaderProcess:
    """Handle of the process; it is started when first needed, and again where it died."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def call(self, work: str, *arguments: str, patience: float = PATIENCE) -> Any:
        """Have work done and return its answer; RecordError where it failed, died or took too long."""
        with self._lock:
            process = self._process
            if process is None or process.poll() is not None:
                process = self._process = subprocess.Popen(
                    [sys.executable, "-m", "uptrend.dashboard.worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL, process_group=0, bufsize=0,
                )  # fmt: skip
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                process.stdin.write(json.dumps([work, *arguments]).encode() + b"\n")
                line = _read_line(process.stdout.fileno(), patience)
            except TimeoutError:
                self.close()
                raise RecordError(f"Reading {arguments[0]} took more than {patience:.0f} seconds.") from None
            except OSError:
                line = b""
            if not line:
                self.close()
                raise RecordError(f"Reading {arguments[0]} failed: it may need more memory than there is.")
            answer = json.loads(line)
            if answer["last"]:
                self.close()
        if "error" in answer:
            raise RecordError(str(answer["error"]))
        return answer["result"]

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def _read_line(handle: int, patience: float) -> bytes:
    line, until = bytearray(), time.monotonic() + patience
    while not line.endswith(b"\n"):
        ready, _, _ = select.select([handle], [], [], max(0.0, until - time.monotonic()))
        if not ready:
            raise TimeoutError
        part = os.read(handle, 1 << 20)
        if not part:
            return b""
        line += part
    return bytes(line)


def _memory() -> int:
    """Return the bytes that this process holds; 0 where the system does not tell."""
    # Not the most that it held: that of a process just started is its parent's.
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    """Answer requests until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the server's
    os.nice(10)  # pages, and a training beside them, come first
    answers, sys.stdout = sys.stdout, sys.stderr  # what a reader prints is no answer
    for line in sys.stdin:
        work, *arguments = json.loads(line)
        try:
            answer: dict[str, Any] = {"result": WORK[work](*arguments)}
        except RecordError as error:
            answer = {"error": str(error)}
        except Exception as error:  # a log may hold anything, and the next one is not to blame
            answer = {"error": f"{arguments[0]} could not be read: {type(error).__name__}: {error}"}
        is_last = _memory() > LARGEST  # what a long run took is given back
        answers.write(json.dumps(answer | {"last": is_last}) + "\n")
        answers.flush()
        if is_last:
            return


if __name__ == "__main__":
    main()
