"""Worker processes for what takes time and may hang: as many as cores, started as they are needed.

A thread for each worker waits for its answer, so that the event loop goes on. Time limits count
from when a worker has begun; one that is cancelled is killed, because nothing else stops it.
"""

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any
from weakref import WeakValueDictionary

from uptrend.records.worker_process import WorkerProcess
from uptrend.tasks.event_loop import Threads

# Memory that every worker may take, however many there are: libraries alone may take a gigabyte.
MIN_MEMORY_BYTES = 4 << 30
# Share of the machine's memory that all workers together may take. The rest is the run's.
MEMORY_SHARE = 0.8
# Limit of what a worker does before a request, such as importing a user's module, in seconds.
PREPARE_S = 600.0
# Limit of requests whose caller has one of its own, in seconds: a week.
NO_LIMIT_S = 7 * 24 * 3600.0


class WorkerPool:
    """Workers of one module; a request goes to one that is free."""

    def __init__(self, module: str) -> None:
        self._module = module
        # Processes that torchrun has started on this machine share its cores.
        n_processes = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
        self.size = max(1, count_cores() // n_processes)
        self._threads = Threads(self.size, "worker")
        self._lock = threading.Lock()
        self._free: deque[WorkerProcess] = deque()

    async def call(
        self, request: Any, seconds: float = NO_LIMIT_S, *, prepare: Any = None
    ) -> dict[str, Any]:
        """Return a worker's answer; the errors are those of `WorkerProcess.call`.

        Cancelling kills the worker. `prepare` is a request before this one, such as to import what
        it needs; neither that nor the worker's start counts towards the caller's time limit.
        """
        lease = _Lease()

        def job(begin: Callable[[], None]) -> dict[str, Any]:
            worker = self._take()
            try:
                if prepare is not None:
                    worker.call(prepare, PREPARE_S)
                begin()
                if not lease.start(worker):
                    raise asyncio.CancelledError
                return worker.call(request, seconds)
            finally:
                lease.end()
                with self._lock:
                    self._free.append(worker)

        try:
            return await self._threads.do_after_begin(job)
        except asyncio.CancelledError:
            lease.cancel()
            raise

    def _take(self) -> WorkerProcess:
        with self._lock:
            # The one that was used last: the others may never be started.
            if self._free:
                return self._free.pop()
        return WorkerProcess(self._module, memory_limit(self.size))


class _Lease:
    """One request's use of a worker, which the event loop may cancel while a thread waits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._worker: WorkerProcess | None = None
        self._is_cancelled = False

    def start(self, worker: WorkerProcess) -> bool:
        """Note that the worker begins; False if the request was cancelled before."""
        with self._lock:
            self._worker = worker
            return not self._is_cancelled

    def end(self) -> None:
        with self._lock:
            self._worker = None

    def cancel(self) -> None:
        with self._lock:
            self._is_cancelled = True
            if self._worker is not None:
                self._worker.kill()


# Tasksets share a pool, and its workers end with the last of them.
_SHARED_POOLS: "WeakValueDictionary[tuple[Hashable, ...], WorkerPool]" = WeakValueDictionary()


def shared_pool(module: str, *key: Hashable) -> WorkerPool:
    """Return this process's pool of a module's workers; another key gets other workers."""
    pool = _SHARED_POOLS.get((module, *key))
    if pool is None:
        pool = WorkerPool(module)
        _SHARED_POOLS[module, *key] = pool
    return pool


def count_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_limit(n_workers: int) -> int:
    """Return the bytes that each of some workers may take."""
    machine_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(MIN_MEMORY_BYTES, int(MEMORY_SHARE * machine_bytes / n_workers))
