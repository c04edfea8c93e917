"""Processes of our own beside this one, for work that nothing else can interrupt or that must not
share an interpreter. No torch.

`WorkerProcess` answers requests, one at a time and within a time limit; `answer_requests` is the
worker's side. `SideProcess` goes beside a run and prints lines by itself. Both end with their
stdin: when the caller is gone, so are they.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

# Seconds that starting Python and importing a worker's modules may take, on a busy machine.
START_S = 60.0
# Seconds by which a worker may miss its own limit before it is killed from outside.
GRACE_S = 2.0
# Smallest limit of a request: 0 would be no limit.
MIN_LIMIT_S = 1e-6
# Bytes of an answer that are read at a time.
READ_BYTES = 1 << 20
# Seconds between measurements of the memory of a worker that computes.
MEMORY_POLL_S = 0.2


# A worker may bound its memory, and the addresses that threads and Arrow's own allocator reserve
# would count.
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "2",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}


def start_module(module: str, *arguments: str, **options: Any) -> "subprocess.Popen[bytes]":
    """Start a module of ours in a process that Ctrl-C does not reach; `options` are those of
    Popen.
    """
    # By its name, so that a user's script is not read again; -P: nor does a file of the current
    # folder take the place of a module. In a session of its own, not just a process group, `nice`
    # would have no effect.
    command = [sys.executable, "-P", "-m", module, *arguments]
    return subprocess.Popen(command, process_group=0, **options)


class SideProcess:
    """A module of ours that runs beside a run, and the JSON lines that it prints, without waiting
    for them.

    A line on its stdin requests its last lines. The run goes on without it: if it can't be started,
    or has died, there are no lines.
    """

    def __init__(self, module: str, *arguments: str) -> None:
        self._rest = b""
        self._process: subprocess.Popen[bytes] | None = None
        with contextlib.suppress(OSError):
            self._process = start_module(
                module,
                *arguments,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            assert self._process.stdout is not None
            os.set_blocking(self._process.stdout.fileno(), False)

    def read_lines(self) -> list[dict[str, Any]]:
        """Return the lines that it has printed since the last call."""
        if self._process is None or self._process.stdout is None:
            return []
        output = self._rest + (self._process.stdout.read() or b"")
        *lines, self._rest = output.split(b"\n")
        return _parse_objects(lines)

    def request_end(self) -> None:
        """Ask it to print its last lines and end."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):  # it has ended already
                self._process.stdin.write(b"\n")
                self._process.stdin.flush()

    def end(self, seconds: float) -> list[dict[str, Any]] | None:
        """Ask it to end, wait at most `seconds`, and return its last lines; None if it had to be
        killed.
        """
        self.request_end()
        process = self._process
        self._process = None
        if process is None or process.stdout is None:
            return None
        os.set_blocking(process.stdout.fileno(), True)
        try:
            output, _ = process.communicate(timeout=seconds)
        except (subprocess.TimeoutExpired, OSError):
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)  # with the processes that it started
            process.communicate()
            return None
        return _parse_objects((self._rest + output).splitlines())


def _parse_objects(lines: Iterable[bytes]) -> list[dict[str, Any]]:
    """Parse the lines that are objects: libraries may print others."""
    return [json.loads(line) for line in lines if line.startswith(b"{")]


class WorkerDied(Exception):  # noqa: N818 (what happened)
    """A worker that ended before it answered."""


class WorkerTooLarge(WorkerDied):
    """A worker that took too much memory and was killed."""


