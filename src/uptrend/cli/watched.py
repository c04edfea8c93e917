"""How many of the tasks are done, on stderr, while an evaluation plays all of them at once."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from uptrend.records import Task
from uptrend.tasks.pool import HeldOut
from uptrend.tasks.taskset import Taskset


class _Watched:
    """Whatever it holds, but for the one method that it looks at."""

    def __init__(self, held: Any, done: Callable[[], None]) -> None:
        self._held, self._done = held, done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._held, name)


class _Taskset(_Watched):
    def open(self, task: Task, seed: int) -> "_Play":
        return _Play(self._held.open(task, seed), self._done)


class _Play(_Watched):
    async def close(self) -> None:
        """Called once a rollout, whatever happened: then it is done."""
        try:
            await self._held.close()
        finally:
            self._done()


@contextmanager
def watched(held_out: HeldOut, rollouts: int) -> Iterator[HeldOut]:
    """The same tasks, which show how many of their rollouts are done where stderr is a terminal."""
    if not sys.stderr.isatty():
        yield held_out
        return
    columns = (TextColumn("playing"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("", total=rollouts)
        taskset = _Taskset(held_out.taskset, lambda: progress.advance(bar))
        yield replace(held_out, taskset=cast(Taskset, taskset))
