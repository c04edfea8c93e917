"""Replies taken apart: the tags, the citations, and how well they are formed."""

import pytest

from uptrend.tasks.musique.rewards import read_reply, write_reply

WHOLE = "<think>because</think>\n<cite>3, 7</cite>\n<answer>Stanley</answer>"


def test_what_is_written_is_read() -> None:
    assert write_reply("because", ("3", "7"), "Stanley") == WHOLE
    reply = read_reply(WHOLE)
    assert (reply.answer, reply.cited, reply.format) == ("Stanley", ("3", "7"), 1.0)


@pytest.mark.parametrize(
    ("text", "share"),
    [
        (WHOLE, 3 / 3),
        ("Let me see. " + WHOLE + " Done.", 3 / 3),
        ("<cite>3</cite><answer>x</answer>", 2 / 3),
        ("<answer>x</answer>", 1 / 3),
        ("<answer>x</answer><cite>3</cite><think>y</think>", 2 / 3),  # all there, out of order
        ("<think>y</think><answer>x</answer><cite>3</cite>", 2 / 3),
        ("<think>y<cite>3</cite></think><answer>x</answer>", 2 / 3),  # one inside another
        ("<think>a</think><think>b</think><cite>1</cite><answer>x</answer>", 2 / 3),  # said twice
        ("<think>y</think><cite>1</cite><answer>x", 2 / 3),  # not closed
        ("</think>y<think><cite>1</cite><answer>x</answer>", 2 / 3),
        ("Stanley", 0.0),
        ("", 0.0),
    ],
)
def test_the_share_of_tags_that_are_well_formed(text: str, share: float) -> None:
    assert read_reply(text).format == pytest.approx(share)


@pytest.mark.parametrize(
    ("cited", "ids"),
    [
        ("1, 2", ("1", "2")),
        ("1 2;3", ("1", "2", "3")),
        ("[4], [4], #5.", ("4", "5")),
        ("", ()),
        (" , ", ()),
        ("document 3", ("document", "3")),
    ],
)
def test_citations(cited: str, ids: tuple[str, ...]) -> None:
    assert read_reply(f"<cite>{cited}</cite>").cited == ids


def test_the_last_answer_counts_and_an_empty_one_is_one() -> None:
    assert read_reply("<answer>no</answer><answer> yes\n</answer>").answer == "yes"
    assert read_reply("<answer></answer>").answer == ""
    assert read_reply("<answer>never closed").answer is None
