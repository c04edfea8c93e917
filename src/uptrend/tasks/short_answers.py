"""Short answers: one function reads them (`extract`) and one grades them (`grade`), in training and
in evaluation.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from uptrend.records import Message, Reward, Task, Tool

NUMBER = re.compile(r"-?[0-9]+")
Rule = Literal["exact", "partial", "rich"]
Place = Literal["start", "end"]
# Rewards of a wrong number: up to this distance from the answer, this much.
NEAR_MISSES: dict[Rule, tuple[tuple[float, float], ...]] = {
    "partial": ((1, 0.5), (5, 0.25)),
    "rich": ((1, 0.7), (2, 0.4), (5, 0.1), (10, -0.2), (math.inf, -0.5)),
}


def extract(completion: str, place: Place = "start") -> str:
    """Return the answer in what a model said: a number at its start, else its first word; empty
    where it is silent.

    With `place` "end", the last number of the first line that has text: what stands before it is
    how it was found.
    """
    text = completion.strip()
    if place == "end":
        numbers = NUMBER.findall(text.partition("\n")[0])
        return numbers[-1] if numbers else ""
    if number := NUMBER.match(text):
        return number.group()
    return fold(text.split(maxsplit=1)[0]) if text else ""


def fold(word: str) -> str:
    """Return a word as it is compared: case and trailing punctuation do not matter."""
    return word.lower().rstrip(".,;:!?'\")")


def is_right(completion: str, answer: str, place: Place = "start") -> bool:
    """Return True where a completion is the answer."""
    return extract(completion, place) == fold(answer)


def read_number(text: str, base: int) -> int | None:
    """Return the value of an extracted answer, or None for what is no number in this base."""
    if not NUMBER.fullmatch(text):
        return None
    try:
        return int(text, base)
    except ValueError:  # a digit that the base lacks, or more digits than Python will read
        return None


def grade(rule: Rule, completion: str, task: Task, place: Place = "start") -> Reward:
    """Return the reward of a completion under a rule; answers that are no numbers are always graded
    exactly.
    """
    correct = is_right(completion, task.answer, place)
    applied: Rule = rule if task.data.get("base") else "exact"
    value = 1.0 if correct else _grade_wrong(applied, extract(completion, place), task)
    return Reward.of(applied, value, -1.0, 1.0, correct)


def _grade_wrong(rule: Rule, said: str, task: Task) -> float:
    if rule == "exact":
        return -1.0
    value, answer = (read_number(text, task.data["base"]) for text in (said, task.answer))
    if value is None or answer is None:
        return -1.0
    for most, earned in NEAR_MISSES[rule]:
        if abs(value - answer) <= most:
            return earned
    a = task.data.get("a")
    b = task.data.get("b")
    is_other_operation = (
        isinstance(a, int) and isinstance(b, int) and value in (a + b, a - b, a * b)
    )
    return -0.5 if is_other_operation else -1.0


class OneTurn:
    """A play that ends with the first thing that the model says; silence is graded as an empty
    answer.
    """

    tools: Sequence[Tool] = ()

    def __init__(self, task: Task, rule: Rule, place: Place = "start", examples: str = "") -> None:
        first, *others = task.messages
        # Here and not in the task: whether it is held out depends on the question alone.
        self.messages = (replace(first, content=examples + first.content), *others)
        self._task = task
        self._rule = rule
        self._place = place
        self._said = ""

    async def respond(self, message: Message) -> Sequence[Message] | None:
        self._said = message.content
        return None

    async def score(self) -> Reward:
        return grade(self._rule, self._said, self._task, self._place)

    async def close(self) -> None:
        """Nothing is held."""
