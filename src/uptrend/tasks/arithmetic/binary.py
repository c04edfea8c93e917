"""`Convert 5 to binary: `"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from uptrend.records import Task
from uptrend.tasks.arithmetic.family import Family, check_range, question
from uptrend.tasks.arithmetic.play import Grading


@dataclass(frozen=True, kw_only=True)
class BinaryProblems:
    """Which problems."""

    high: int = 15
    """The largest number; the least is 0."""


@dataclass(frozen=True, kw_only=True)
class BinaryOptions(BinaryProblems, Grading):
    """The options of `binary`."""


class Binary(Family):
    """Numbers in base two: `Convert 5 to binary: `."""

    name: ClassVar[str] = "binary"
    Options: ClassVar[type[Any]] = BinaryOptions

    def __init__(self, options: BinaryOptions, seed: int) -> None:
        super().__init__(options, seed)
        check_range(self.name, 0, options.high)

    def problems(self) -> Iterable[int]:
        """Every number."""
        return range(self.options.high + 1)

    def task(self, problem: int) -> Task:
        """Harder is larger."""
        prompt = f"Convert {problem} to binary: "
        return Task(question(prompt), f"{problem:b}", self.name, float(problem), {"n": problem, "base": 2})
