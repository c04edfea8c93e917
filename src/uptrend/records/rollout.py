"""The nouns of training: task, message, reward, rollout, evaluation.

A rollout has one sequence of tokens where its history is only appended to, several where a chat
template rewrites it.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from collections.abc import Sequence as Several
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Bytes = NDArray[np.int8]
Flags = NDArray[np.bool_]
Speaker = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True)
class ToolCall:
    """A tool that the model asked for."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Message:
    """One thing that was said."""

    role: Speaker
    content: str
    """The text, as the model wrote it or shall read it; calls that could be read are not in it."""
    calls: tuple[ToolCall, ...] = ()
    problem: str = ""
    """The fault of a call that the model tried to make and that could not be read."""


def find_model_messages(roles: Several[str], turns: int | None) -> list[int]:
    """Return the places of the model's own messages, as many as its turns: a prompt may hold others
    as examples.

    None for a number of turns that is not known: then every message of an assistant counts.
    """
    places = [place for place, role in enumerate(roles) if role == "assistant"]
    return places if turns is None else places[max(0, len(places) - turns) :]


@dataclass(frozen=True)
class Tool:
    """A tool that a task offers."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """Its arguments as a JSON schema."""


@dataclass(frozen=True)
class Task:
    """One problem with a way to check an answer."""

    messages: tuple[Message, ...]
    answer: str
    family: str
    difficulty: float = 0.0
    """Larger is harder, comparable within a family."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """Values that its taskset needs to play and score it: plain JSON, and what has a text of its
    own, such as dates.
    """
    id: str = ""
    """A hash of the messages, filled in by itself: equal questions have equal ids in every
    taskset.
    """

    def __post_init__(self) -> None:
        if not self.id:
            object.__setattr__(self, "id", task_id(self.messages))


def task_id(messages: Several[Message]) -> str:
    """Return the content hash of a question: the same question has the same id wherever it comes
    from.
    """
    said = [[m.role, m.content] for m in messages]
    return hashlib.sha256(json.dumps(said, ensure_ascii=False).encode()).hexdigest()[:16]


def tasks_hash(tasks: Several[Task]) -> str:
    """Return one hash over a list of tasks with their answers and all that they are played with, in
    order.
    """
    digest = hashlib.sha256()
    for task in tasks:
        data = json.dumps(task.data, sort_keys=True, ensure_ascii=False, default=str)
        digest.update(f"{task.id}\0{task.answer}\0{data}\0".encode())
    return digest.hexdigest()[:16]


# Name of a part of the reward that is not the task's: the penalty of `sampling.overlong`.
OVERLONG_PART = "overlong"


@dataclass(frozen=True)
class Part:
    """One component of a reward."""

    name: str
    value: float
    low: float
    """NaN where its bounds are unknown."""
    high: float
    weight: float = 1.0


@dataclass(frozen=True)
class Reward:
    """The score of one rollout, between `low` and `high`."""

    total: float
    low: float
    """NaN where nobody said what the bounds are."""
    high: float
    """A gold answer reaches it."""
    correct: bool
    """True where the answer is right, however it is graded: held-out accuracy counts these."""
    parts: tuple[Part, ...] = ()
    turns: tuple[float, ...] = ()
    """Rewards by turn, which add up to the total; empty where the task gives none."""

    def __post_init__(self) -> None:
        if self.turns and not math.isclose(sum(self.turns), self.total, rel_tol=1e-6, abs_tol=1e-6):
            raise ValueError(
                f"rewards by turn {self.turns} do not add up to the total {self.total}"
            )

    @property
    def is_best(self) -> bool:
        """True at the upper bound, up to rounding of a sum; where it is unknown, for a right
        answer.
        """
        return self.correct if math.isnan(self.high) else self.total >= self.high - 1e-9

    @property
    def is_lowest(self) -> bool:
        """True at the lower bound; never where it is unknown."""
        return self.total <= self.low + 1e-6

    @classmethod
    def of(cls, name: str, value: float, low: float, high: float, correct: bool) -> "Reward":
        return cls(value, low, high, correct, (Part(name, value, low, high),))


class Role(IntEnum):
    """Author of a token."""

    PROMPT = 0
    MODEL = 1
    TOOL = 2


class Ending(StrEnum):
    """End of a rollout."""

    STOP_TOKEN = "stop-token"
    STOP_TEXT = "stop-text"
    LENGTH = "length"
    TURN_LIMIT = "turn-limit"
    TIME_LIMIT = "time-limit"
    CONTEXT_FULL = "context-full"
    TOOL_ERROR = "tool-error"
    TASK_ERROR = "task-error"


# Endings at a limit: `learning.mask_truncated` leaves such rollouts out of the loss.
LIMIT_ENDINGS = (Ending.LENGTH, Ending.CONTEXT_FULL, Ending.TURN_LIMIT, Ending.TIME_LIMIT)


def boundary_of(error: str | None) -> str:
    """Return where a rollout failed: open, prompt, turn N, respond, score, close or gold; empty
    where nothing did.
    """
    return (error or "").partition(":")[0]


@dataclass(frozen=True)
class Sequence:
    """One row of token columns; the learner's columns are empty until an update has seen it."""

    ids: Ints
    turns: Ints
    """The turn that each token belongs to; the first prompt and the first answer are turn 0."""
    roles: Bytes
    versions: Ints
    """The policy version that sampled each token; -1 where it was not sampled."""
    sampler: Floats
    """The sampler's log-probability at the sampling temperature; NaN where not sampled."""
    weights: Floats | None = None
    """Each token's weight in the loss: 0 where it is not trained."""
    attended: Flags | None = None
    """True where attention could see the token."""
    advantages: Floats | None = None
    learner: Floats | None = None
    """The learner's log-probability before the update, at the sampling temperature; NaN where not
    sampled.
    """
    reference: Floats | None = None
    """The reference model's log-probability; NaN where there is none."""
    support: tuple[Ints, Ints] | None = None
    """Tokens that each one was drawn from: their number by token, and all their ids in a row.

    None where all could be drawn, and 0 where nothing was sampled: top-p, top-k and min-p leave
    tokens out.
    """

    @property
    def sampled(self) -> Flags:
        # numpy compares with a plain int ten times faster
        return np.asarray(self.roles == int(Role.MODEL))


