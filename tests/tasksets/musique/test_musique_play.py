"""A question played: tools, every way to call them wrongly, and what is scored in the end."""

import asyncio
import re
from typing import Any

import pytest
from questions import ROW, row

from uptrend.records import Message, Reward, ToolCall
from uptrend.tasksets.musique.play import MusiqueOptions, QuestionPlay
from uptrend.tasksets.musique.rows import to_task
from uptrend.tasksets.musique.taskset import Musique

ANSWER = "<think>so</think><cite>{}</cite><answer>old Elhaven</answer>"


def opened(given: dict[str, Any] = ROW, **options: Any) -> QuestionPlay:
    taskset = Musique(MusiqueOptions(**{"retriever": "golden", **options}), 0)
    return taskset.open(to_task(given, "test"), 0)


def call(name: str, content: str = "", **arguments: Any) -> Message:
    return Message("assistant", content, (ToolCall(name, arguments),))


def say(play: QuestionPlay, message: Message) -> str | None:
    answers = asyncio.run(play.respond(message))
    return None if answers is None else "\n".join(m.content for m in answers)


def score(play: QuestionPlay) -> Reward:
    return asyncio.run(play.score())


def test_a_whole_rollout() -> None:
    play = opened(returned=1)
    shown = say(play, call("retrieve_documents", query="Who wrote Amber Tides?"))
    assert shown == "Document ID: 1\n# Amber Tides\nMira Kel wrote Amber Tides."
    assert "Elhaven" in (say(play, call("get_document", doc_id="3")) or "")
    assert say(play, Message("assistant", ANSWER.format("1, 3"))) is None
    got = score(play)
    assert (got.total, got.high, got.correct, list(play.retrieved)) == (1.0, 1.0, True, ["1", "3"])


def test_a_search_shows_as_many_documents_as_it_is_told() -> None:
    for options, query, count in (
        ({"returned": 2}, "Mira", 2),
        ({"retriever": "lexical", "returned": 3}, "wrote", 2),
    ):
        shown = say(opened(**options), call("retrieve_documents", query=query)) or ""
        assert shown.count("Document ID") == count
    assert "No document matches" in (
        say(opened(retriever="lexical"), call("retrieve_documents", query="zebra")) or ""
    )


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (call("get_document", doc_id="77"), "no document '77'"),
        (call("get_document", doc_id=3.5), "needs doc_id.*it is 3.5"),
        (call("get_document"), "needs doc_id.*it is missing"),
        (call("retrieve_documents", query="  "), "needs query"),
        (call("retrieve_documents", query=["a"]), "needs query"),
        (call("retrieve_documents", query="x", top=3), "no argument 'top'. It takes query"),
        (
            call("search", query="x"),
            "no tool 'search'. There are retrieve_documents and get_document",
        ),
        (
            Message("assistant", "", (ToolCall("get_document", {"doc_id": "1"}),) * 2),
            "2 calls in one turn",
        ),
        (
            Message("assistant", "<answer>x</answer><tool>{", problem="The call is not JSON"),
            "The call is not JSON",
        ),
        (Message("assistant", "I think I shall look."), "Call a tool, or finish with <think>"),
        (call("get_document", "<answer>Elhaven</answer>", doc_id="1"), "Do one of them"),
    ],
)
def test_every_mistake_is_told_to_the_model_and_counted(message: Message, told: str) -> None:
    play = opened()
    assert re.search(told, say(play, message) or "")
    assert not play.retrieved  # nothing was looked up
    assert not score(
        play
    ).correct  # an answer beside a call is not taken, even where the rollout ends with it
    say(play, call("get_document", doc_id=1))  # a number is as good as its digits
    assert list(play.retrieved) == ["1"]
    assert {part.name: part.value for part in score(play).parts}["clean_turns"] == 0.5


def test_a_document_that_is_too_long_is_cut_and_says_so() -> None:
    long = row()
    long["paragraphs"][1]["paragraph_text"] = "word " * 5000
    shown, whole = (
        say(opened(long, longest=most), call("get_document", doc_id="1")) or "" for most in (100, 0)
    )
    assert "the first 100 of the document's 25,0" in shown
    assert len(shown) < 250 < 25000 < len(whole)


def test_a_part_is_earned_by_itself() -> None:
    play = opened()
    say(play, Message("assistant", ANSWER.format("")))
    assert (score(play).correct, score(play).total) == (
        True,
        pytest.approx((1.0 + 0.9 + 0.1) / 4.0),
    )
    play = opened(returned=2)
    say(play, call("retrieve_documents", query="x"))
    assert (score(play).correct, score(play).total) == (False, pytest.approx((1.0 + 0.4) / 4.0))


def test_rollouts_of_a_question_share_its_index_and_nothing_else() -> None:
    taskset, task = Musique(MusiqueOptions(retriever="lexical"), 0), to_task(ROW, "test")
    first, second = taskset.open(task, 0), taskset.open(task, 1)
    assert first.index is second.index
    say(first, call("get_document", doc_id="1"))
    assert not second.retrieved
    assert [tool.name for tool in first.tools] == ["retrieve_documents", "get_document"]
