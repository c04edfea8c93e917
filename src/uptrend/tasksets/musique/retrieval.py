"""Retrievers: golden (documents that support the answer), lexical (BM25), semantic (embeddings) and
hybrid.
"""

import asyncio
import importlib
import logging
import re
import sys
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cache, cached_property, partial
from itertools import zip_longest
from typing import Any, Literal, Protocol

import numpy as np

from uptrend.tasks.event_loop import waiting
from uptrend.tasksets.musique.embedding import (
    Encode,
    Floats,
    load_encoder,
    require_encoder,
    require_modules,
)
from uptrend.tasksets.musique.rows import Document

RetrieverName = Literal["golden", "lexical", "semantic", "hybrid"]
WORD_PATTERN = re.compile(r"\w+")
# Indices that a cache keeps; chosen by hand so that the tasks of several steps fit.
MAX_CACHED_INDICES = 512
# Decimals of a similarity: a product of equal vectors may differ in its last bit from row to row.
SIMILARITY_DECIMALS = 5


class Index(Protocol):
    """One question's documents, ready to be searched.

    It is shared by all rollouts of its group and holds no state of any of them.
    """

    async def search(self, query: str, count: int) -> list[int]:
        """Return the places of the best documents among those of the index, best first.

        At most `count`, no repeats; none for a blank query.
        """


# A way of searching: makes a question's documents ready to be searched.
Retriever = Callable[[Sequence[Document]], Index]


def searchable(document: Document) -> str:
    """Return the text to search: with the title, which often alone names the subject."""
    return f"{document.title}\n{document.text}"


class Golden:
    """Returns supporting documents only: first those whose title the query names, then those with
    most of its words.
    """

    def __init__(self, documents: Sequence[Document]) -> None:
        self._words: dict[int, frozenset[str]] = {}
        self._titles: dict[int, frozenset[str]] = {}
        for place, document in enumerate(documents):
            if document.supporting:
                self._words[place] = words(searchable(document))
                self._titles[place] = words(document.title)

    async def search(self, query: str, count: int) -> list[int]:
        """See Index; up to `count` supporting documents, whatever the query is."""
        if not query.strip():
            return []
        query_words = words(query)

        def sort_key(place: int) -> tuple[bool, int]:
            title = self._titles[place]
            is_named = bool(title) and title <= query_words
            n_common = len(query_words & self._words[place])
            return not is_named, -n_common

        return sorted(self._words, key=sort_key)[:count]


def words(text: str) -> frozenset[str]:
    """Return the distinct words of a text, in lower case."""
    return frozenset(WORD_PATTERN.findall(text.lower()))


class Lexical:
    """Returns documents with words of the query; rarer words count more (BM25)."""

    def __init__(self, documents: Sequence[Document]) -> None:
        # Lucene's variant of BM25, with bm25s's default parameters.
        self._bm25 = _bm25s().BM25(method="lucene", k1=1.5, b=0.75, backend="numpy")
        stems = _stems([searchable(document) for document in documents])
        self._has_words = any(stems)
        if self._has_words:  # without words, bm25s would divide by a mean length of 0
            self._bm25.index(stems, create_empty_token=False, show_progress=False)

    async def search(self, query: str, count: int) -> list[int]:
        """See Index; without documents that have no word of the query."""
        if not self._has_words:
            return []
        scores = self.scores(query)
        best = np.argsort(-scores, kind="stable")
        return [int(place) for place in best[:count] if scores[place] > 0]

    def scores(self, query: str) -> Floats:
        """Return each document's BM25 score; 0 if it shares no word with the query."""
        # Without `BM25.retrieve`, whose options, threads and selections cost more than 20 documents
        # do.
        stem_ids = self._bm25.get_tokens_ids(_stems([query])[0])
        scores: Floats = self._bm25.get_scores_from_ids(stem_ids)
        return scores


def _stems(texts: list[str]) -> Any:
    return _bm25s().tokenize(
        texts, stopwords="english", stemmer=_stemmer(), return_ids=False, show_progress=False
    )


@cache
def _stemmer() -> Any:
    import Stemmer

    return Stemmer.Stemmer("english")


def _bm25s() -> Any:
    """Import bm25s without JAX, which it would try out at import: that takes most of a GPU's
    memory.
    """
    if "bm25s" in sys.modules or "jax" in sys.modules:
        return importlib.import_module("bm25s")
    sys.modules["jax"] = None  # type: ignore[assignment]
    try:
        bm25s = importlib.import_module("bm25s")
    finally:
        del sys.modules["jax"]
    # It turns on its own debug messages: each index would be a line in the user's log.
    logging.getLogger("bm25s").setLevel(logging.WARNING)
    return bm25s


