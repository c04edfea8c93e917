"""Generations and steps of TRL: references to its own lists and tensors, nothing copied. No torch.

B = rollouts of a generation, P = width of the padded prompts, T = width of the padded completions.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from uptrend.records import Role

PROMPT, MODEL, TOOL = (int(role) for role in (Role.PROMPT, Role.MODEL, Role.TOOL))
HALF = ("torch.bfloat16", "torch.float16")
# Tensors that the records are made from, of all that TRL keeps for the loss.
RECORDED = (
    "prompt_ids",
    "prompt_mask",
    "completion_mask",
    "tool_mask",
    "advantages",
    "old_per_token_logps",
    "ref_per_token_logps",
    "sampling_per_token_logps",
)


@dataclass(frozen=True)
class Settings:
    """Settings of a trainer that rollouts and metrics depend on."""

    seed: int
    stops: frozenset[int]  # ids of the stop tokens
    loss: str
    max_tokens: int
    size: int  # rollouts per group
    beta: float
    clip: tuple[float, float]
    lr: float
    max_norm: float
    processes: int

    @classmethod
    def of(cls, trainer: Any) -> Self:
        """Read them from a trainer."""
        args = trainer.args
        return cls(
            args.seed,
            frozenset(trainer.eos_token_ids),
            args.loss_type,
            args.max_completion_length,
            args.num_generations,
            args.beta,
            (trainer.epsilon_low, trainer.epsilon_high),
            args.learning_rate,
            float(args.max_grad_norm or 0.0),
            trainer.accelerator.num_processes,
        )


@dataclass(frozen=True)
class Call:
    """One call of the sampler."""

    prompts: list[list[int]]  # tokens that it was given, by row
    written: list[list[int]]  # tokens that it wrote


@dataclass
class Pass:
    """One forward pass of the loss over some rows of a generation."""

    batch: int  # number of the generation
    rows: Any  # its rollouts, in this order
    ids: Any  # tokens that the model was given [b, P+T]; not recorded
    attention: Any  # attention mask that it was given [b, P+T]
    logprobs: Any  # the learner's, of the completions [b, T]
    entropies: Any  # of the next-token distributions [b, T]
    loss: Any = None
    is_first: bool = False  # no update has come between the generation and this pass


@dataclass
class TrlBatch:
    """One generation."""

    number: int  # counted over the run
    step: int  # step that it was made in
    version: int  # updates that the sampling weights had seen
    # the dataset's rows, one per rollout; not recorded, they may hold anything
    examples: list[dict[str, Any]]
    answers: list[str]  # right answers; empty where the rows hold none
    prompts: list[Any]  # texts or messages
    completions: list[Any]  # texts or messages
    written: list[list[int]]  # token ids of the completions
    rewards: Any  # one column per reward function; NaN where a function gave none [B, F]
    # what TRL keeps for the loss: padded ids, masks, advantages, log-probabilities
    output: dict[str, Any]
    calls: list[Call]  # calls of the sampler; empty where the user's own function sampled
    seconds: float
    trl_dead: Any = None  # TRL's own share of dead groups
    passes: list[Pass] = field(default_factory=list)  # first pass of the loss over each row
    seen: int = 0  # rows that the loss has passed over

    @property
    def size(self) -> int:
        """Number of rollouts."""
        return len(self.written)

    @property
    def is_whole(self) -> bool:
        """True once the loss has passed over every row."""
        return self.seen >= self.size

    @property
    def loss_mask(self) -> NDArray[np.bool_]:
        """True for tokens of the completions that TRL trains [B, T]."""
        mask = as_numpy(self.output["completion_mask"]) != 0
        tools = self.output.get("tool_mask")
        return np.asarray(mask if tools is None else mask & (as_numpy(tools) != 0))

    def column(self, name: str) -> NDArray[np.float64] | None:
        """Return one of TRL's tensors; None where it keeps none of this name."""
        values = self.output.get(name)
        return None if values is None else as_numpy(values).astype(np.float64)

    def prompt(self, row: int) -> list[int]:
        """Return a prompt as the sampler was given it; by TRL's mask where no call of the sampler
        was seen.
        """
        if self.calls and len(self.calls[0].prompts) == self.size:
            return self.calls[0].prompts[row]
        ids, mask = (as_numpy(self.output[name])[row] for name in ("prompt_ids", "prompt_mask"))
        return list(map(int, ids[mask != 0]))

    def take(self, seen: Pass) -> None:
        """Add a pass of the loss, where it is the first over its rows."""
        if seen.is_first:
            self.passes.append(seen)
            self.seen += len(seen.rows)

    def portable(self) -> Any:
        """Copy it for another process; passes of the loss are sent by themselves."""
        output = {name: self.output[name] for name in RECORDED if self.output.get(name) is not None}
        return portable(replace(self, examples=[], output=output, passes=[], seen=0))


