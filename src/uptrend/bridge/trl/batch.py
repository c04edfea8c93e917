"""What one generation of TRL left behind: references to its own lists and tensors, nothing copied. No torch.

B = rollouts of the generation, P = width of the padded prompts, T = width of the padded completions.
"""

import json
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from uptrend.records import Role

PROMPT, MODEL, TOOL = (int(role) for role in (Role.PROMPT, Role.MODEL, Role.TOOL))
HALF = ("torch.bfloat16", "torch.float16")
READ = (
    "prompt_ids", "prompt_mask", "completion_mask", "tool_mask", "advantages", "old_per_token_logps",
    "ref_per_token_logps", "sampling_per_token_logps",
)  # fmt: skip
"""What is read of all that TRL keeps for the loss."""


@dataclass(frozen=True)
class Call:
    """One call of the sampler: what stood before, and what it wrote, for each of its rows."""

    prompts: list[list[int]]
    written: list[list[int]]


@dataclass
class Pass:
    """One look of the loss at some rows."""

    batch: int
    """The number of their generation."""
    rows: Any
    """Which of the generation's rollouts, in this order."""
    ids: Any
    """The tokens that the model was given [b, P+T]; not recorded."""
    attention: Any
    """The attention mask that it was given [b, P+T]."""
    logprobs: Any
    """The learner's log-probabilities of the completion [b, T]."""
    entropies: Any
    """Of the next-token distribution [b, T]."""
    loss: Any = None
    """What the loss came to."""
    is_first: bool = False
    """Whether no update has come between the generation and this look."""

    def portable(self) -> Self:
        """The same in arrays, for another process."""
        return replace(
            self, rows=as_numpy(self.rows), ids=None, attention=as_numpy(self.attention),
            logprobs=as_numpy(self.logprobs), entropies=None if self.entropies is None else as_numpy(self.entropies),
            loss=None if self.loss is None else float(self.loss),
        )  # fmt: skip


@dataclass
class TrlBatch:
    """One generation."""

    number: int
    """Counted over the run."""
    step: int
    """The step that it was made in."""
    version: int
    """How many updates the weights that sampled it had seen."""
    examples: list[dict[str, Any]]
    """The dataset's rows, one a rollout; not recorded, they may hold anything."""
    answers: list[str]
    """The right answers; empty where the rows hold none."""
    prompts: list[Any]
    """The prompts, as texts or messages."""
    completions: list[Any]
    """The completions, likewise."""
    written: list[list[int]]
    """The completions' token ids."""
    rewards: Any
    """One row a rollout, one column a reward function; NaN where a function gave none [B, F]."""
    output: dict[str, Any]
    """What TRL keeps for the loss: padded ids, masks, advantages, log-probabilities."""
    calls: list[Call]
    """The sampler's calls; empty where the user's own function sampled."""
    seconds: float
    """How long it took."""
    trl_dead: float | None = None
    """TRL's own share of groups without a deviation."""
    passes: list[Pass] = field(default_factory=list)
    """The first look of the loss at each row."""
    seen: int = 0
    """How many rows the loss has looked at."""

    @property
    def size(self) -> int:
        """How many rollouts."""
        return len(self.written)

    def portable(self) -> Self:
        """The same in arrays and plain values, for another process; looks of the loss go by themselves."""
        output = {key: as_numpy(self.output[key]) for key in READ if self.output.get(key) is not None}
        return replace(
            self, examples=[], prompts=_plain(self.prompts), completions=_plain(self.completions),
            rewards=as_numpy(self.rewards), output=output,
            trl_dead=None if self.trl_dead is None else float(self.trl_dead), passes=[], seen=0,
        )  # fmt: skip

    def take(self, seen: Pass) -> None:
        """A look of the loss at some of its rows."""
        if seen.is_first:
            self.passes.append(seen)
            self.seen += len(seen.rows)


def roles_of(
    prompt: list[int], written: list[int], calls: list[Call], row: int = 0
) -> tuple[NDArray[np.int8], NDArray[np.int32]]:
    """Who wrote each token, and in which turn, by what the sampler gave back: what it did not write is a tool's."""
    ids = prompt + written
    roles = np.full(len(ids), TOOL, np.int8)
    turns = np.zeros(len(ids), np.int32)
    roles[: len(prompt)] = PROMPT
    for before, said in _spans(ids, len(prompt), calls, row):
        roles[before : before + said] = MODEL
    model = roles == MODEL
    model[: len(prompt)] = True  # the first prompt and the first answer are one turn
    turns[1:] = np.cumsum(model[:-1] & ~model[1:])
    return roles, turns


def _spans(ids: list[int], first: int, calls: list[Call], row: int) -> list[tuple[int, int]]:
    """Where what the sampler wrote stands in these ids: start and length of each piece.

    The first call has the rows in their order; later ones only those that a tool answered, so they are searched.
    """
    spans: dict[int, int] = {}
    for number, call in enumerate(calls):
        rows = zip(call.prompts, call.written, strict=False)
        for prompt, written in list(rows)[row : row + 1] if number == 0 else rows:
            start, size = len(prompt), min(len(written), len(ids) - len(prompt))
            if start < first or size <= 0 or ids[:start] != prompt or ids[start : start + size] != written[:size]:
                continue
            spans[start] = max(size, spans.get(start, 0))
    return sorted(spans.items())


def _plain(said: list[Any]) -> list[Any]:
    """Texts or messages without anything that another process could not hold."""
    if all(isinstance(one, str) for one in said):
        return said
    plain: list[Any] = json.loads(json.dumps(said, default=str))
    return plain


def as_numpy(tensor: Any) -> NDArray[Any]:
    """A tensor's numbers, from wherever it lies, in a precision that numpy has."""
    if not hasattr(tensor, "detach"):
        return np.asarray(tensor)
    tensor = tensor.detach()
    return np.asarray((tensor.float() if str(tensor.dtype) in HALF else tensor).cpu())
