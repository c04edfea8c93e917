"""Interface of a sampler: three calls, which a server can serve as well as this process."""

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
# so there has to be a bound; a token beyond it is less likely than 1 in 1,024.
MAX_SUPPORT = 1024


@dataclass(frozen=True)
class Limits:
    """Sampling parameters of a turn, and what ends it."""

    max_tokens: int  # maximum tokens of this turn
    context: int  # maximum tokens of the whole stream
    temperature: float = 1.0  # divides the logits; 0 takes the likeliest token
    top_p: float = 1.0  # keep the likeliest tokens that together reach this probability
    top_k: int = 0  # keep this many likeliest tokens; 0 for all
    min_p: float = 0.0  # keep tokens with probability ≥ min_p × the likeliest one's
    # Divides positive logits of tokens in the context, and multiplies negative ones.
    repetition_penalty: float = 1.0
    stop: tuple[str, ...] = ()  # texts that end the turn
    prompt: int = 0  # maximum tokens of a stream's first prompt; 0 for as many as fit

    @classmethod
    def of(cls, s: Sampling, temperature: float) -> "Limits":
        """Return those of a recipe, at a temperature."""
        return cls(
            max_tokens=s.max_tokens,
            context=s.context,
            temperature=temperature,
            top_p=s.top_p,
            top_k=s.top_k,
            min_p=s.min_p,
            repetition_penalty=s.repetition_penalty,
            stop=s.stop,
            prompt=s.max_prompt,
        )

    @property
    def width(self) -> int:
        """Maximum number of tokens that one is drawn from; 0 for all."""
        is_cut = self.temperature > 0 and (self.top_p < 1 or self.top_k > 0 or self.min_p > 0)
        return (self.top_k or MAX_SUPPORT) if is_cut else 0


@dataclass(frozen=True, repr=False)
class Extension:
    """One turn of the model."""

    ids: Ints  # the tokens, the one that ended the turn included
    logprobs: Floats  # their log-probabilities in the distribution that they were drawn from
    ended: Ending  # stop-token, stop-text, length or context-full
    versions: Ints  # policy version that sampled each token
    # Tokens that each was drawn from, as `records.Sequence` has them; None for all.
    support: tuple[Ints, Ints] | None = None
    message: Message | None = None  # the turn if it came as a message, without tokens


class Sampler(Protocol):
    """Extends streams; a stream is one rollout's growing context, named by a number that the caller
    chooses.
    """

    async def extend(self, stream: int, ids: Sequence[int], limits: Limits, seed: int) -> Extension:
        """Append `ids` to the stream and sample the model's turn; the seed is that of the stream's
        first call.
        """

    def release(self, stream: int) -> None:
        """Forget a stream."""

    async def load(self, weights: "Iterable[tuple[str, Tensor]] | Path", version: int) -> None:
        """Load new weights: named tensors, or an adapter's folder. Tokens sampled afterwards have
        this version.

        Tensors are iterated to the end, and once: if the learner's are sharded, every process has
        to take part in each.
        """


class NoSampler:
    """Stands in for the sampler in processes that do not play: it takes part in gathering the
    weights.
    """

    async def extend(self, stream: int, ids: Sequence[int], limits: Limits, seed: int) -> Extension:
        """Never called: rank 0 plays for all."""
        raise NotImplementedError

    def release(self, stream: int) -> None:
        """Do nothing: there are no streams."""

    async def load(self, weights: "Iterable[tuple[str, Tensor]] | Path", version: int) -> None:  # noqa: ARG002
        """Iterate the tensors to the end."""
        if not isinstance(weights, Path):
            await in_caller(partial(deque[Any], weights, 0))
