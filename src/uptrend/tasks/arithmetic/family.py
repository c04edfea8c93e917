"""A family of generated tasks: all of its problems are listed, shuffled by seed, and split by content."""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice
from typing import Any, ClassVar

from uptrend.records import Message, Task, TasksetError
from uptrend.tasks.arithmetic.play import OneTurnTaskset
from uptrend.tasks.split import may_be_held_out, shortfall

MOST_PROBLEMS = 2_000_000
"""Families are listed whole before they are shuffled; beyond this that takes minutes and gigabytes."""


class Family(OneTurnTaskset, ABC):
    """What generated families share."""

    name: ClassVar[str]
    version: ClassVar[str] = "1"
    Options: ClassVar[type[Any]]

    @abstractmethod
    def problems(self) -> Iterable[Any]:
        """Every problem that the options allow, in any order."""

    @abstractmethod
    def task(self, problem: Any) -> Task:
        """A problem as a task."""

    def train(self, count: int, exclude: Collection[str] = ()) -> list[Task]:
        """At most `count` tasks to train on, none of which may be held out."""
        left_out = frozenset(exclude)
        tasks = self._take(count, lambda task: not may_be_held_out(task.id) and task.id not in left_out)
        if len(tasks) < count:
            self._say_how_few(left_out)
        return tasks

    def heldout(self, count: int) -> list[Task]:
        """At most `count` tasks that are never trained on."""
        tasks = self._take(count, lambda task: may_be_held_out(task.id))
        if len(tasks) < count:
            self._say_how_few()
        return tasks

    def _take(self, count: int, wanted: Callable[[Task], bool]) -> list[Task]:
        return list(islice(filter(wanted, self._shuffled()), count))

    def _shuffled(self) -> Iterator[Task]:
        problems = list(islice(self.problems(), MOST_PROBLEMS + 1))
        if len(problems) > MOST_PROBLEMS:
            raise TasksetError(f"{self.name} would have more than {MOST_PROBLEMS:,} tasks; lower its high.")
        random.Random(f"{self.name}-{self.seed}").shuffle(problems)
        seen: set[str] = set()
        for task in map(self.task, problems):
            if task.id not in seen:
                seen.add(task.id)
                yield task

    def _say_how_few(self, left_out: frozenset[str] = frozenset()) -> None:
        ids = [task.id for task in self._shuffled()]
        to_train = [i for i in ids if not may_be_held_out(i)]
        excluded = len(left_out.intersection(to_train))
        also = f"; {excluded} of those to train on are left out, as the evaluation has them" if excluded else ""
        self.note(shortfall(self.name, len(to_train), len(ids) - len(to_train)) + also)


def question(text: str) -> tuple[Message, ...]:
    """A prompt as messages."""
    return (Message("user", text),)


def check_range(name: str, low: int, high: int) -> None:
    """Refuse a range with nothing in it."""
    if low > high:
        raise TasksetError(f"{name}: high = {high} should be at least {low}.")
