"""Replies taken apart, the answers that are right, and the reward against a computation by hand."""

import pytest

from uptrend.tasksets.musique.play import (
    RewardWeights,
    exact_match,
    f1,
    normalize,
    read_reply,
    reward,
    write_reply,
)

WHOLE = "<think>because</think>\n<cite>3, 7</cite>\n<answer>Stanley</answer>"


@pytest.mark.parametrize(
    ("text", "tags"),
    [
        (WHOLE, 3),
        ("Let me see. " + WHOLE + " Done.", 3),
        ("<cite>3</cite><answer>x</answer>", 2),
        ("<answer>x</answer>", 1),
        ("<answer>x</answer><cite>3</cite><think>y</think>", 2),  # all there, out of order
        ("<think>y</think><answer>x</answer><cite>3</cite>", 2),
        ("<think>y<cite>3</cite></think><answer>x</answer>", 2),  # one inside another
        ("<think>a</think><think>b</think><cite>1</cite><answer>x</answer>", 2),  # said twice
        ("<think>y</think><cite>1</cite><answer>x", 2),  # not closed
        ("</think>y<think><cite>1</cite><answer>x</answer>", 2),
        ("Stanley", 0),
    ],
)
def test_the_share_of_tags_that_are_well_formed(text: str, tags: int) -> None:
    assert read_reply(text).format == pytest.approx(tags / 3)


def test_answers_and_citations_are_read() -> None:
    assert write_reply("because", ("3", "7"), "Stanley") == WHOLE
    assert (read_reply(WHOLE).answer, read_reply(WHOLE).cited) == ("Stanley", ("3", "7"))
    cited = {
        "1 2;3": ("1", "2", "3"),
        "[4], [4], #5.": ("4", "5"),
        "": (),
        " , ": (),
        "document 3": ("document", "3"),
    }
    assert {text: read_reply(f"<cite>{text}</cite>").cited for text in cited} == cited
    assert read_reply("<answer>no</answer><answer> yes\n</answer>").answer == "yes"
    assert read_reply("<answer></answer>").answer == ""
    assert read_reply("<answer>never closed").answer is None


def test_normalization_is_squads() -> None:
    plain = {
        "The Beatles": "beatles", "  a  cat and an   owl ": "cat and owl", "U.S.A.": "usa", "O'Neill": "oneill",
        "theater": "theater", "Anna": "anna", "": "", "the": "", "Saint-Étienne": "saintétienne",
    }  # fmt: skip
    assert {text: normalize(text) for text in plain} == plain


def test_exact_match() -> None:
    right = [
        ("the Mountrail County.", "Mountrail County"), ("two", "2"), ("2", "two"), ("the first", "1st"),
        ("22nd", "twenty-second"), ("twenty second", "22nd"), ("twenty-one", "21"), ("21", "twenty one"),
        ("twentieth century", "20th century"), ("thirteenth", "13th"), ("forty", "40"), ("1987", "1987"),
        ("city-state", "citystate"),  # SQuAD drops a hyphen; only inside a number it is a space
        ("A", "A"),  # nothing but an article
    ]  # fmt: skip
    wrong = [
        ("Mountrail", "Mountrail County"), ("12", "2"), ("13rd", "thirteenth"), ("party-goer", "party goer"),
        ("the", "A"), ("", "A"), ("1st", "1"), ("", "Stanley"),
    ]  # fmt: skip
    assert [pair for pair in right + wrong if exact_match(pair[0], [pair[1]])] == right
    assert exact_match("Big Apple", ["New York City", "The Big Apple"])


@pytest.mark.parametrize(
    ("said", "accepted", "expected"),
    [
        ("Port Blair", ["Port Blair"], 1.0),
        ("Port Blair city", ["Port Blair"], 0.8),  # 2 of 3 said, 2 of 2 wanted
        ("the the the", ["Port"], 0.0),
        ("a b b", ["b b c"], 0.8),  # "a" is an article: b b against b b c
        ("x", ["y", "x z"], 2 / 3),
        ("two ships", ["2 ships"], 1.0),
        ("", ["Port Blair"], 0.0),
        ("", [], 0.0),
    ],
)
def test_f1(said: str, accepted: list[str], expected: float) -> None:
    assert f1(said, accepted) == pytest.approx(expected)


ALMOST = write_reply("y", ("1", "9", "8"), "Stanley town")
GOLD = write_reply("y", ("1", "2"), "Stanley")
MATCH = RewardWeights(
    exact_match=7.0, f1=0, retrieval_recall=0, retrieval_precision=0, citation_recall=0, format=0
)


@pytest.mark.parametrize(
    ("text", "shown", "weights", "scale", "total", "correct"),
    [
        (GOLD, "12", RewardWeights(), 1.0, 1.0, True),
        (GOLD, "12", RewardWeights(), 2.0, 2.0, True),
        (GOLD, "", MATCH, 1.0, 1.0, True),  # only ratios of weights matter
        # Exact 0, F1 2/3, retrieval recall 1, precision 1/2, citation recall 1/2, format 1; weights
        # sum to 4.
        (
            ALMOST,
            "1234",
            RewardWeights(),
            1.0,
            (0.9 * 2 / 3 + 1.0 + 0.4 * 0.5 + 0.6 * 0.5 + 0.1) / 4.0,
            False,
        ),
        (
            ALMOST,
            "1",
            RewardWeights(),
            1.5,
            1.5 * (0.9 * 2 / 3 + 0.5 + 0.4 + 0.6 * 0.5 + 0.1) / 4.0,
            False,
        ),
        ("I do not know.", "", RewardWeights(), 1.0, 0.0, False),
    ],
)
def test_the_reward_by_hand(
    text: str, shown: str, weights: RewardWeights, scale: float, total: float, correct: bool
) -> None:
    got = reward(read_reply(text), ["Stanley"], ["1", "2"], list(shown), weights, scale, clean=0.5)
    assert (got.low, got.high, got.correct) == (0.0, scale, correct)
    assert got.total == pytest.approx(total) == sum(part.weight * part.value for part in got.parts)
    values = {part.name: part.value for part in got.parts}
    assert values["clean_turns"] == 0.5
    assert values["citation_precision"] == pytest.approx({GOLD: 1, ALMOST: 1 / 3}.get(text, 0))
