"""`Is 3 greater than 7? Answer yes or no: `"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

from uptrend.records import Task
from uptrend.tasks.arithmetic.family import Family, check_range, question
from uptrend.tasks.arithmetic.play import Grading


@dataclass(frozen=True, kw_only=True)
class ComparisonProblems:
    """Which problems."""

    low: int = 0
    """The least number."""
    high: int = 20
    """The largest number."""


@dataclass(frozen=True, kw_only=True)
class ComparisonOptions(ComparisonProblems, Grading):
    """The options of `comparison`."""


class ComparisonFamily(Family):
    """Which of two numbers is greater: `Is 3 greater than 7? Answer yes or no: `."""

    name: ClassVar[str] = "comparison"
    Options: ClassVar[type[Any]] = ComparisonOptions

    def __init__(self, options: ComparisonOptions, seed: int) -> None:
        super().__init__(options, seed)
        check_range(self.name, options.low, options.high)

    def problems(self) -> Iterator[tuple[int, int]]:
        """Every pair."""
        numbers = range(self.options.low, self.options.high + 1)
        return product(numbers, numbers)

    def task(self, problem: tuple[int, int]) -> Task:
        """Harder is nearer together."""
        a, b = problem
        prompt = f"Is {a} greater than {b}? Answer yes or no: "
        answer = "yes" if a > b else "no"
        return Task(question(prompt), answer, self.name, float(-abs(a - b)), {"a": a, "b": b})
