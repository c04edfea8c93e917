"""The nouns of training: task, message, reward, rollout, evaluation.

A rollout has one sequence of tokens if its history is only appended to, several if a chat template
rewrites it.
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

# Characters of an id of tasks: 64 bits.
HASH_CHARACTERS = 16
# Rounding of a reward: of a sum of parts at its upper bound, and of other comparisons.
MAXIMUM_TOLERANCE = 1e-9
REWARD_TOLERANCE = 1e-6


@dataclass(frozen=True)
class ToolCall:
    """Call of a tool by the model."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Message:
    """One message of a conversation."""

    role: Speaker
    content: str
    """Text as the model writes or reads it, without the calls that could be read."""
    calls: tuple[ToolCall, ...] = ()
    problem: str = ""
    """Error of a call that could not be read; empty for none."""


def find_model_messages(roles: Several[str], turns: int | None) -> list[int]:
    """Return the indices of the model's own messages: the last `turns` by an assistant, because a
    prompt may have others as examples.

    If the number of turns is unknown (None), every message by an assistant counts.
    """
    indices = [index for index, role in enumerate(roles) if role == "assistant"]
    return indices if turns is None else indices[max(0, len(indices) - turns) :]


@dataclass(frozen=True)
class Tool:
    """A tool that a task offers."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """Arguments as a JSON schema."""


@dataclass(frozen=True)
class Task:
    """One problem with a way to check an answer."""

    messages: tuple[Message, ...]
    answer: str
    family: str
    difficulty: float = 0.0
    """Difficulty: larger is harder, comparable within a family."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """Values that its taskset needs to play and score it: plain JSON, and values that `str` writes,
    such as dates.
    """
    id: str = ""
    """Hash of the messages, computed if empty: equal questions have equal ids in every taskset."""

    def __post_init__(self) -> None:
        if not self.id:
            object.__setattr__(self, "id", task_id(self.messages))


def task_id(messages: Several[Message]) -> str:
    """Return the content hash of a question: the same question has the same id in every taskset."""
    texts = [[message.role, message.content] for message in messages]
    digest = hashlib.sha256(json.dumps(texts, ensure_ascii=False).encode())
    return digest.hexdigest()[:HASH_CHARACTERS]


def tasks_hash(tasks: Several[Task]) -> str:
    """Return one hash over a list of tasks with their answers and data, in order."""
    digest = hashlib.sha256()
    for task in tasks:
        data = json.dumps(task.data, sort_keys=True, ensure_ascii=False, default=str)
        digest.update(f"{task.id}\0{task.answer}\0{data}\0".encode())
    return digest.hexdigest()[:HASH_CHARACTERS]


# Name of a part of the reward that is not the task's: the penalty of `sampling.overlong`.
OVERLONG_PART = "overlong"


@dataclass(frozen=True)
class Part:
    """One component of a reward."""

    name: str
    value: float
    low: float
    """Lower bound; NaN if the bounds are unknown."""
    high: float
    weight: float = 1.0


@dataclass(frozen=True)
class Reward:
    """The score of one rollout, between `low` and `high`."""

    total: float
    low: float
    """Lower bound; NaN if the bounds are unknown."""
    high: float
    """Upper bound, which a gold answer reaches."""
    correct: bool
    """True if the answer is right, however it is graded: held-out accuracy counts these."""
    parts: tuple[Part, ...] = ()
    turns: tuple[float, ...] = ()
    """Rewards by turn, which add up to the total; empty if the task has none."""

    def __post_init__(self) -> None:
        if not self.turns:
            return
        total = sum(self.turns)
        if not math.isclose(total, self.total, rel_tol=REWARD_TOLERANCE, abs_tol=REWARD_TOLERANCE):
            raise ValueError(
                f"rewards by turn {self.turns} do not add up to the total {self.total}"
            )

    @property
    def is_best(self) -> bool:
        """True at the upper bound, up to rounding of a sum; if the bound is unknown, for a right
        answer.
        """
        if math.isnan(self.high):
            return self.correct
        return self.total >= self.high - MAXIMUM_TOLERANCE

    @property
    def is_lowest(self) -> bool:
        """True at the lower bound; False if it is unknown."""
        return self.total <= self.low + REWARD_TOLERANCE

    @classmethod
    def of(cls, name: str, value: float, low: float, high: float, correct: bool) -> "Reward":
        """Return a reward of one part."""
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
    """Return the boundary at which a rollout failed: open, prompt, turn N, respond, score, close or
    gold; empty for none.
    """
    return (error or "").partition(":")[0]


@dataclass(frozen=True)
class Sequence:
    """One row of token columns; the learner's columns are empty until an update has seen it."""

    ids: Ints
    turns: Ints
    """Turn of each token; the first prompt and the first answer are turn 0."""
    roles: Bytes
    versions: Ints
    """Policy version that sampled each token; -1 for tokens that were not sampled."""
    sampler: Floats
    """Log-probabilities by the sampler at the sampling temperature; NaN for tokens that were not
    sampled.
    """
    weights: Floats | None = None
    """Weight of each token in the loss: 0 for tokens that are not trained."""
    attended: Flags | None = None
    """True for tokens that attention could see."""
    advantages: Floats | None = None
    learner: Floats | None = None
    """Log-probabilities by the learner before the update, at the sampling temperature; NaN for
    tokens that were not sampled.
    """
    reference: Floats | None = None
    """Log-probabilities by the reference model; NaN for tokens without any."""
    support: tuple[Ints, Ints] | None = None
    """Tokens that each one was drawn from: their number by token, 0 for tokens that were not
    sampled, and all their ids one after another.

    None if all tokens could be drawn: top-p, top-k and min-p leave some out.
    """

    @property
    def sampled(self) -> Flags:
        """True for tokens that the model wrote."""
        # numpy compares with a plain int ten times faster.
        return np.asarray(self.roles == int(Role.MODEL))


