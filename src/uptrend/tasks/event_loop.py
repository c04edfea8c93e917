"""The event loop on which every play of this process runs, in a thread of its own, and the time
limits of calls on it.

There is one for as long as the process lives, so that a lock or an HTTP client that a taskset keeps
works in every step. The thread that called `run` waits, and meanwhile does what would block the
loop: decoding. It is that thread and not one more, because each thread that computes has OpenMP
threads of its own, and Ctrl-C must end it.

Time limits count what a call does, not what it waits for its turn. Of 16 rewards that one thread
computes one after the other, the last is not slow; nor is a command that waits for one of a few
sandboxes. Code that makes calls wait marks the wait with `waiting`, `holding` or `in_turn`.
"""

import asyncio
import contextlib
import math
import os
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

# Seconds after which a thread that computes lets another have Python. The loop, its caller and the
# recorder hand work to each other all the time; at Python's 5 ms each would wait longer than a GPU
# takes for several tokens.
SWITCH_INTERVAL_S = 0.0005

# By process: a forked child inherits the loop without its thread, and needs another.
_LOOP_BY_PROCESS: dict[int, asyncio.AbstractEventLoop] = {}


@dataclass(frozen=True)
class CallerJob:
    """A call for the thread that waits in `run`."""

    function: Callable[[], Any]
    result: Future[Any]


# CallerJobs for a thread in `run`; None when its coroutine has ended.
CallerJobs = SimpleQueue[CallerJob | None]
_CALLER_JOBS: ContextVar[CallerJobs | None] = ContextVar("jobs of the caller", default=None)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the loop and wait for it; an interruption cancels it and waits until it
    has cleaned up.
    """
    loop = _process_loop()
    jobs = CallerJobs()
    tasks = list[asyncio.Task[T]]()  # the coroutine's, once it has begun
    context = copy_context()
    context.run(_CALLER_JOBS.set, jobs)

    def begin() -> None:
        tasks.append(loop.create_task(work))
        for _ in range(2):  # the second for an interruption that comes with the first
            tasks[0].add_done_callback(lambda _: jobs.put(None))

    loop.call_soon_threadsafe(begin, context=context)
    job = None
    try:
        while (job := jobs.get()) is not None:
            if job.result.set_running_or_notify_cancel():
                try:
                    job.result.set_result(job.function())
                except Exception as error:
                    job.result.set_exception(error)
    except BaseException as interruption:
        loop.call_soon_threadsafe(lambda: tasks[0].cancel())
        while (pending := jobs.get()) is not None:
            pending.result.cancel()
        # After the plays have ended: they must not take it for an error of theirs.
        if job is not None and not job.result.done():
            job.result.set_exception(RuntimeError(f"interrupted by {interruption!r}"))
        raise
    return tasks[0].result()


async def in_caller(job: Callable[[], T]) -> T:
    """Do something slow in the thread that waits in `run`; on any other loop, right here."""
    jobs = _CALLER_JOBS.get()
    if jobs is None:
        return job()
    return await asyncio.wrap_future(_enqueue(jobs, job))


async def in_callers_turn(job: Callable[[], T]) -> T:
    """Do a call's work as `in_caller` does; waiting for its turn does not count towards the call's
    time limit.
    """
    jobs = _CALLER_JOBS.get()
    if jobs is None:
        return job()
    return await in_turn(job, partial(_enqueue, jobs))


class Threads:
    """A few threads for what would block the loop; waiting for one of them does not count towards a
    call's time limit.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        self._pool = ThreadPoolExecutor(count, name)
        self._owner = os.getpid()

    async def do(self, job: Callable[[], T]) -> T:
        """Do a job in one of the threads."""
        return await in_turn(job, self._submit)

    async def do_after_begin(self, job: Callable[[Callable[[], None]], T]) -> T:
        """Do a job in one of the threads; it counts from when it calls what it is given."""
        return await in_turn_after_begin(job, self._submit)

    def _submit(self, job: Callable[[], T]) -> Future[T]:
        if self._owner != os.getpid():  # a fork has none of the threads
            self._pool = ThreadPoolExecutor(self._count, self._name)
            self._owner = os.getpid()
        return self._pool.submit(job)


def _enqueue(jobs: CallerJobs, function: Callable[[], T]) -> Future[T]:
    result: Future[T] = Future()
    jobs.put(CallerJob(function, result))
    return result


