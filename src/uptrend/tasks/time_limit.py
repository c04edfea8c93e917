"""Time limits of calls. They count what a call does, not what it waits for its turn.

Of 16 rewards that one thread computes one after the other, the last is not slow; nor is a command
that waits for one of a few sandboxes. Whoever makes calls wait says so with `waiting`, `holding` or
`in_turn`.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")


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