@dataclass(frozen=True)
class Executed:
    """One command of a rollout that ran in a sandbox."""

    turn: int
    """Turn of the model's message with the command, from 0."""
    command: str
    seconds: float
    code: int
    """Exit status; negative for a signal."""
    stopped: str = ""
    """Limit that ended it: time, memory, processes, disk, files or output; empty if it ended by
    itself.
    """
    score: float | None = None
    """Validation or final score that it led to; None without one."""
    error: bool = False
    """True if the task calls it an error: bad syntax, a non-zero exit, a refused edit."""
    said: str = ""
    """Output that the model did not read: of a last command, or why a submission has no score."""


@dataclass(frozen=True)
class Rollout:
    """One attempt at one task."""

    step: int
    """Step that sampled it; 0 for an evaluation before the first step."""
    group: str
    index: int
    task: str
    family: str
    answer: str
    seed: int
    messages: tuple[Message, ...]
    """All messages, the task's first ones included."""
    sequences: tuple[Sequence, ...]
    reward: Reward | None
    """Reward; None if it could not be scored, for the reason in `error`."""
    ended: Ending
    error: str | None
    """The boundary that failed, a colon and the error (`boundary_of` reads it); None if nothing
    failed.
    """
    seconds: float
    kept: bool = True
    """False if its group was dead and another was sampled in its place."""
    commands: tuple[Executed, ...] = ()
    """Commands that ran in a sandbox, in order; empty if its task has none."""
    sandbox_failures: int = 0
    """Number of failures of its sandbox, after which it was played again; this is the last
    attempt.
    """
    source: str = ""
    """Label of its task's source; empty if the run has one."""

    @property
    def name(self) -> str:
        """Name by which a person opens it."""
        return f"{self.step}/{self.group}/{self.index}"

    @property
    def sampled_tokens(self) -> int:
        """Number of tokens that the model wrote."""
        return int(sum(sequence.sampled.sum() for sequence in self.sequences))

    @property
    def model_message_indices(self) -> list[int]:
        """Indices of the messages that the model wrote."""
        turns: set[int] = set()
        for sequence in self.sequences:
            turns.update(sequence.turns[sequence.sampled].tolist())
        return find_model_messages([message.role for message in self.messages], len(turns))

    @property
    def model_messages(self) -> list[Message]:
        """Messages that the model wrote, turn by turn."""
        return [self.messages[index] for index in self.model_message_indices]

    @property
    def response(self) -> str:
        """Content of the model's last message; empty if it wrote none."""
        messages = self.model_messages
        return messages[-1].content if messages else ""

    @property
    def is_truncated(self) -> bool:
        """True if it was cut off by the limit of a turn or of the context."""
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
    """Tasks that could not be scored; they count as not right, and are listed apart."""
    reward: float | None
    """Mean reward over the tasks that were scored; None if none was."""
    by_family: dict[str, float]
    parts: dict[str, float]
    """Mean of each component of the reward over the tasks that were scored."""
    pass_at: dict[int, float]
    """Probability that one of k sampled answers is right, by k; empty without sampled attempts."""
    seconds: float

    @property
    def accuracy(self) -> float:
        """Share of tasks with a right answer."""
        return self.correct / self.tasks if self.tasks else math.nan
