"""A sampler with a tap: whatever it is told and says, stream by stream."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from uptrend.rollout.sampler import Extension, Limits, Sampler


@dataclass
class Heard:
    """What went through one stream."""

    read: list[int] = field(default_factory=list)
    """What it was told, in order."""
    said: list[int] = field(default_factory=list)
    """What it sampled, in order."""


class Tap:
    """Passes everything on to the sampler that training uses, and remembers the tokens."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._open: dict[int, Heard] = {}
        self.heard: list[Heard] = []
        """The streams that have ended."""

    async def extend(self, stream: int, ids: Sequence[int], limits: Limits, seed: int) -> Extension:
        """See Sampler."""
        heard = self._open.setdefault(stream, Heard())
        heard.read += ids
        said = await self._sampler.extend(stream, ids, limits, seed)
        heard.said += said.ids.tolist()
        return said

    def release(self, stream: int) -> None:
        """See Sampler."""
        if stream in self._open:
            self.heard.append(self._open.pop(stream))
        self._sampler.release(stream)

    def load(self, tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        """See Sampler."""
        self._sampler.load(tensors, version)
