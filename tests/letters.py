"""A taskset that any model can play: say letters. Options make it fail or take several turns."""

# ruff: noqa: ARG002

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from uptrend.records import Message, Reward, Task, Tool
from uptrend.tasks.taskset import Script


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options; every fourth task is held out. 0 is never for `dead`, `infinite` and `fails`."""

    count: int = 40
    turns: int = 1
    opening: str = "Say letters"
    times: int = 1
    """Times that the prompt is said, for long ones."""
    dead: int = 0
    """Every so many tasks, all answers earn the same."""
    infinite: int = 0
    """Every so many tasks, a rollout may earn infinity."""
    fails: int = 0
    """Every so many tasks, the score fails."""
    chat: bool = False
    by_turn: bool = False
    """Give each turn its own reward."""


class Letters:
    """Rewards the share of letters in what is said."""

    name: ClassVar[str] = "letters"
    version: ClassVar[str] = "1"
    Options: ClassVar[type[Any]] = Options

    def __init__(self, options: Options, seed: int) -> None:
        self.options, self.seed, self.chat = options, seed, options.chat
        self.notes: list[str] = []

    def train(self, count: int, exclude: Collection[str] = ()) -> list[Task]:
        tasks = (self._task(i) for i in range(self.options.count) if i % 4)
        return [task for task in tasks if task.id not in exclude][:count]

    def heldout(self, count: int) -> list[Task]:
        return [self._task(i) for i in range(0, self.options.count, 4)][:count]

    def open(self, task: Task, seed: int) -> "Letter":
        return Letter(task, self.options)

    def gold(self, task: Task) -> Script:
        for _ in range(self.options.turns):
            yield Message("assistant", "abc")

    def corrupted(self, task: Task) -> Iterable[Script]:
        return ()

    def _task(self, number: int) -> Task:
        opening = (
            self.options.opening if self.options.times == 1 else f"{number} " * self.options.times
        )
        prompt = (Message("user", f"{opening}, {number}: "),)
        return Task(prompt, "abc", "even" if number % 2 == 0 else "odd", 0.0, {"number": number})


class Letter:
    """One rollout's side."""

    tools: Sequence[Tool] = ()

    def __init__(self, task: Task, options: Options) -> None:
        self.messages, self._number, self._options = task.messages, task.data["number"], options
        self._said: list[str] = []

    async def respond(self, message: Message) -> Sequence[Message] | None:
        self._said.append(message.content)
        return None if len(self._said) == self._options.turns else [Message("user", " More? ")]

    async def score(self) -> Reward:
        dead, infinite, fails = (
            every and self._number % every == 0
            for every in (self._options.dead, self._options.infinite, self._options.fails)
        )
        if fails:
            raise RuntimeError("the scorer fails")
        said = "".join(self._said)
        share = 0.0 if dead else sum(c.isalpha() for c in said) / max(1, len(said))
        if infinite:
            share = math.inf if share > 0.5 else 0.0
        if self._options.by_turn:
            turns = tuple(sum(c.isalpha() for c in said) / max(1, len(said)) for said in self._said)
            return Reward(sum(turns), 0.0, float(self._options.turns), False, turns=turns)
        return Reward.of("letters", share, 0.0, 1.0, share > 0.6)

    async def close(self) -> None:
        pass
