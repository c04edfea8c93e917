"""Several families in one taskset, in given shares."""

import random
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from uptrend.config.load import nearest
from uptrend.records import Task, TasksetError
from uptrend.tasks.arithmetic import (
    Arithmetic,
    ArithmeticProblems,
    Binary,
    BinaryProblems,
    ComparisonFamily,
    ComparisonProblems,
    Counting,
    CountingProblems,
    Family,
    Grading,
)
from uptrend.tasks.taskset import Play, Script

FAMILIES: dict[str, type[Family]] = {
    "arithmetic": Arithmetic,
    "counting": Counting,
    "comparison": ComparisonFamily,
    "binary": Binary,
}


@dataclass(frozen=True, kw_only=True)
class MixedOptions(Grading):
    """The options of `mixed`; reward and chat hold for all families."""

    shares: dict[str, float] = field(default_factory=lambda: {"arithmetic": 0.5, "counting": 0.25, "comparison": 0.25})
    """Share of each family; they need not add up to 1."""
    arithmetic: ArithmeticProblems = field(default_factory=ArithmeticProblems)
    """Options of arithmetic, as in `[tasks.arithmetic] high = 10`."""
    counting: CountingProblems = field(default_factory=CountingProblems)
    comparison: ComparisonProblems = field(default_factory=ComparisonProblems)
    binary: BinaryProblems = field(default_factory=BinaryProblems)


class Mixed:
    """Arithmetic, counting, comparison and binary together, in given shares."""

    name: ClassVar[str] = "mixed"
    version: ClassVar[str] = "1"
    Options: ClassVar[type[Any]] = MixedOptions

    def __init__(self, options: MixedOptions, seed: int) -> None:
        check_shares(options.shares)
        self.options, self.seed = options, seed
        self.chat: bool = options.chat
        self.notes: list[str] = []
        self._families = {name: self._family(name) for name, share in options.shares.items() if share > 0}

    def train(self, count: int, exclude: Collection[str] = ()) -> list[Task]:
        """Tasks to train on, in the shares; a family that is too small gives what it has."""
        return self._draw(count, lambda family, part: family.train(part, exclude))

    def heldout(self, count: int) -> list[Task]:
        """Tasks that are never trained on, in the shares."""
        return self._draw(count, lambda family, part: family.heldout(part))

    def open(self, task: Task, seed: int) -> Play:
        """Begin a rollout of a task of any family."""
        return self._families[task.family].open(task, seed)

    def gold(self, task: Task) -> Script:
        """As its family does."""
        return self._families[task.family].gold(task)

    def corrupted(self, task: Task) -> Iterable[Script]:
        """As its family does."""
        return self._families[task.family].corrupted(task)

    def cheaters(self, task: Task) -> Iterable[Script]:
        """As its family does."""
        return self._families[task.family].cheaters(task)

    def _family(self, name: str) -> Family:
        cls = FAMILIES[name]
        problems = asdict(getattr(self.options, name))
        return cls(cls.Options(**problems, reward=self.options.reward, chat=self.options.chat), self.seed)

    def _draw(self, count: int, take: Callable[[Family, int], list[Task]]) -> list[Task]:
        parts = apportion(count, {name: self.options.shares[name] for name in self._families})
        tasks = [task for name, part in parts.items() for task in take(self._families[name], part)]
        random.Random(f"{self.name}-{self.seed}").shuffle(tasks)
        said = [note for family in self._families.values() for note in family.notes]
        self.notes = list(dict.fromkeys([*self.notes, *said]))
        return tasks


def check_shares(shares: Mapping[str, float]) -> None:
    """Refuse shares that name no family, are negative, or leave nothing."""
    for name, share in shares.items():
        if name not in FAMILIES:
            near = nearest(name, FAMILIES) or f" There are {', '.join(FAMILIES)}."
            raise TasksetError(f"mixed: shares.{name} names no family.{near}")
        if share < 0:
            raise TasksetError(f"mixed: shares.{name} = {share} should be 0 or more.")
    if not sum(shares.values()) > 0:
        raise TasksetError("mixed: shares leave nothing; at least one should be above 0.")


def apportion(count: int, shares: Mapping[str, float]) -> dict[str, int]:
    """Divide a count by shares: each its quotient rounded down, the rest to the largest remainders."""
    whole = sum(shares.values())
    exact = {name: count * share / whole for name, share in shares.items()}
    parts = {name: int(quota) for name, quota in exact.items()}
    by_remainder = sorted(exact, key=lambda name: parts[name] - exact[name])
    for name in by_remainder[: count - sum(parts.values())]:
        parts[name] += 1
    return parts
