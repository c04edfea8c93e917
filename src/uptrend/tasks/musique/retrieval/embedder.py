"""Texts that are waited for at the same time go through the embedding model together."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from uptrend.tasks.musique.retrieval.embedding import Encode, load_encoder


@dataclass
class _Batch:
    loop: asyncio.AbstractEventLoop
    """The loop that its requests wait in."""
    requests: list[tuple[Sequence[str], asyncio.Future[NDArray[np.float32]]]] = field(default_factory=list)
    """Each one's texts, and where their vectors go."""


class Embedder:
    """One embedding model, shared by everything in this process that searches with it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._batch: _Batch | None = None
        self.calls = 0
        """How often the model was asked, for the record of what batching saves."""
        self.embedded = 0
        """How many texts went through it."""

    @cached_property
    def _encode(self) -> Encode:
        return load_encoder(self._name)

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """A row of length 1 for each text."""
        loop = asyncio.get_running_loop()
        batch = self._batch
        # An embedder outlives its loops: what an ended loop left behind is never answered, and must not be joined.
        if batch is None or batch.loop is not loop:
            batch = self._batch = _Batch(loop)
            loop.call_soon(self._flush, batch)  # after every search that is ready now has asked
        answer: asyncio.Future[NDArray[np.float32]] = loop.create_future()
        batch.requests.append((texts, answer))
        return await answer

    def _flush(self, batch: _Batch) -> None:
        if self._batch is batch:
            self._batch = None
        waiting = [(texts, answer) for texts, answer in batch.requests if not answer.done()]  # some were cancelled
        if not waiting:
            return
        distinct = list(dict.fromkeys(text for texts, _ in waiting for text in texts))
        place = {text: row for row, text in enumerate(distinct)}
        self.calls += 1
        self.embedded += len(distinct)
        try:
            vectors = self._encode(distinct)
        except Exception as error:  # every waiting search must hear of it
            for _, answer in waiting:
                answer.set_exception(error)
            return
        for texts, answer in waiting:
            answer.set_result(vectors[[place[text] for text in texts]])


@cache
def embedder(name: str) -> Embedder:
    """The one of that name; its model is loaded when it is first asked."""
    return Embedder(name)
