"""`Calculate: 12 - 7 = `"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar, Literal

from uptrend.records import Task, TasksetError
from uptrend.tasks.arithmetic.family import Family, check_range, question
from uptrend.tasks.arithmetic.play import Grading

Operation = Literal["+", "-", "*"]


@dataclass(frozen=True, kw_only=True)
class ArithmeticProblems:
    """Which problems."""

    operations: tuple[Operation, ...] = ("+", "-", "*")
    """Of + - and *."""
    low: int = 0
    """The least operand."""
    high: int = 20
    """The largest operand."""


@dataclass(frozen=True, kw_only=True)
class ArithmeticOptions(ArithmeticProblems, Grading):
    """The options of `arithmetic`."""


class Arithmetic(Family):
    """Sums, differences and products of two numbers: `Calculate: 12 - 7 = `."""

    name: ClassVar[str] = "arithmetic"
    Options: ClassVar[type[Any]] = ArithmeticOptions

    def __init__(self, options: ArithmeticOptions, seed: int) -> None:
        super().__init__(options, seed)
        check_range(self.name, options.low, options.high)
        if not options.operations:
            raise TasksetError("arithmetic: operations is empty; it takes +, - and *.")

    def problems(self) -> Iterator[tuple[int, str, int]]:
        """Every pair of operands with every operation."""
        numbers = range(self.options.low, self.options.high + 1)
        return product(numbers, self.options.operations, numbers)

    def task(self, problem: tuple[int, str, int]) -> Task:
        """Harder is a larger result."""
        a, operation, b = problem
        result = {"+": a + b, "-": a - b, "*": a * b}[operation]
        data = {"a": a, "b": b, "operation": operation, "base": 10}
        prompt = f"Calculate: {a} {operation} {b} = "
        return Task(question(prompt), str(result), self.name, float(abs(result)), data)
