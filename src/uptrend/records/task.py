"""A task and what is said in it: the nouns that tasksets, players and records share."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Speaker = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True)
class ToolCall:
    """A tool that the model asked for."""

    name: str
    """Which tool."""
    arguments: Mapping[str, Any]
    """Its arguments by name."""


@dataclass(frozen=True)
class Message:
    """One thing that was said."""

    role: Speaker
    """Who said it."""
    content: str
    """The text, as the model wrote it or shall read it; calls that could be read are not in it."""
    calls: tuple[ToolCall, ...] = ()
    """The tools that an assistant's message asks for."""
    problem: str = ""
    """What was wrong with a call that the model tried to make and that could not be read."""


@dataclass(frozen=True)
class Tool:
    """A tool that a task offers."""

    name: str
    """What the model calls it."""
    description: str
    """What it does, for the model to read."""
    parameters: Mapping[str, Any]
    """Its arguments as a JSON schema."""


@dataclass(frozen=True)
class Task:
    """One problem with a way to check an answer."""

    messages: tuple[Message, ...]
    """What the model is told first."""
    answer: str
    """The gold answer."""
    family: str
    """What kind of task it is, for reports by kind."""
    difficulty: float = 0.0
    """Larger is harder, comparable within a family."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """What its taskset needs to play and score it; plain JSON values."""
    id: str = ""
    """A hash of the messages, filled in by itself: equal questions have equal ids in every taskset."""

    def __post_init__(self) -> None:
        if not self.id:
            object.__setattr__(self, "id", task_id(self.messages))


def task_id(messages: Sequence[Message]) -> str:
    """The content hash by which a task is known: the same question has the same id wherever it comes from."""
    said = [[m.role, m.content] for m in messages]
    return hashlib.sha256(json.dumps(said, ensure_ascii=False).encode()).hexdigest()[:16]


def tasks_hash(tasks: Sequence[Task]) -> str:
    """One hash over a list of tasks with their answers and all that they are played with, in order."""
    digest = hashlib.sha256()
    for task in tasks:
        data = json.dumps(task.data, sort_keys=True, ensure_ascii=False)
        digest.update(f"{task.id}\0{task.answer}\0{data}\0".encode())
    return digest.hexdigest()[:16]
