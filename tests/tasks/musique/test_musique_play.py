"""A question played: tools, every way to call them wrongly, and what is scored in the end."""

import asyncio
import re
from typing import Any

import pytest
from questions import ROW, row

from uptrend.records import Message, Reward, ToolCall
from uptrend.tasks.musique.play import QuestionPlay
from uptrend.tasks.musique.rows import to_task
from uptrend.tasks.musique.taskset import Musique, MusiqueOptions


def opened(given: dict[str, Any] = ROW, **options: Any) -> QuestionPlay:
    taskset = Musique(MusiqueOptions(**{"retriever": "golden", **options}), 0)
    return taskset.open(to_task(given, "test"), 0)


def call(name: str, **arguments: Any) -> Message:
    return Message("assistant", "", (ToolCall(name, arguments),))


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
    said = "<think>so</think><cite>1, 3</cite><answer>old Elhaven</answer>"
    assert say(play, Message("assistant", said)) is None
    got = score(play)
    assert (got.total, got.high, got.correct) == (1.0, 1.0, True)
    assert list(play.shown) == ["1", "3"]


def test_a_search_shows_as_many_documents_as_it_is_told() -> None:
    assert (say(opened(returned=2), call("retrieve_documents", query="Mira")) or "").count("Document ID") == 2
    assert (say(opened(retriever="lexical"), call("retrieve_documents", query="wrote")) or "").count("Document") == 2


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (call("get_document", doc_id="77"), r"no document '77'.*an ID that a search has shown"),
        (call("get_document", doc_id=3.5), "needs doc_id, a text that is not empty; it is 3.5"),
        (call("get_document"), "needs doc_id.*it is missing"),
        (call("retrieve_documents", query=""), "needs query.*it is ''"),
        (call("retrieve_documents", query="  "), "needs query, a text that is not empty"),
        (call("retrieve_documents", query=["a"]), "needs query"),
        (call("retrieve_documents", query="x", top=3), "no argument 'top'. It takes query"),
        (call("search", query="x"), "no tool 'search'. There are retrieve_documents and get_document"),
        (Message("assistant", "", (ToolCall("get_document", {"doc_id": "1"}),) * 2), "2 calls in one turn.*Make one"),
        (Message("assistant", "<tool>{", problem="The call is not JSON"), "The call is not JSON"),
        (Message("assistant", "I think I shall look."), "Call a tool, or finish with <think>"),
        (Message("assistant", ""), "Call a tool, or finish"),
        (Message("assistant", "<answer>x</answer>", (ToolCall("get_document", {"doc_id": "1"}),)), "Do one of them"),
    ],
)
def test_every_mistake_is_told_to_the_model_and_counted(message: Message, told: str) -> None:
    play = opened()
    assert re.search(told, say(play, message) or "", re.DOTALL)
    assert not play.shown  # nothing was looked up
    say(play, call("get_document", doc_id=1))  # a number is as good as its digits
    assert list(play.shown) == ["1"]
    clean = {part.name: part.value for part in score(play).parts}["clean_turns"]
    assert clean == 0.5


def test_an_answer_beside_a_call_is_not_taken_even_where_the_rollout_ends_with_it() -> None:
    play = opened()
    say(play, Message("assistant", "<answer>Elhaven</answer>", (ToolCall("get_document", {"doc_id": "1"}),)))
    assert not score(play).correct
    unread = opened()
    told = say(unread, Message("assistant", "<answer>x</answer><tool>{", problem="The call is not JSON"))
    assert told == "The call is not JSON"


def test_a_search_that_finds_nothing_says_so() -> None:
    assert say(opened(retriever="lexical"), call("retrieve_documents", query="zebra")) == (
        "No document matches. Use other words."
    )


def test_a_document_that_is_too_long_is_cut_and_says_so() -> None:
    long = row()
    long["paragraphs"][1]["paragraph_text"] = "word " * 5000
    shown = say(opened(long, longest=100), call("get_document", doc_id="1")) or ""
    assert len(shown) < 250
    assert "the first 100 of the document's 25,0" in shown
    whole = say(opened(long, longest=0), call("get_document", doc_id="1")) or ""
    assert len(whole) > 25000


def test_an_answer_without_a_look_earns_only_what_it_shows() -> None:
    play = opened()
    assert say(play, Message("assistant", "<think>x</think><cite></cite><answer>Elhaven</answer>")) is None
    got = score(play)
    assert got.correct
    assert got.total == pytest.approx((1.0 + 0.9 + 0.1) / 4.0)


def test_no_answer_is_scored_for_what_was_found() -> None:
    play = opened(returned=2)
    say(play, call("retrieve_documents", query="x"))
    got = score(play)
    assert not got.correct
    assert got.total == pytest.approx((1.0 + 0.4) / 4.0)


def test_rollouts_of_a_question_share_its_index_and_nothing_else() -> None:
    taskset = Musique(MusiqueOptions(retriever="lexical"), 0)
    task = to_task(ROW, "test")
    first, second = taskset.open(task, 0), taskset.open(task, 1)
    assert first.index is second.index
    say(first, call("get_document", doc_id="1"))
    assert not second.shown
    assert first.messages[0].role == "system"
    assert [tool.name for tool in first.tools] == ["retrieve_documents", "get_document"]
