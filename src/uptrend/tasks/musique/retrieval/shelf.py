"""Indices that were built are kept for a while: a group's rollouts share one, and questions come back."""

from collections.abc import Sequence

from uptrend.tasks.musique.documents import Document
from uptrend.tasks.musique.retrieval.index import Index, Retriever


class Shelf:
    """Indices by key; where there is no room, the one that was not asked for the longest goes."""

    def __init__(self, retriever: Retriever, limit: int = 512) -> None:
        self._retriever = retriever
        self._limit = limit
        self._indices: dict[str, Index] = {}  # from the longest not asked for to the latest
        self.built = 0
        """How many indices were built, for the record of what sharing saves."""

    def index(self, key: str, documents: Sequence[Document]) -> Index:
        """The index of a key (a task's id), built if it is not here."""
        found = self._indices.pop(key, None)
        if found is None:
            found = self._retriever.index(documents)
            self.built += 1
        self._indices[key] = found
        if len(self._indices) > self._limit:
            del self._indices[next(iter(self._indices))]
        return found