# Texts, and where their vectors go.
EmbeddingRequest = tuple[Sequence[str], asyncio.Future[Floats]]


class Embedder:
    """One embedding model, shared by everything in this process that searches with it.

    Searches that are ready at the same time become one call of the model.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._requests: list[EmbeddingRequest] = []

    @cached_property
    def _encode(self) -> Encode:
        return load_encoder(self._name)

    async def embed(self, texts: Sequence[str]) -> Floats:
        """Return a vector of length 1 for each text."""
        loop = asyncio.get_running_loop()
        # An embedder outlives its loops. Requests that an ended loop left behind have a list of
        # their own, which their own _flush answers should that loop go on.
        if not self._requests or self._loop is not loop:
            self._loop = loop
            self._requests = []
            # Runs after every search that is ready now has made its request.
            loop.call_soon(self._flush, self._requests)
        answer: asyncio.Future[Floats] = loop.create_future()
        self._requests.append((texts, answer))
        with waiting():  # for all requests' texts; a time limit could not end the model's call
            return await answer

    def _flush(self, requests: list[EmbeddingRequest]) -> None:
        """Answer all requests with one call of the model."""
        open_requests = [request for request in requests if not request[1].done()]  # not canceled
        requests.clear()  # the next request begins another batch
        if not open_requests:
            return
        row_by_text: dict[str, int] = {}
        for texts, _ in open_requests:
            for text in texts:
                row_by_text.setdefault(text, len(row_by_text))
        try:
            vectors = self._encode(list(row_by_text))
        except Exception as error:  # raised in every search of the batch
            for _, answer in open_requests:
                answer.set_exception(error)
            return
        for texts, answer in open_requests:
            rows = [row_by_text[text] for text in texts]
            answer.set_result(vectors[rows])


@cache
def embedder(name: str) -> Embedder:
    """Return this process's embedder of that name; its model is loaded at the first search."""
    return Embedder(name)


class Semantic:
    """Returns the documents nearest in meaning to the query, however far they are.

    They are embedded with the first query, since many questions are never searched.
    """

    def __init__(self, documents: Sequence[Document], embedder: Embedder) -> None:
        self._texts = [searchable(document) for document in documents]
        self._embedder = embedder
        self._vectors: Floats | None = None

    async def search(self, query: str, count: int) -> list[int]:
        if not query.strip() or not self._texts:
            return []
        if self._vectors is None:
            # A group's first searches come together, each with all documents: the embedder embeds
            # equal texts once.
            vectors = await self._embedder.embed([*self._texts, query])
            self._vectors = vectors[:-1]
            query_vector = vectors[-1]
        else:
            (query_vector,) = await self._embedder.embed([query])
        similarities = np.round(self._vectors @ query_vector, SIMILARITY_DECIMALS)
        best = np.argsort(-similarities, kind="stable")
        return [int(place) for place in best[:count]]


class Hybrid:
    """Takes results of two indices in turn."""

    def __init__(self, first: Index, second: Index) -> None:
        self._first = first
        self._second = second

    async def search(self, query: str, count: int) -> list[int]:
        """See Index; the best of one, the best of the other, the next of one, and so on.

        A document that both return is skipped the second time, so that there are `count` results if
        possible.
        """
        first = await self._first.search(query, count)
        second = await self._second.search(query, count)
        places: dict[int, None] = {}
        for pair in zip_longest(first, second):
            for place in pair:
                if place is not None:
                    places[place] = None
        return list(places)[:count]


def retriever(name: RetrieverName, model: str = "minilm") -> Retriever:
    """Return the retriever of that name; `model` is the embedder of semantic and hybrid."""
    if name == "golden":
        return Golden
    if name == "lexical":
        require_modules("bm25s", "Stemmer")
        return Lexical
    require_encoder(model)
    semantic = partial(Semantic, embedder=embedder(model))
    if name == "semantic":
        return semantic
    lexical = retriever("lexical")
    return lambda documents: Hybrid(lexical(documents), semantic(documents))


class IndexCache:
    """Indices by key; beyond the limit, the least recently used is dropped."""

    def __init__(self, retriever: Retriever, limit: int = MAX_CACHED_INDICES) -> None:
        self._retriever = retriever
        self._limit = limit
        self._indices: OrderedDict[str, Index] = OrderedDict()

    def index(self, key: str, documents: Sequence[Document]) -> Index:
        """Return the index of a key (a task's id), built if it is not cached."""
        if key not in self._indices:
            self._indices[key] = self._retriever(documents)
        self._indices.move_to_end(key)
        if len(self._indices) > self._limit:
            self._indices.popitem(last=False)
        return self._indices[key]
