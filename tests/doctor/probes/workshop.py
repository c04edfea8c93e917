"""`Workshop`: a calculation whose answer is kept in a workspace, and a command that has it scored.

As small as an agent's task can be that has its reward behind a command: the first turn is the
answer, every later one a command, and the only command is `validate`. `pays` says when there is a
reward: `validate` is the fault (what was not validated earns nothing), `end` scores every rollout
when it ends.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from uptrend.records import Message, Reward, Task, Tool
from uptrend.tasks.answers import is_right
from uptrend.tasks.taskset import Script
from uptrend.tasksets.arithmetic import Arithmetic, ArithmeticOptions

COMMAND, PROMPT = "validate", "\n> "


@dataclass(frozen=True, kw_only=True)
class Options(ArithmeticOptions):
    """Those of arithmetic, and one more."""

    pays: Literal["validate", "end"] = "end"
    """What earns a reward: only what was validated, or what is kept at the end."""


class Play:
    """One rollout's workspace."""

    tools: Sequence[Tool] = ()

    def __init__(self, task: Task, pays: str) -> None:
        self.task, self.messages, self.pays = task, task.messages, pays
        self.kept: str | None = None
        self.is_validated = False

    async def respond(self, message: Message) -> Sequence[Message] | None:
        """Keep the answer, then wait for the command, as long as there are turns."""
        if self.kept is None:
            self.kept = message.content
        elif message.content.strip() == COMMAND:
            self.is_validated = True
            return None
        return [Message("tool", PROMPT)]

    async def score(self) -> Reward:
        """1 for the right result, if there is a score at all."""
        is_scored = self.is_validated or self.pays == "end"
        right = is_right(self.kept or "", self.task.data["result"])
        return Reward.of("score", float(is_scored and right), 0.0, 1.0, right)

    async def close(self) -> None:
        """Nothing is held."""


class Workshop(Arithmetic):
    """Arithmetic in a workspace, with a command that asks for the score."""

    name = "workshop"
    Options: ClassVar[type[Any]] = Options

    def task(self, problem: tuple[int, str, int]) -> Task:
        """The workspace is scored and not what is said last, so there is no gold answer to say."""
        task = super().task(problem)
        return replace(task, answer="", data={**task.data, "result": task.answer})

    def open(self, task: Task, seed: int) -> Play:  # type: ignore[override]  # noqa: ARG002 (nothing is random)
        """Begin a rollout."""
        return Play(task, self.options.pays)

    def gold(self, task: Task) -> Script:
        """Answers, and validates."""
        return _say(task.data["result"], COMMAND)

    def corrupted(self, task: Task) -> Iterable[Script]:
        """A near miss, and nothing at all, both validated."""
        return [_say(str(int(task.data["result"]) + 1), COMMAND), _say("", COMMAND)]


def _say(*words: str) -> Script:
    for word in words:
        yield Message("assistant", word)
