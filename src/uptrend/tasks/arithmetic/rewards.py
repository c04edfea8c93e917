"""Three rules that grade an answer, each from -1 to 1. Only the exact answer reaches 1.

A number that is right but written otherwise ("007" for "7") counts as off by one where distance matters.
Tasks whose answers are no numbers are graded exactly, whatever the rule.
"""

from typing import Literal

from uptrend.records import Reward, Task
from uptrend.tasks.arithmetic.answers import extract, fold, read_number

Rule = Literal["exact", "partial", "rich"]

RICH_STEPS = ((1, 0.7), (2, 0.4), (5, 0.1), (10, -0.2))
"""The rich rule: up to this distance, this much."""


def grade(rule: Rule, completion: str, task: Task) -> Reward:
    """What a completion earns under a rule."""
    said = extract(completion)
    correct = said == fold(task.answer)
    applied: Rule = rule if task.data.get("base") else "exact"
    value = 1.0 if correct else {"exact": _exact, "partial": _partial, "rich": _rich}[applied](said, task)
    return Reward.of(applied, value, -1.0, 1.0, correct)


def _exact(said: str, task: Task) -> float:  # noqa: ARG001 (all rules take the same)
    return -1.0


def _partial(said: str, task: Task) -> float:
    distance = _distance(said, task)
    if distance is None:
        return -1.0
    if distance <= 1:
        return 0.5
    if distance <= 5:
        return 0.25
    return -0.5 if int(said) in _results_of_operations(task) else -1.0


def _rich(said: str, task: Task) -> float:
    distance = _distance(said, task)
    if distance is None:
        return -1.0
    return next((value for most, value in RICH_STEPS if distance <= most), -0.5)


def _distance(said: str, task: Task) -> int | None:
    base = task.data["base"]
    value, answer = read_number(said, base), read_number(task.answer, base)
    return None if value is None or answer is None else abs(value - answer)


def _results_of_operations(task: Task) -> set[int]:
    a, b = task.data.get("a"), task.data.get("b")
    if not isinstance(a, int) or not isinstance(b, int):
        return set()
    return {a + b, a - b, a * b}
