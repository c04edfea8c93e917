"""Generations and steps of TRL: references to its own lists and tensors, nothing copied. No torch.

B = rollouts of a generation, P = width of the padded prompts, T = width of the padded completions.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from uptrend.records import Role

HALF_DTYPES = ("torch.bfloat16", "torch.float16")
# Tensors that the records are made from, of all that TRL keeps for the loss.
RECORDED_TENSORS = (
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
    stop_tokens: frozenset[int]
    loss_type: str
    max_tokens: int
    group_size: int
    beta: float
    clip: tuple[float, float]
    lr: float
    max_norm: float
    processes: int

    @classmethod
    def of(cls, trainer: Any) -> Self:
        """Read them from a trainer."""
        args = trainer.args
        stop_tokens = getattr(trainer, "eos_token_ids", None)
        if stop_tokens is None:  # before TRL 1.14.1, only the tokenizer's own
            stop_tokens = [trainer._tokenizer.eos_token_id]
        return cls(
            seed=args.seed,
            stop_tokens=frozenset(stop_tokens),
            loss_type=args.loss_type,
            max_tokens=args.max_completion_length,
            group_size=args.num_generations,
            beta=args.beta,
            clip=(trainer.epsilon_low, trainer.epsilon_high),
            lr=args.learning_rate,
            max_norm=float(args.max_grad_norm or 0.0),
            processes=trainer.accelerator.num_processes,
        )


@dataclass(frozen=True)
class Call:
    """One call of the sampler."""

    prompts: list[list[int]]  # token ids that it got, by row
    written: list[list[int]]  # token ids that it wrote


@dataclass
class LossPass:
    """One forward pass of the loss over some rows of a generation."""

    batch: int  # number of the generation
    rows: Any  # its rollouts, in this order
    ids: Any  # input tokens of the model [b, P+T]; not recorded
    attention: Any  # attention mask of the model [b, P+T]
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
    # rows of the dataset, one per rollout; not recorded, they may hold anything
    examples: list[dict[str, Any]]
    answers: list[str]  # right answers; empty where the rows hold none
    prompts: list[Any]  # texts or messages
    completions: list[Any]  # texts or messages
    written: list[list[int]]  # token ids of the completions
    rewards: Any  # one column per reward function; NaN for none [B, F]
    # what TRL keeps for the loss: padded ids, masks, advantages, log-probabilities
    output: dict[str, Any]
    calls: list[Call]  # calls of the sampler; empty where the user's own function sampled
    seconds: float
    trl_dead: Any = None  # TRL's own share of dead groups
    passes: list[LossPass] = field(default_factory=list)  # first pass of the loss over each row
    n_passed: int = 0  # rows that the loss has passed over
    process_sizes: tuple[int, ...] = ()  # rows of each process, in order; empty for those of one

    @property
    def size(self) -> int:
        """Number of rollouts."""
        return len(self.written)

    @property
    def is_whole(self) -> bool:
        """True once the loss has passed over every row."""
        return self.n_passed >= self.size

    @property
    def loss_mask(self) -> NDArray[np.bool_]:
        """True for tokens of the completions that TRL trains [B, T]."""
        mask = as_numpy(self.output["completion_mask"]) != 0
        tool_mask = self.output.get("tool_mask")
        if tool_mask is not None:
            mask &= as_numpy(tool_mask) != 0
        return np.asarray(mask)

    def column(self, name: str) -> NDArray[np.float64] | None:
        """Return one of TRL's tensors; None where it keeps none of this name."""
        values = self.output.get(name)
        return None if values is None else as_float64(values)

    def prompt(self, row: int) -> list[int]:
        """Return a prompt as the sampler got it; by TRL's mask where no call of the sampler was
        seen.
        """
        if self.calls and len(self.calls[0].prompts) == self.size:
            return self.calls[0].prompts[row]
        ids = as_numpy(self.output["prompt_ids"])[row]
        mask = as_numpy(self.output["prompt_mask"])[row]
        return list(map(int, ids[mask != 0]))

    def add_pass(self, loss_pass: LossPass) -> None:
        """Add a pass of the loss, where it is the first over its rows."""
        if loss_pass.is_first:
            self.passes.append(loss_pass)
            self.n_passed += len(loss_pass.rows)

    def portable(self) -> Any:
        """Copy it for another process; passes of the loss are sent by themselves."""
        output: dict[str, Any] = {}
        for name in RECORDED_TENSORS:
            if self.output.get(name) is not None:
                output[name] = self.output[name]
        return portable(replace(self, examples=[], output=output, passes=[], n_passed=0))