@dataclass
class TrlStep:
    """One step of the trainer."""

    began: float = 0.0
    step: int = 0
    batches: list[TrlBatch] = field(default_factory=list)
    passes: list[Pass] = field(default_factory=list)
    # norm before clipping; None where the trainer does not clip, and so computes none
    gradient: Any = None
    lr: float = float("nan")
    skipped: bool = False
    moved: dict[str, float] = field(default_factory=dict)  # metrics of the weights
    # metrics of probes: learner against sampler, and its update
    gaps: dict[str, Any] = field(default_factory=dict)
    sampling: float = 0.0  # seconds
    seconds: float = 0.0
    waited: float = 0.0  # seconds that the trainer waited for the watch
    memory: float = 0.0  # peak so far, in GiB

    def portable(self) -> Any:
        """Copy it for another process."""
        copy = portable(
            replace(self, batches=[], passes=[replace(seen, ids=None) for seen in self.passes])
        )
        return replace(copy, batches=[batch.portable() for batch in self.batches])


def portable(value: Any) -> Any:
    """Copy a value for another process: tensors become arrays; objects that it may not know become
    text.
    """
    if hasattr(value, "detach"):
        return as_numpy(value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: portable(getattr(value, f.name)) for f in fields(value)})
    if isinstance(value, Mapping):
        return {str(key): portable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        # Token ids are many, and plain already.
        return value if value and isinstance(value[0], int) else [portable(item) for item in value]
    return value if isinstance(value, str | int | float | np.ndarray | None) else str(value)


def as_numpy(tensor: Any) -> NDArray[Any]:
    """Return a tensor's numbers, from whichever device, in a precision that numpy has."""
    if not hasattr(tensor, "detach"):
        return np.asarray(tensor)
    tensor = tensor.detach()
    return np.asarray((tensor.float() if str(tensor.dtype) in HALF else tensor).cpu())


def last_text(said: Any) -> str:
    """Return the text of a prompt or completion: of a conversation, its last message."""
    return said if isinstance(said, str) else str(said[-1].get("content") or "")


def roles_of(
    prompt: list[int], written: list[int], calls: list[Call], row: int = 0
) -> tuple[NDArray[np.int8], NDArray[np.int32]]:
    """Return each token's author and turn, by the sampler's calls: what it did not write is a
    tool's.
    """
    ids = prompt + written
    first = len(prompt)
    roles = np.full(len(ids), TOOL, np.int8)
    roles[:first] = PROMPT
    for number, call in enumerate(calls):
        rows = list(zip(call.prompts, call.written, strict=False))
        # The first call has the rows in their order; later ones only those that a tool answered:
        # they are searched.
        for given, said in rows[row : row + 1] if number == 0 else rows:
            start = len(given)
            end = min(len(ids), start + len(said))  # what exceeded the length was cut off
            if start >= first and ids[:start] == given and ids[start:end] == said[: end - start]:
                roles[start:end] = MODEL
    model = roles == MODEL
    model[:first] = True  # the first prompt and the first answer are one turn
    turns = np.zeros(len(ids), np.int32)
    turns[1:] = np.cumsum(model[:-1] & ~model[1:])
    return roles, turns
