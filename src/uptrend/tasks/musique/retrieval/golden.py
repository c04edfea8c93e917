"""The oracle: it finds what the answer needs and nothing else, so that only the reading is left to learn."""

import re
from collections.abc import Sequence

from uptrend.tasks.musique.documents import Document
from uptrend.tasks.musique.retrieval.index import searchable

WORD = re.compile(r"\w+")
"""What counts as a word."""


class Golden:
    """Gives supporting documents only: those whose title the query names first, then by words in common."""

    def index(self, documents: Sequence[Document]) -> "GoldenIndex":
        """See Retriever."""
        return GoldenIndex(documents)


class GoldenIndex:
    """See Index."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self._words = {place: words(searchable(d)) for place, d in enumerate(documents) if d.supporting}
        self._titles = {place: words(documents[place].title) for place in self._words}

    async def search(self, query: str, count: int) -> list[int]:
        """See Index; as many as there are up to `count`, whatever the query says."""
        if not query.strip():
            return []
        asked = words(query)

        def rank(place: int) -> tuple[bool, int]:
            named = bool(self._titles[place]) and self._titles[place] <= asked
            return not named, -len(asked & self._words[place])

        return sorted(self._words, key=rank)[:count]


def words(text: str) -> frozenset[str]:
    """The distinct words of a text, in small letters."""
    return frozenset(WORD.findall(text.lower()))