@dataclass(frozen=True)
class Executed:
    """One command of a rollout that ran in a sandbox."""

    turn: int
    """The model's message that gave it, from 0."""
    command: str
    seconds: float
    code: int
    """Exit status; negative for a signal."""
    stopped: str = ""
    """The bound that ended it: time, memory, processes, disk, files or output; empty where it ended
    by itself.
    """
    score: float | None = None
    """Validation or final score that came of it; None where it gave none."""
    error: bool = False
    """True where the task calls it an error: bad syntax, a non-zero exit, a refused edit."""
    said: str = ""
    """Output that the model did not read: of a last command, or why a submission has no score."""


@dataclass(frozen=True)
class Rollout:
    """One attempt at one task."""

    step: int
    """The step that sampled it; 0 for an evaluation before the first step."""
    group: str
    index: int
    task: str
    family: str
    answer: str
    seed: int
    messages: tuple[Message, ...]
    """All that was said, the task's first messages included."""
    sequences: tuple[Sequence, ...]
    reward: Reward | None
    """Its reward; None where it could not be scored, and then `error` says why."""
    ended: Ending
    error: str | None
    """The boundary that failed, a colon and the error (`boundary_of` reads it); None where nothing
    failed.
    """
    seconds: float
    kept: bool = True
    """False where its group was dead and another was sampled in its place."""
    commands: tuple[Executed, ...] = ()
    """Commands that ran in a sandbox, in order; empty where its task has none."""
    sandbox_failures: int = 0
    """Times that its sandbox failed; after each but the last it was played again, and this is the
    last attempt.
    """

    @property
    def name(self) -> str:
        """Name by which a person opens it."""
        return f"{self.step}/{self.group}/{self.index}"

    @property
    def sampled_tokens(self) -> int:
        return int(sum(s.sampled.sum() for s in self.sequences))

    @property
    def model_message_indices(self) -> list[int]:
        """Places among its messages of those that the model wrote."""
        turns = {int(turn) for s in self.sequences for turn in s.turns[s.sampled]}
        return find_model_messages([message.role for message in self.messages], len(turns))

    @property
    def model_messages(self) -> list[Message]:
        """Messages that the model wrote, turn by turn."""
        return [self.messages[place] for place in self.model_message_indices]

    @property
    def response(self) -> str:
        """Content of the model's last message; empty where it wrote none."""
        own = self.model_messages
        return own[-1].content if own else ""

    @property
    def is_truncated(self) -> bool:
        """True where it was cut off by the limit of a turn or of the context."""
        return self.ended in (Ending.LENGTH, Ending.CONTEXT_FULL)


@dataclass(frozen=True)
class Evaluation:
    """Results on the fixed held-out tasks after a step."""

    step: int
    """Steps before it; 0 is the model before training."""
    tasks: int
    correct: int
    low: float
    high: float
    """Ends of the accuracy's 95% interval."""
    failed: int
    """Tasks that could not be scored; they count as not right, and are shown apart."""
    reward: float | None
    """Mean reward over the tasks that were scored; None where none was."""
    by_family: dict[str, float]
    parts: dict[str, float]
    """Mean of each component of the reward over the tasks that were scored."""
    pass_at: dict[int, float]
    """Chance that one of k sampled answers is right, by k; empty unless asked for."""
    seconds: float

    @property
    def accuracy(self) -> float:
        return self.correct / self.tasks if self.tasks else math.nan