@dataclass
class TrlStep:
    """One step of the trainer."""

    began: float = 0.0
    step: int = 0
    batches: list[TrlBatch] = field(default_factory=list)
    passes: list[LossPass] = field(default_factory=list)
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
        passes = [replace(loss_pass, ids=None) for loss_pass in self.passes]
        copy = portable(replace(self, batches=[], passes=passes))
        return replace(copy, batches=[batch.portable() for batch in self.batches])


def portable(value: Any) -> Any:
    """Copy a value for another process: tensors become arrays; objects that it may not know become
    text.
    """
    if hasattr(value, "detach"):
        return as_numpy(value)
    if is_dataclass(value) and not isinstance(value, type):
        copies = {f.name: portable(getattr(value, f.name)) for f in fields(value)}
        return replace(value, **copies)
    if isinstance(value, Mapping):
        return {str(key): portable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        if value and isinstance(value[0], int):  # token ids are many, and plain already
            return value
        return [portable(item) for item in value]
    is_plain = isinstance(value, str | int | float | np.ndarray | None)
    return value if is_plain else str(value)


def as_numpy(tensor: Any) -> NDArray[Any]:
    """Return a tensor's numbers, from whichever device, in a precision that numpy has."""
    if not hasattr(tensor, "detach"):
        return np.asarray(tensor)
    tensor = tensor.detach()
    if str(tensor.dtype) in HALF_DTYPES:
        tensor = tensor.float()
    return np.asarray(tensor.cpu())


def as_float64(tensor: Any) -> NDArray[np.float64]:
    """Return a tensor's numbers in double precision."""
    return as_numpy(tensor).astype(np.float64)


def last_text(conversation: Any) -> str:
    """Return the text of a prompt or completion: of a conversation, its last message."""
    if isinstance(conversation, str):
        return conversation
    return str(conversation[-1].get("content") or "")


def roles_of(
    prompt: list[int], written: list[int], calls: list[Call], row: int = 0
) -> tuple[NDArray[np.int8], NDArray[np.int32]]:
    """Return each token's author and turn, by the sampler's calls: behind the prompt, tokens of no
    call are a tool's.
    """
    ids = prompt + written
    prompt_size = len(prompt)
    roles = np.full(len(ids), Role.TOOL, np.int8)
    roles[:prompt_size] = Role.PROMPT
    for number, call in enumerate(calls):
        answers = list(zip(call.prompts, call.written, strict=False))
        # The first call has the rows in their order; later ones only those that a tool answered:
        # they are searched.
        if number == 0:
            answers = answers[row : row + 1]
        for context, answer in answers:
            start = len(context)
            end = min(len(ids), start + len(answer))  # what exceeded the length was cut off
            if start < prompt_size or ids[:start] != context:
                continue
            if ids[start:end] == answer[: end - start]:
                roles[start:end] = Role.MODEL

    # A turn ends where the model's tokens end; the first prompt and the first answer are one turn.
    is_model = roles == Role.MODEL
    is_model[:prompt_size] = True
    turns = np.zeros(len(ids), np.int32)
    turns[1:] = np.cumsum(is_model[:-1] & ~is_model[1:])
    return roles, turns
