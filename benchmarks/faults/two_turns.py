"""`TwoTurns`: two calculations, the second of which a tool asks once the first is answered.

A task of several turns that the tiny model can play, with a tool's tokens between its turns, a
workspace that belongs to one rollout, and a scripted cheater that must fail.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

from uptrend.records import Message, Part, Reward, Task, Tool
from uptrend.tasks.answers import is_right
from uptrend.tasks.pool import make_taskset
from uptrend.tasks.taskset import Script


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of `two-turn`."""

    high: int = 15
    """The largest operand."""
    chat: bool = False
    """Whether prompts go through the chat template."""


class TwoTurns:
    """Tasks of two turns."""

    name: ClassVar[str] = "two-turn"
    version: ClassVar[str] = "1"
    Options: ClassVar[type[Any]] = Options

    def __init__(self, options: Options, seed: int) -> None:
        self.options, self.seed, self.chat = options, seed, options.chat
        self.notes: list[str] = []
        self._sums = make_taskset(
            "arithmetic", {"operations": ["+", "-"], "high": options.high}, seed
        )

    def train(self, count: int, exclude: Collection[str] = ()) -> list[Task]:
        """Pairs of training tasks."""
        return [t for t in self._pairs(self._sums.train(count + 1)) if t.id not in exclude][:count]

    def heldout(self, count: int) -> list[Task]:
        """Pairs of held-out tasks."""
        return list(self._pairs(self._sums.heldout(count + 1)))[:count]

    def open(self, task: Task, seed: int) -> "Run":  # noqa: ARG002 (nothing is random)
        """Begin a rollout."""
        return Run(task)

    def gold(self, task: Task) -> Script:
        """Answers both."""
        yield Message("assistant", task.data["first"])
        yield Message("assistant", task.answer)

    def corrupted(self, task: Task) -> Iterable[Script]:
        """One wrong, the other wrong, and nothing at all."""
        return map(_say, ((task.data["first"], "x"), ("x", task.answer), ("", "")))

    def cheaters(self, task: Task) -> Iterable[Script]:  # noqa: ARG002 (the same words try every task)
        """Asks the evaluator for the answer."""
        return [_say(("answer", "answer"))]

    def _pairs(self, tasks: Sequence[Task]) -> Iterator[Task]:
        for one, two in pairwise(tasks):
            data = {"first": one.answer, "then": two.messages[0].content}
            yield Task(one.messages, two.answer, "two-turn", one.difficulty, data)


class Run:
    """One rollout's side."""

    tools: Sequence[Tool] = ()

    def __init__(self, task: Task) -> None:
        self.task, self.messages = task, task.messages
        self.said: list[str] = []

    async def respond(self, message: Message) -> Sequence[Message] | None:
        """After the first answer, ask the second."""
        self.said.append(message.content)
        return [Message("tool", self.task.data["then"])] if len(self.said) == 1 else None

    async def score(self) -> Reward:
        """Half for each."""
        said = [*self.said, "", ""]
        first, last = (
            is_right(said[0], self.task.data["first"]),
            is_right(said[1], self.task.answer),
        )
        parts = (
            Part("first", float(first), 0.0, 1.0, 0.5),
            Part("last", float(last), 0.0, 1.0, 0.5),
        )
        return Reward(0.5 * first + 0.5 * last, 0.0, 1.0, first and last, parts)

    async def close(self) -> None:
        """Nothing is held."""


def _say(words: Sequence[str]) -> Script:
    for word in words:
        yield Message("assistant", word)
