"""By meaning: the cosine between the query's embedding and each document's."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from uptrend.tasks.musique.documents import Document
from uptrend.tasks.musique.retrieval.embedder import Embedder, embedder
from uptrend.tasks.musique.retrieval.embedding import need_packages
from uptrend.tasks.musique.retrieval.index import searchable


class Semantic:
    """Gives the documents that mean most nearly what the query does; there are always some."""

    def __init__(self, name: str) -> None:
        need_packages(name)
        self._embedder = embedder(name)

    def index(self, documents: Sequence[Document]) -> "SemanticIndex":
        """See Retriever."""
        return SemanticIndex([searchable(document) for document in documents], self._embedder)


class SemanticIndex:
    """See Index. Its documents are embedded with the first query, since many a question is never searched."""

    def __init__(self, texts: list[str], embedder: Embedder) -> None:
        self._texts = texts
        self._embedder = embedder
        self._vectors: NDArray[np.float32] | None = None

    async def search(self, query: str, count: int) -> list[int]:
        """See Index."""
        if not query.strip() or not self._texts:
            return []
        if self._vectors is None:
            # A group's first searches come together and all ask for the documents: the embedder does them once.
            *documents, asked = await self._embedder.embed([*self._texts, query])
            self._vectors = np.stack(documents)
        else:
            (asked,) = await self._embedder.embed([query])
        # Rounded, since a product of equal vectors may differ in its last bit from row to row.
        best = np.argsort(-np.round(self._vectors @ asked, 5), kind="stable")
        return [int(place) for place in best[:count]]
