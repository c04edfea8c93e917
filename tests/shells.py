"""A taskset whose turns are commands that take time; options make its sandbox fail, or the task
itself.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from letters import Letter, Letters
from letters import Options as LetterOptions
from uptrend.records import Executed, Message, SandboxFailed, Task


@dataclass(frozen=True, kw_only=True)
class Options(LetterOptions):
    """Options of the letters, and these."""

    turns: int = 3
    seconds: float = 0.0
    """Seconds that a command of task 31 takes; of others in proportion."""
    sandbox_fails: int = 0
    """Attempts at a task, of every fifth one, whose sandbox fails in the second turn."""
    raises: int = 0
    """Every so many tasks, the second turn raises an error of the task's own."""


class Shells(Letters):
    """Rewards letters; what a command prints depends on it and on the seed that the task was opened
    with.
    """

    name: ClassVar[str] = "shells"
    Options: ClassVar[type[Any]] = Options
    word: ClassVar[str] = "out"
    """Begin of every output: another one is another sandbox."""

    def __init__(self, options: Options, seed: int) -> None:
        super().__init__(options, seed)
        self.opened: Counter[int] = Counter()

    def open(self, task: Task, seed: int) -> "Shell":
        self.opened[task.data["number"]] += 1
        return Shell(task, self.options, seed, self.opened[task.data["number"]])  # type: ignore[arg-type]


class Shell(Letter):
    """One rollout's side."""

    def __init__(self, task: Task, options: Options, seed: int, attempt: int) -> None:
        super().__init__(task, options)
        self._shell, self._random, self._attempt = options, random.Random(seed), attempt
        self.commands: list[Executed] = []

    async def respond(self, message: Message) -> Sequence[Message] | None:
        turn = len(self._said)
        if turn == 1 and self._number % 5 == 0 and self._attempt <= self._shell.sandbox_fails:
            raise SandboxFailed("The sandbox has died.")
        if turn == 1 and self._shell.raises and self._number % self._shell.raises == 0:
            raise KeyError("no file")
        await asyncio.sleep(self._shell.seconds * self._number / 31)
        goes_on = await super().respond(message) is not None
        code = len(message.content) % 2
        score = None if goes_on else round(self._random.random(), 3)
        self.commands.append(
            Executed(turn, message.content, 0.25, code, "time" * (turn == 2), score, code == 1)
        )
        return (
            [Message("user", f"{Shells.word} {self._random.randrange(1000)} \x1b[31mred\x1b[0m ")]
            if goes_on
            else None
        )
