"""Interface of a sampler: three calls, so that a server fits it as well as this process does."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from uptrend.config import Sampling
from uptrend.records import Ending, Message
from uptrend.records.rollout import Floats, Ints
from uptrend.tasks.event_loop import in_caller

if TYPE_CHECKING:
    from torch import Tensor


# Tokens that top_p and min_p choose among. Each sampled token keeps those that it was drawn from,
# so there has to be a bound; what lies beyond it is less likely than 1 in 1,024.
LIKELIEST = 1024


@dataclass(frozen=True)
class Limits:
    """Sampling parameters of a turn, and what ends it."""

    max_tokens: int  # the most tokens that the model may say in this turn
    context: int  # the most tokens of the whole stream
    temperature: float = 1.0  # divides the logits; 0 takes the likeliest token
    top_p: float = 1.0  # keep the likeliest tokens that together reach this probability
    top_k: int = 0  # keep this many likeliest tokens; 0 for all
    min_p: float = 0.0  # keep tokens with at least this part of the likeliest one's probability
    # divides the logits of tokens that the context holds, where positive
    repetition_penalty: float = 1.0
    stop: tuple[str, ...] = ()  # texts that end the turn
    # the most tokens of a stream's first prompt; 0 for as many as the context holds
    prompt: int = 0

    @classmethod
    def of(cls, s: Sampling, temperature: float) -> "Limits":
        """Return those of a recipe, at a temperature."""
        shaping = (s.top_p, s.top_k, s.min_p, s.repetition_penalty)
        return cls(s.max_tokens, s.context, temperature, *shaping, s.stop, s.max_prompt)

    @property
    def width(self) -> int:
        """The most tokens that one is drawn from; 0 for all."""
        is_cut = self.temperature > 0 and (self.top_p < 1 or self.top_k > 0 or self.min_p > 0)
        return (self.top_k or LIKELIEST) if is_cut else 0


@dataclass(frozen=True, repr=False)
class Extension:
    """One turn of the model."""

    ids: Ints  # the tokens, the one that ended the turn included
    logprobs: Floats  # their log-probabilities in the distribution that they were drawn from
    ended: Ending  # stop-token, stop-text, length or context-full
    versions: Ints  # the policy version that said each token
    # tokens that each was drawn from, as a sequence has them; None for all
    support: tuple[Ints, Ints] | None = None
    message: Message | None = None  # the turn itself where it came as a message, without tokens


class Sampler(Protocol):
    """Extends streams; a stream is one rollout's growing context, named by a number that the caller
    chooses.
    """

    async def extend(self, stream: int, ids: Sequence[int], limits: Limits, seed: int) -> Extension:
        """Append `ids` to the stream and let the model speak; the seed counts at a stream's first
        call.
        """

    def release(self, stream: int) -> None:
        """Forget a stream."""

    async def load(self, weights: "Iterable[tuple[str, Tensor]] | Path", version: int) -> None:
        """Take new weights: named tensors, or an adapter's folder. What is sampled afterwards
        carries this version.

        Tensors are iterated to the end, and once: where the learner's are sharded, every process
        has to.
        """


class NoSampler:
    """Stands in for the sampler where another process of the run plays: it takes part in gathering
    the weights.
    """

    async def extend(self, stream: int, ids: Sequence[int], limits: Limits, seed: int) -> Extension:
        """Never called: rank 0 plays for all."""
        raise NotImplementedError

    def release(self, stream: int) -> None:
        """Nothing to forget."""

    async def load(self, weights: "Iterable[tuple[str, Tensor]] | Path", version: int) -> None:  # noqa: ARG002
        """Iterate the tensors to the end."""
        if not isinstance(weights, Path):
            await in_caller(partial(deque[Any], weights, 0))
