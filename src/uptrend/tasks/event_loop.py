"""The event loop on which every play of this process runs, in a thread of its own, and the time
limits of calls on it.

There is one for as long as the process lives, so that a lock or an HTTP client that a taskset keeps
works in every step. The thread that asked for the plays waits, and meanwhile does what would block
the loop: decoding. It is that thread and not one more, because each thread that computes has OpenMP
threads of its own, and Ctrl-C must end it.

Time limits count what a call does, not what it waits for its turn. Of 16 rewards that one thread
computes one after the other, the last is not slow; nor is a command that waits for one of a few
sandboxes. Whoever makes calls wait says so with `waiting`, `holding` or `in_turn`.
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
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")
Jobs = SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]

# By process: a forked child inherits the loop without its thread, and needs another.
_LOOPS: dict[int, asyncio.AbstractEventLoop] = {}
_CALLER: ContextVar[Jobs | None] = ContextVar("caller", default=None)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the loop and wait for it; an interruption cancels it and waits until it
    has cleaned up.
    """
    loop = _loop()
    jobs = Jobs()
    tasks = list[asyncio.Task[T]]()
    context = copy_context()
    context.run(_CALLER.set, jobs)

    def begin() -> None:
        tasks.append(loop.create_task(work))
        for _ in range(2):  # the second for an interruption that comes with the first
            tasks[0].add_done_callback(lambda _: jobs.put(None))

    loop.call_soon_threadsafe(begin, context=context)
    given = None
    try:
        while (given := jobs.get()) is not None:
            done, job = given
            if done.set_running_or_notify_cancel():
                try:
                    done.set_result(job())
                except Exception as error:
                    done.set_exception(error)
    except BaseException as interruption:
        loop.call_soon_threadsafe(lambda: tasks[0].cancel())
        while (waiting := jobs.get()) is not None:
            waiting[0].cancel()
        # After the plays have ended: they must not take it for an error of theirs.
        if given is not None and not given[0].done():
            given[0].set_exception(RuntimeError(f"interrupted by {interruption!r}"))
        raise
    return tasks[0].result()


async def in_caller(job: Callable[[], T]) -> T:
    """Do something slow in the thread that waits in `run`; on any other loop, right here."""
    jobs = _CALLER.get()
    return job() if jobs is None else await asyncio.wrap_future(_enqueue(jobs, job))


async def in_callers_turn(job: Callable[[], T]) -> T:
    """Do a call's work as `in_caller` does; what it waits there does not count towards the call's
    time limit.
    """
    jobs = _CALLER.get()
    return job() if jobs is None else await in_turn(job, partial(_enqueue, jobs))


class Threads:
    """A few threads for what would block the loop; a call's wait for one of them does not count as
    its time.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        self._pool = ThreadPoolExecutor(count, name)
        self._owner = os.getpid()

    async def do(self, job: Callable[[], T]) -> T:
        """Do a job in one of the threads."""
        if self._owner != os.getpid():  # a fork has none of them
            self._pool = ThreadPoolExecutor(self._count, self._name)
            self._owner = os.getpid()
        return await in_turn(job, self._pool.submit)


def _enqueue(jobs: Jobs, job: Callable[[], T]) -> Future[T]:
    done: Future[T] = Future()
    jobs.put((done, job))
    return done


async def together(works: Iterable[Awaitable[T]]) -> list[T]:
    """Wait for all; where one fails or somebody interrupts, the others are cancelled and waited
    for.
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
    failed = [
        error for task in tasks if not task.cancelled() and (error := task.exception()) is not None
    ]
    if failed:
        raise failed[0]
    return [task.result() for task in tasks]


# Seconds after which a thread that computes lets another have Python. The loop, its caller and the
# recorder hand work to each other all the time; at Python's 5 ms each would wait longer than a GPU
# takes for several tokens.
SWITCH = 0.0005


def _loop() -> asyncio.AbstractEventLoop:
    if (loop := _LOOPS.get(os.getpid())) is None:
        made = asyncio.new_event_loop()
        # of two threads that come at once, one is first
        loop = _LOOPS.setdefault(os.getpid(), made)
        if loop is made:
            sys.setswitchinterval(min(SWITCH, sys.getswitchinterval()))
            threading.Thread(target=_forever, args=(loop,), name="plays", daemon=True).start()
        else:
            made.close()
    return loop


def _forever(loop: asyncio.AbstractEventLoop) -> None:
    while True:
        # a play that calls sys.exit() ends its caller's run, not this loop
        with contextlib.suppress(BaseException):
            loop.run_forever()


# Time limits


class TimeLimit:
    """Seconds that a call may take (0 for any time); they pause while it waits for its turn."""

    def __init__(self, seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._left, self._since = seconds or math.inf, self._loop.time()
        self._waits = 0  # a call may wait for several things side by side
        self._timeout = asyncio.timeout(None)
        self._is_enforced = False

    @property
    def has_expired(self) -> bool:
        """True where the call took longer."""
        return self._timeout.expired()

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Let waits inside pause this limit."""
        token = _LIMITS.set((*_LIMITS.get(), self))
        try:
            yield
        finally:
            _LIMITS.reset(token)

    async def enforce(self, call: Awaitable[T]) -> T:
        """Wait for the call; cancel it and raise TimeoutError where it takes longer."""
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
            self._left -= self._loop.time() - self._since
        self._waits += 1
        self._schedule()

    def resume(self, since: float) -> None:
        """Count from this time of the loop's clock on."""
        self._waits -= 1
        self._since = since
        self._schedule()

    def _schedule(self) -> None:
        if self._is_enforced and not self.has_expired:
            is_off = self._waits or math.isinf(self._left)
            self._timeout.reschedule(None if is_off else self._since + self._left)


# Limits of the calls that run in this context.
_LIMITS: ContextVar[tuple[TimeLimit, ...]] = ContextVar("limits", default=())


@contextmanager
def waiting() -> Iterator[None]:
    """Don't count the time inside: the call waits for its turn, or for work that others share."""
    limits = _LIMITS.get()
    for limit in limits:
        limit.pause()
    try:
        yield
    finally:
        for limit in limits:
            limit.resume(asyncio.get_running_loop().time())


@asynccontextmanager
async def holding(gate: asyncio.Semaphore) -> AsyncIterator[None]:
    """Hold one of a gate's places; waiting for it does not count."""
    with waiting():
        await gate.acquire()
    try:
        yield
    finally:
        gate.release()


async def in_turn(job: Callable[[], T], submit: Callable[[Callable[[], T]], Future[T]]) -> T:
    """Do something in a thread that does one thing after the other; it counts from when its turn
    has come.
    """
    loop = asyncio.get_running_loop()
    limits = _LIMITS.get()

    def resume(since: float) -> None:
        for limit in limits:
            limit.resume(since)

    def begin() -> T:
        loop.call_soon_threadsafe(resume, loop.time())
        return job()

    for limit in limits:
        limit.pause()
    return await asyncio.wrap_future(submit(begin))
