"""By words: BM25 on stems, by `bm25s`.

With method "lucene", a query's words q score document d by Σ idf(q) · tf / (tf + k1 · (1 − b + b · |d| / mean |d|)),
idf(q) = ln(1 + (N − n + ½) / (n + ½)) where n of N documents have q, k1 = 1.5, b = 0.75
(Kamphuis et al. 2020, "Which BM25 do you mean?").
"""

import importlib
import logging
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from uptrend.tasks.musique.documents import Document
from uptrend.tasks.musique.retrieval.extra import need
from uptrend.tasks.musique.retrieval.index import searchable


class Lexical:
    """Gives the documents with the query's words, the rarer ones counting more."""

    def __init__(self) -> None:
        need("bm25s", "Stemmer")
        import Stemmer

        self._stemmer = Stemmer.Stemmer("english")

    def index(self, documents: Sequence[Document]) -> "LexicalIndex":
        """See Retriever."""
        return LexicalIndex([searchable(document) for document in documents], self._stemmer)


class LexicalIndex:
    """See Index."""

    def __init__(self, texts: list[str], stemmer: Any) -> None:
        self._stemmer = stemmer
        self._bm25 = _bm25s().BM25(method="lucene", k1=1.5, b=0.75, backend="numpy")
        stems = self._stems(texts)
        self._has_words = any(stems)
        if self._has_words:  # or bm25s would divide by a mean length of 0
            self._bm25.index(stems, create_empty_token=False, show_progress=False)

    async def search(self, query: str, count: int) -> list[int]:
        """See Index; documents without a word of the query are no results."""
        if not self._has_words:
            return []
        scores = self.scores(query)
        best = np.argsort(-scores, kind="stable")
        return [int(place) for place in best[:count] if scores[place] > 0]

    def scores(self, query: str) -> NDArray[np.float32]:
        """How well each document fits the query; 0 where they share no word.

        This goes around `BM25.retrieve`, whose options, threads and selections cost more than 20 documents do.
        """
        found: NDArray[np.float32] = self._bm25.get_scores_from_ids(self._bm25.get_tokens_ids(self._stems([query])[0]))
        return found

    def _stems(self, texts: list[str]) -> list[list[str]]:
        stems: list[list[str]] = _bm25s().tokenize(
            texts, stopwords="english", stemmer=self._stemmer, return_ids=False, show_progress=False
        )
        return stems


def _bm25s() -> Any:
    """bm25s without JAX: where that is installed it is tried out at import, and takes most of a GPU's memory."""
    if "bm25s" in sys.modules or "jax" in sys.modules:
        return importlib.import_module("bm25s")
    sys.modules["jax"] = None  # type: ignore[assignment]
    try:
        bm25s = importlib.import_module("bm25s")
    finally:
        del sys.modules["jax"]
    # It asks for its own debug messages: each index would be a line in the log of whoever keeps one.
    logging.getLogger("bm25s").setLevel(logging.WARNING)
    return bm25s
