"""Finding documents: golden (by what supports the answer), lexical (BM25), semantic (embeddings)
and hybrid.
"""

import asyncio
import importlib
import logging
import re
import sys
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cache, cached_property, partial
from itertools import chain, islice, zip_longest
from typing import Any, Literal, Protocol

import numpy as np

from uptrend.tasks.event_loop import waiting
from uptrend.tasksets.musique.embedding import Encode, Floats, load_encoder, need, need_packages
from uptrend.tasksets.musique.rows import Document

RetrieverName = Literal["golden", "lexical", "semantic", "hybrid"]
WORD = re.compile(r"\w+")


class Index(Protocol):
    """One question's documents, ready to be searched.

    It is shared by all rollouts of its group and holds no state of any of them.
    """

    async def search(self, query: str, count: int) -> list[int]:
        """Return the places of the best documents in the order given to the retriever, best first.

        At most `count`, no repeats; none for a blank query.
        """


# One way of searching: makes a question's documents ready to be searched.
Retriever = Callable[[Sequence[Document]], Index]


def searchable(document: Document) -> str:
    """Return the text to search: the title too, which often is the only place that names the
    subject.
    """
    return f"{document.title}\n{document.text}"


class Golden:
    """Gives supporting documents only: those whose title the query names first, then by words in
    common.
    """

    def __init__(self, documents: Sequence[Document]) -> None:
        self._words = {
            place: words(searchable(d)) for place, d in enumerate(documents) if d.supporting
        }
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
    """Return the distinct words of a text, in small letters."""
    return frozenset(WORD.findall(text.lower()))


class Lexical:
    """Gives the documents with the query's words, the rarer ones counting more."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self._bm25 = _bm25s().BM25(method="lucene", k1=1.5, b=0.75, backend="numpy")
        stems = _stems([searchable(document) for document in documents])
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

    def scores(self, query: str) -> Floats:
        """Return each document's fit to the query; 0 where they share no word."""
        # This goes around `BM25.retrieve`, whose options, threads and selections cost more than 20
        # documents do.
        found: Floats = self._bm25.get_scores_from_ids(
            self._bm25.get_tokens_ids(_stems([query])[0])
        )
        return found


def _stems(texts: list[str]) -> Any:
    return _bm25s().tokenize(
        texts, stopwords="english", stemmer=_stemmer(), return_ids=False, show_progress=False
    )


@cache
def _stemmer() -> Any:
    import Stemmer

    return Stemmer.Stemmer("english")


# Return bm25s without JAX: where that is installed it is tried out at import, and takes most of a
# GPU's memory.
def _bm25s() -> Any:
    if "bm25s" in sys.modules or "jax" in sys.modules:
        return importlib.import_module("bm25s")
    sys.modules["jax"] = None  # type: ignore[assignment]
    try:
        bm25s = importlib.import_module("bm25s")
    finally:
        del sys.modules["jax"]
    # It asks for its own debug messages: each index would be a line in the log of whoever keeps
    # one.
    logging.getLogger("bm25s").setLevel(logging.WARNING)
    return bm25s


class Embedder:
    """One embedding model, shared by everything in this process that searches with it.

    Searches that are ready at the same time become one call of the model.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: list[tuple[Sequence[str], asyncio.Future[Floats]]] = []

    @cached_property
    def _encode(self) -> Encode:
        return load_encoder(self._name)

    async def embed(self, texts: Sequence[str]) -> Floats:
        """Return a row of length 1 for each text."""
        loop = asyncio.get_running_loop()
        # An embedder outlives its loops: what an ended loop left behind must not be joined, but
        # keeps its own list, which its own call below answers should the loop go on.
        if not self._waiting or self._loop is not loop:
            self._loop = loop
            self._waiting = []
            # after every search that is ready now has asked
            loop.call_soon(self._flush, self._waiting)
        answer: asyncio.Future[Floats] = loop.create_future()
        self._waiting.append((texts, answer))
        with waiting():  # for everybody's texts; a time limit could not end the model's call
            return await answer

    def _flush(self, requests: list[tuple[Sequence[str], asyncio.Future[Floats]]]) -> None:
        # some were cancelled
        waiting = [(texts, answer) for texts, answer in requests if not answer.done()]
        requests.clear()  # the next request begins another batch
        if not waiting:
            return
        distinct = list(dict.fromkeys(text for texts, _ in waiting for text in texts))
        place = {text: row for row, text in enumerate(distinct)}
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
    """Return the one of that name; its model is loaded when it is first asked."""
    return Embedder(name)


class Semantic:
    """Gives the documents that mean most nearly what the query does; there are always some.

    They are embedded with the first query, since many a question is never searched.
    """

    def __init__(self, documents: Sequence[Document], embedder: Embedder) -> None:
        self._texts = [searchable(document) for document in documents]
        self._embedder = embedder
        self._vectors: Floats | None = None

    async def search(self, query: str, count: int) -> list[int]:
        if not query.strip() or not self._texts:
            return []
        if self._vectors is None:
            # A group's first searches come together and all ask for the documents: the embedder
            # does them once.
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
        self._first = first
        self._second = second

    async def search(self, query: str, count: int) -> list[int]:
        """See Index; the best of one, the best of the other, the next of one, and so on.

        A document that both found gives its second place away to the next in turn, so `count` come
        back where there are that many.
        """
        first = await self._first.search(query, count)
        second = await self._second.search(query, count)
        in_turn = chain.from_iterable(zip_longest(first, second))
        return list(islice(dict.fromkeys(place for place in in_turn if place is not None), count))


def retriever(name: RetrieverName, model: str = "minilm") -> Retriever:
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


class IndexCache:
    """Indices by key; beyond the limit, the one that was not asked for the longest goes."""

    def __init__(self, retriever: Retriever, limit: int = 512) -> None:
        self._retriever = retriever
        self._limit = limit
        self._indices: OrderedDict[str, Index] = OrderedDict()

    def index(self, key: str, documents: Sequence[Document]) -> Index:
        """Return the index of a key (a task's id), built if it is not here."""
        if key not in self._indices:
            self._indices[key] = self._retriever(documents)
        self._indices.move_to_end(key)
        if len(self._indices) > self._limit:
            self._indices.popitem(last=False)
        return self._indices[key]
