"""Finding documents: golden (by what supports the answer), lexical (BM25), semantic (embeddings) and hybrid."""

import asyncio
import importlib
import logging
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from itertools import chain, islice, zip_longest
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from uptrend.tasks.musique.embedding import Encode, load_encoder, need, need_packages
from uptrend.tasks.musique.rows import Document


class Index(Protocol):
    """One question's documents, ready to be searched.

    It is shared by all rollouts of its group and holds no state of any of them.
    """

    async def search(self, query: str, count: int) -> list[int]:
        """The places of the best documents in the order given to the retriever, best first.

        At most `count`, no repeats; none for a blank query.
        """
        ...


Retriever = Callable[[Sequence[Document]], Index]
"""One way of searching: makes a question's documents ready to be searched."""


def searchable(document: Document) -> str:
    """Return the text to search: the title too, which often is the only place that names the subject."""
    return f"{document.title}\n{document.text}"


WORD = re.compile(r"\w+")


class Golden:
    """Gives supporting documents only: those whose title the query names first, then by words in common."""

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


class Lexical:
    """Gives the documents with the query's words, the rarer ones counting more."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self._stemmer = _stemmer()
        self._bm25 = _bm25s().BM25(method="lucene", k1=1.5, b=0.75, backend="numpy")
        stems = self._stems([searchable(document) for document in documents])
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
        """Return each document's fit to the query; 0 where they share no word.

        This goes around `BM25.retrieve`, whose options, threads and selections cost more than 20 documents do.
        """
        found: NDArray[np.float32] = self._bm25.get_scores_from_ids(self._bm25.get_tokens_ids(self._stems([query])[0]))
        return found

    def _stems(self, texts: list[str]) -> list[list[str]]:
        stems: list[list[str]] = _bm25s().tokenize(
            texts, stopwords="english", stemmer=self._stemmer, return_ids=False, show_progress=False
        )
        return stems


@cache
def _stemmer() -> Any:
    import Stemmer

    return Stemmer.Stemmer("english")


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
        """Calls of the model, for the record of what batching saves."""
        self.embedded = 0
        """Texts that went through it."""

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


class Semantic:
    """Gives the documents that mean most nearly what the query does; there are always some.

    They are embedded with the first query, since many a question is never searched.
    """

    def __init__(self, documents: Sequence[Document], embedder: Embedder) -> None:
        self._texts = [searchable(document) for document in documents]
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


class Hybrid:
    """Takes from two indices in turn."""

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


Name = Literal["golden", "lexical", "semantic", "hybrid"]
"""Names of the retrievers in recipes."""


def retriever(name: Name, model: str = "minilm") -> Retriever:
    """Return the retriever of that name; `model` embeds for those that search by meaning."""
    if name == "golden":
        return Golden
    if name == "lexical":
        need("bm25s", "Stemmer")
        return Lexical
    need_packages(model)
    semantic = partial(Semantic, embedder=embedder(model))
    if name == "semantic":
        return semantic
    lexical = retriever("lexical")
    return lambda documents: Hybrid(lexical(documents), semantic(documents))


class Shelf:
    """Indices by key; where there is no room, the one that was not asked for the longest goes."""

    def __init__(self, retriever: Retriever, limit: int = 512) -> None:
        self._retriever = retriever
        self._limit = limit
        self._indices: dict[str, Index] = {}  # from the longest not asked for to the latest
        self.built = 0
        """Indices that were built, for the record of what sharing saves."""

    def index(self, key: str, documents: Sequence[Document]) -> Index:
        """The index of a key (a task's id), built if it is not here."""
        found = self._indices.pop(key, None)
        if found is None:
            found = self._retriever(documents)
            self.built += 1
        self._indices[key] = found
        if len(self._indices) > self._limit:
            del self._indices[next(iter(self._indices))]
        return found