async def together(works: Iterable[Awaitable[T]]) -> list[T]:
    """Wait for all and return their results; if one fails, or at an interruption, cancel the others
    and wait for them.
    """
    tasks = [asyncio.ensure_future(work) for work in works]
    if not tasks:
        return []
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()  # once: a second time would cut short what it does to clean up
        await asyncio.wait(tasks)
    # Every exception is retrieved, also those that are not raised: asyncio logs the others.
    errors = [None if task.cancelled() else task.exception() for task in tasks]
    for error in errors:
        if error is not None:
            raise error
    return [task.result() for task in tasks]


def _process_loop() -> asyncio.AbstractEventLoop:
    """Return the loop of this process; start it at the first call."""
    process = os.getpid()
    if process in _LOOP_BY_PROCESS:
        return _LOOP_BY_PROCESS[process]
    new_loop = asyncio.new_event_loop()
    # Of two threads that get here at the same time, one is first.
    loop = _LOOP_BY_PROCESS.setdefault(process, new_loop)
    if loop is new_loop:
        sys.setswitchinterval(min(SWITCH_INTERVAL_S, sys.getswitchinterval()))
        threading.Thread(target=_run_forever, args=(loop,), name="plays", daemon=True).start()
    else:
        new_loop.close()
    return loop


def _run_forever(loop: asyncio.AbstractEventLoop) -> None:
    while True:
        # A play that calls sys.exit() ends its caller's run, not this loop.
        with contextlib.suppress(BaseException):
            loop.run_forever()


# Time limits


class TimeLimit:
    """Seconds that a call may take (0 for any time); they pause while it waits for its turn."""

    def __init__(self, seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._remaining_s = seconds or math.inf  # at `_counted_since`
        self._counted_since = self._loop.time()
        self._waits = 0  # a call may wait for several things side by side
        self._timeout = asyncio.timeout(None)
        self._is_enforced = False

    @property
    def has_expired(self) -> bool:
        """True if the call took longer."""
        return self._timeout.expired()

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Let waits inside pause this limit."""
        token = _TIME_LIMITS.set((*_TIME_LIMITS.get(), self))
        try:
            yield
        finally:
            _TIME_LIMITS.reset(token)

    async def enforce(self, call: Awaitable[T]) -> T:
        """Wait for the call; cancel it and raise TimeoutError if it takes longer."""
        async with self._timeout:
            self._is_enforced = True
            self._schedule()
            try:
                return await call
            finally:
                self._is_enforced = False

    def pause(self) -> None:
        """Stop counting."""
        if not self._waits:
            self._remaining_s -= self._loop.time() - self._counted_since
        self._waits += 1
        self._schedule()

    def resume(self, since: float) -> None:
        """Count from this time of the loop's clock on."""
        self._waits -= 1
        self._counted_since = since
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_enforced or self.has_expired:
            return
        if self._waits or math.isinf(self._remaining_s):
            self._timeout.reschedule(None)
        else:
            self._timeout.reschedule(self._counted_since + self._remaining_s)


# Limits of the calls that run in this context.
_TIME_LIMITS: ContextVar[tuple[TimeLimit, ...]] = ContextVar("limits", default=())


@contextmanager
def waiting() -> Iterator[None]:
    """Don't count the time inside: the call waits for its turn, or for work that others share."""
    limits = _TIME_LIMITS.get()
    for limit in limits:
        limit.pause()
    try:
        yield
    finally:
        for limit in limits:
            limit.resume(asyncio.get_running_loop().time())


@asynccontextmanager
async def holding(semaphore: asyncio.Semaphore) -> AsyncIterator[None]:
    """Acquire a semaphore; waiting for it does not count towards time limits."""
    with waiting():
        await semaphore.acquire()
    try:
        yield
    finally:
        semaphore.release()


async def in_turn(job: Callable[[], T], submit: Callable[[Callable[[], T]], Future[T]]) -> T:
    """Do a job in a thread that does one after the other; time limits count it from when its turn
    has come.
    """

    def begin_and_do(begin: Callable[[], None]) -> T:
        begin()
        return job()

    return await in_turn_after_begin(begin_and_do, submit)


async def in_turn_after_begin(
    job: Callable[[Callable[[], None]], T], submit: Callable[[Callable[[], T]], Future[T]]
) -> T:
    """Do a job as `in_turn` does; time limits count it from when it calls what it is given."""
    loop = asyncio.get_running_loop()
    limits = _TIME_LIMITS.get()

    def resume(since: float) -> None:
        for limit in limits:
            limit.resume(since)

    def begin() -> None:
        loop.call_soon_threadsafe(resume, loop.time())

    for limit in limits:
        limit.pause()
    return await asyncio.wrap_future(submit(partial(job, begin)))