class WorkerProcess:
    """Handle of a worker, which is started at the first call, and again after it has ended. Threads
    may share it.
    """

    def __init__(self, module: str, memory_bytes: int | None = None) -> None:
        """Make a handle; a worker that takes more memory than this is killed (on Linux)."""
        self._module = module
        self._memory_bytes = memory_bytes
        self._begin()

    def _begin(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._was_killed = False
        self._end_with_handle: weakref.finalize[..., Any] | None = None

    def call(self, request: Any, seconds: float) -> dict[str, Any]:
        """Return the answer to a request, both plain JSON objects. An answer with `last = true`
        ends the worker.

        Raises TimeoutError if it takes longer, after killing the worker; WorkerDied if it ended, or
        was killed because it took too much memory.
        """
        # A fork has no worker of its own, and its copy of the lock may be held forever.
        if self._owner != os.getpid():
            self._begin()
        with self._lock:
            process = self._process
            self._was_killed = False
            if process is not None and process.poll() is None:
                try:
                    return self._exchange(process, request, seconds, seconds + GRACE_S)
                except WorkerTooLarge:
                    raise
                except WorkerDied:
                    # Perhaps before this request, which then another worker answers.
                    if self._was_killed:
                        raise
            return self._exchange(self._start(), request, seconds, seconds + GRACE_S + START_S)

    def _exchange(
        self, process: "subprocess.Popen[bytes]", request: Any, seconds: float, allowed_s: float
    ) -> dict[str, Any]:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps([seconds, request]).encode() + b"\n")
            process.stdin.flush()
            line = self._read_line(process, allowed_s)
        except (TimeoutError, WorkerTooLarge):
            _end(process, self._owner)
            raise
        except OSError:
            line = b""
        if line:
            answer: dict[str, Any] = json.loads(line)
            # Under the lock: another thread's request goes to the next worker.
            if answer.get("last"):
                _end(process, self._owner)
            return answer
        _kill_group(process)
        code = process.wait()
        if code == -signal.SIGALRM:
            raise TimeoutError
        raise WorkerDied(_describe_exit(code))

    def _read_line(self, process: "subprocess.Popen[bytes]", seconds: float) -> bytes:
        """Read an answer; kill a worker that takes too long or too much memory."""
        assert process.stdout is not None
        handle = process.stdout.fileno()
        line = bytearray()
        deadline = time.monotonic() + seconds
        while not line.endswith(b"\n"):
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                raise TimeoutError
            wait_s = remaining_s if self._memory_bytes is None else min(remaining_s, MEMORY_POLL_S)
            ready, _, _ = select.select([handle], [], [], wait_s)
            if ready:
                part = os.read(handle, READ_BYTES)
                if not part:
                    return b""
                line += part
            elif self._memory_bytes is not None:
                _check_memory(process.pid, self._memory_bytes)
        return bytes(line)

    def close(self) -> None:
        """Kill the process; the next call starts another."""
        if self._process is not None:
            _end(self._process, self._owner)

    def kill(self) -> None:
        """Kill the process, from another thread than the one that waits for its answer."""
        process = self._process
        self._was_killed = True
        if process is not None and self._owner == os.getpid():
            _kill_group(process)

    def _start(self) -> "subprocess.Popen[bytes]":
        if self._end_with_handle is not None:
            self._end_with_handle()  # closes the pipes of the one before
        self._process = start_module(
            self._module,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | ONE_THREAD,
        )
        self._end_with_handle = weakref.finalize(self, _end, self._process, self._owner)
        return self._process


def _end(process: "subprocess.Popen[bytes]", owner: int) -> None:
    if owner != os.getpid():
        return
    _kill_group(process)
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):  # a request that it never read may be in the way
                pipe.close()


def _kill_group(process: "subprocess.Popen[bytes]") -> None:
    """Kill a worker with the processes that it started."""
    # Once its end has been seen, its number may be another process's.
    if process.returncode is None:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)


def _check_memory(pid: int, limit_bytes: int) -> None:
    """Raise WorkerTooLarge if a process takes more memory; only Linux tells."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return
    if pages * os.sysconf("SC_PAGE_SIZE") > limit_bytes:
        raise WorkerTooLarge(f"it took more than {limit_bytes / 2**30:.1f} GiB of memory")


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"it ended with exit status {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    hint = ""
    if code == -signal.SIGKILL:
        hint = ", as the kernel does when memory runs out"
    return f"it was ended by {name}{hint}"


def end_with_caller() -> None:
    """Let the kernel kill this process when the thread that started it ends, however it does.

    Without it, a worker that computes would notice the end of its stdin only afterwards. Linux
    alone can do this.
    """
    set_parent_death_signal = 1  # PR_SET_PDEATHSIG
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


def answer_requests(work: Callable[[Any], Any]) -> None:
    """Answer requests until stdin ends: the worker's main function."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the caller
    # Whatever the work prints is no answer.
    answers = sys.stdout
    sys.stdout = sys.stderr
    for line in sys.stdin:
        seconds, request = json.loads(line)
        # By default the signal ends this process. That needs neither the interpreter, which may be
        # busy with arithmetic on large numbers, nor the caller, which may be gone.
        signal.setitimer(signal.ITIMER_REAL, max(seconds, MIN_LIMIT_S))
        answer = work(request)
        signal.setitimer(signal.ITIMER_REAL, 0)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
