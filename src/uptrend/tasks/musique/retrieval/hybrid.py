"""Half by words, half by meaning."""

from collections.abc import Sequence
from itertools import chain, islice, zip_longest

from uptrend.tasks.musique.documents import Document
from uptrend.tasks.musique.retrieval.index import Index, Retriever


class Hybrid:
    """Takes from two retrievers in turn."""

    def __init__(self, first: Retriever, second: Retriever) -> None:
        self._first, self._second = first, second

    def index(self, documents: Sequence[Document]) -> "HybridIndex":
        """See Retriever."""
        return HybridIndex(self._first.index(documents), self._second.index(documents))


class HybridIndex:
    """See Index."""

    def __init__(self, first: Index, second: Index) -> None:
        self._first, self._second = first, second

    async def search(self, query: str, count: int) -> list[int]:
        """See Index; the best of one, the best of the other, the next of one, and so on.

        A document that both found gives its second place away to the next in turn, so `count` come back where
        there are that many.
        """
        first = await self._first.search(query, count)
        second = await self._second.search(query, count)
        in_turn = chain.from_iterable(zip_longest(first, second))
        return list(islice(dict.fromkeys(place for place in in_turn if place is not None), count))
