"""The way from the trainer to the process that records it, and back.

The trainer's thread only puts things into a queue; a thread turns them into bytes and writes them to the process,
another hears what comes back. Records come before speed: where the process can't keep up, the trainer waits, but not
for ever, and what is not written in the end is told.
"""

import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

from uptrend.bridge.trl.recorder import frame

WAITING = 8
"""How many steps may wait before the trainer waits."""
PATIENCE = 20.0
"""Seconds that the trainer waits for a process that does not take anything; then steps are left out until it does."""
DEADLINE = 60.0
"""Seconds that the rest may take once the training is over."""
PIPE = 1 << 20
"""Bytes that the pipe holds, where the system lets us choose: a step goes in at once."""
THREADS = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")

Job = tuple[str, Callable[[], tuple[Any, ...]]]


class SubprocessRecorder:
    """Hands things to the process that records, in order."""

    def __init__(
        self, hear: Callable[[dict[str, Any]], None], failed: Callable[[str, Exception], None],
        trouble: Callable[[str], None], *, patience: float = PATIENCE, deadline: float = DEADLINE,
    ) -> None:  # fmt: skip
        self._patience, self._deadline = patience, deadline
        self._hear, self._failed, self._trouble = hear, failed, trouble
        self._jobs: queue.Queue[Job | None] = queue.Queue(WAITING)
        self._open: set[int] = set()
        self._is_over = self._stands_still = False
        self._gone = threading.Event()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the process
        self._process = self._start()
        self._threads = [
            threading.Thread(target=work, name=f"uptrend-{work.__name__}", daemon=True)
            for work in (self._deliver, self._listen)
        ]
        for thread in self._threads:
            thread.start()

    def send(self, kind: str, make: Callable[[], tuple[Any, ...]], step: int | None = None) -> None:
        """Hand something over, to be turned into plain values later, on another thread."""
        if step is not None:
            self._open.add(step)
        if self._gone.is_set():
            return
        try:
            self._jobs.put((kind, make), timeout=0.001 if self._stands_still else self._patience)
            self._stands_still = False
        except queue.Full:
            if not self._stands_still:
                self._trouble(
                    f"the process that records has taken nothing for {self._patience:g} s; steps are left out"
                )
            self._stands_still = True

    def close(self) -> list[int]:
        """Let it write the rest, with a deadline; the steps that were handed over but never written come back."""
        self._is_over = True
        until = time.monotonic() + self._deadline
        with contextlib.suppress(queue.Full):
            self._jobs.put(None, timeout=self._deadline)
        self._threads[0].join(max(0.0, until - time.monotonic()))
        if self._process is not None:
            try:
                self._process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._threads[1].join(1.0)
        self._errors.close()
        return sorted(self._open)

    @property
    def pid(self) -> int | None:
        """The process that records; none where it could not be started."""
        return None if self._process is None else self._process.pid

    def _start(self) -> subprocess.Popen[bytes] | None:
        """A process by its module's name, so that a user's script is not read again and needs no guard."""
        command = [sys.executable, "-P", "-m", "uptrend.bridge.trl.recorder"]
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, bufsize=0,
                env=os.environ | THREADS,
                process_group=0,  # Ctrl-C is for the trainer; a session of its own would make being nice mean nothing
            )  # fmt: skip
        except OSError as error:
            self._gone.set()
            self._trouble(f"no process to record with could be started ({error}); nothing is recorded")
            return None
        assert process.stdin is not None
        with contextlib.suppress(ImportError, AttributeError, OSError):
            import fcntl

            fcntl.fcntl(process.stdin, fcntl.F_SETPIPE_SZ, PIPE)
        return process

    # On threads of their own

    def _deliver(self) -> None:
        while (job := self._jobs.get()) is not None:
            if self._process is None or self._gone.is_set():
                continue
            try:
                self._write(frame(job[0], *job[1]()))
            except OSError:
                self._say_gone()
            except Exception as error:
                self._failed("records", error)
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    def _write(self, data: bytes) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        left = memoryview(data)
        while left:
            left = left[os.write(self._process.stdin.fileno(), left) :]

    def _listen(self) -> None:
        if self._process is None or self._process.stdout is None:
            return
        for text in self._process.stdout:
            try:
                line = json.loads(text)
                self._open.difference_update(line.get("written", ()))
                self._hear(line)
            except Exception as error:
                self._failed("what was recorded", error)
        if not self._is_over:
            self._say_gone()

    def _say_gone(self) -> None:
        """The process is no more: say so once; at the end it is what was not written that is told."""
        if self._gone.is_set() or self._is_over or self._process is None:
            return
        self._gone.set()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        self._errors.seek(0)
        last = (self._errors.read().decode(errors="replace").strip().splitlines() or [""])[-1]
        said = f" saying {last!r}" if last else ""
        self._trouble(f"the process that records has ended (code {self._process.returncode}){said}; "
                      "nothing more is recorded")  # fmt: skip
