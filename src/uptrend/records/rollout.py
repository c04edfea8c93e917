"""A rollout: one attempt at one task, with every token that the learner sees.

Arrays are over the tokens of one sequence. A rollout has one sequence where the history is only appended
to, and several where a chat template rewrites it.
"""

from dataclasses import dataclass
from enum import IntEnum, StrEnum

import numpy as np
from numpy.typing import NDArray

from uptrend.records.reward import Reward
from uptrend.records.task import Message

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Bytes = NDArray[np.int8]
Flags = NDArray[np.bool_]


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
    CONTEXT_FULL = "context-full"
    TOOL_ERROR = "tool-error"
    TASK_ERROR = "task-error"


def boundary_of(error: str | None) -> str:
    """Return where a rollout failed: open, prompt, turn N, respond, score, close or gold; empty where nothing did.

    An error begins with its boundary, before a colon.
    """
    return (error or "").partition(":")[0]


@dataclass(frozen=True)
class Sequence:
    """One row of token columns; the learner's columns are empty until an update has seen it."""

    ids: Ints
    """Token ids, exactly as sampled."""
    turns: Ints
    """The turn that each token belongs to; the first prompt and the first answer are turn 0."""
    roles: Bytes
    """Author of each token (Role)."""
    versions: Ints
    """The policy version that sampled each token; -1 where it was not sampled."""
    sampler: Floats
    """The sampler's log-probability at the sampling temperature; NaN where not sampled."""
    weights: Floats | None = None
    """Each token's weight in the loss: 0 where it is not trained."""
    attended: Flags | None = None
    """True where attention could see the token."""
    advantages: Floats | None = None
    """Each token's advantage."""
    learner: Floats | None = None
    """The learner's log-probability before the update, at the sampling temperature; NaN where not sampled."""
    reference: Floats | None = None
    """The reference model's log-probability; NaN where there is none."""

    @property
    def sampled(self) -> Flags:
        """True for tokens that the model wrote."""
        return np.asarray(self.roles == int(Role.MODEL))  # numpy compares with a plain int ten times faster


@dataclass(frozen=True)
class Rollout:
    """One attempt at one task."""

    step: int
    """The step that sampled it; 0 for an evaluation before the first step."""
    group: str
    """The id of the group that it is compared within."""
    index: int
    """Its place in its group."""
    task: str
    """The task's id."""
    family: str
    """The task's kind."""
    answer: str
    """The task's gold answer."""
    seed: int
    """The seed that it was sampled with."""
    messages: tuple[Message, ...]
    """All that was said, the task's first messages included."""
    sequences: tuple[Sequence, ...]
    """Its tokens."""
    reward: Reward | None
    """Its reward; None where it could not be scored, and then `error` says why."""
    ended: Ending
    """Its end."""
    error: str | None
    """The boundary that failed, a colon and the error (`boundary_of` reads it); None where nothing failed."""
    seconds: float
    """Duration from its first prompt to its score."""
    kept: bool = True
    """False where its group was dead and another was sampled in its place."""

    @property
    def sampled_tokens(self) -> int:
        """Number of tokens that the model wrote."""
        return int(sum(s.sampled.sum() for s in self.sequences))

    @property
    def is_truncated(self) -> bool:
        """True where it was cut off by the limit of a turn or of the context."""
        return self.ended in (Ending.LENGTH, Ending.CONTEXT_FULL)
