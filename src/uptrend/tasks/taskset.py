"""The interface of a taskset: what makes tasks, plays them and scores them.

A taskset holds no state of any rollout. `open` gives a *play*, which belongs to one rollout: it says the
first messages, answers each thing that the model says until the end, and scores what happened. Playing is
asynchronous because a tool may take minutes; many plays go on at once.
"""

from collections.abc import Collection, Generator, Iterable, Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

from uptrend.records import Message, Reward, Task, Tool

Script = Generator[Message, Sequence[Message], None]
"""A scripted player: yields what the model would say, and is sent what the task answers."""


class Play(Protocol):
    """One rollout's side of a task."""

    @property
    def messages(self) -> Sequence[Message]:
        """What the model is told first."""

    @property
    def tools(self) -> Sequence[Tool]:
        """What the model may call."""

    async def respond(self, message: Message) -> Sequence[Message] | None:
        """Answer what the model said; None ends the rollout."""

    async def score(self) -> Reward:
        """What the rollout earned, after its end."""

    async def close(self) -> None:
        """Free what the play holds; called once, whatever happened."""


@runtime_checkable
class Taskset(Protocol):
    """A family of tasks, with held-out ones that never overlap with those to train on."""

    name: ClassVar[str]
    """What recipes call it."""
    version: ClassVar[str]
    """Changes when the same options would give other tasks or other rewards."""
    Options: ClassVar[type[Any]]
    """A frozen dataclass of what a recipe can set; `cli` checks `[tasks]` and `[eval]` against it."""
    chat: bool
    """Whether prompts go through the model's chat template; raw text otherwise."""
    notes: list[str]
    """What a person should know about the tasks that were made, such as a family smaller than asked for."""

    def __init__(self, options: Any, seed: int) -> None: ...

    def train(self, count: int, exclude: Collection[str] = ()) -> list[Task]:
        """At most `count` unique tasks to train on, shuffled: none held out, none with an id in `exclude`."""

    def heldout(self, count: int) -> list[Task]:
        """At most `count` unique tasks that `train` never gives, whatever its seed."""

    def open(self, task: Task, seed: int) -> Play:
        """Begin a rollout of a task."""

    def gold(self, task: Task) -> Script:
        """A scripted expert that reaches the maximum reward, on messages alone."""

    def corrupted(self, task: Task) -> Iterable[Script]:
        """Scripted players that must stay below the maximum."""
