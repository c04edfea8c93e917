"""Which answers are right: SQuAD's normalization by hand-made cases, aliases, digits and ordinals."""

import pytest

from uptrend.tasks.musique.rewards import exact_match, f1, normalize


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("The Beatles", "beatles"),
        ("  a  cat and an   owl ", "cat and owl"),
        ("U.S.A.", "usa"),
        ("O'Neill", "oneill"),
        ("theater", "theater"),
        ("Anna", "anna"),
        ("", ""),
        ("the", ""),
        ("Saint-Étienne", "saintétienne"),
    ],
)
def test_normalization(text: str, plain: str) -> None:
    assert normalize(text) == plain


@pytest.mark.parametrize(
    ("said", "accepted", "right"),
    [
        ("the Mountrail County.", ["Mountrail County"], True),
        ("Mountrail", ["Mountrail County"], False),
        ("Big Apple", ["New York City", "The Big Apple"], True),
        ("two", ["2"], True),
        ("2", ["two"], True),
        ("12", ["2"], False),
        ("the first", ["1st"], True),
        ("22nd", ["twenty-second"], True),
        ("twenty second", ["22nd"], True),
        ("twenty-one", ["21"], True),
        ("21", ["twenty one"], True),
        ("twentieth century", ["20th century"], True),
        ("thirteenth", ["13th"], True),
        ("13rd", ["thirteenth"], False),
        ("forty", ["40"], True),
        ("city-state", ["citystate"], True),  # SQuAD drops a hyphen; only inside a number it is a space
        ("party-goer", ["party goer"], False),
        ("A", ["A"], True),  # nothing but an article
        ("the", ["A"], False),
        ("", ["A"], False),
        ("1st", ["1"], False),
        ("", ["Stanley"], False),
        ("1987", ["1987"], True),
    ],
)
def test_exact_match(said: str, accepted: list[str], right: bool) -> None:
    assert exact_match(said, accepted) == float(right)


@pytest.mark.parametrize(
    ("said", "accepted", "expected"),
    [
        ("Port Blair", ["Port Blair"], 1.0),
        ("Port Blair city", ["Port Blair"], 0.8),  # 2 of 3 said, 2 of 2 wanted
        ("Blair", ["Port Blair"], 2 / 3),
        ("the the the", ["Port"], 0.0),
        ("a b b", ["b b c"], 0.8),  # "a" is an article: b b against b b c
        ("x", ["y", "x z"], 2 / 3),
        ("nothing alike", ["Port Blair"], 0.0),
        ("two ships", ["2 ships"], 1.0),
        ("", ["Port Blair"], 0.0),
        ("", [], 0.0),
    ],
)
def test_f1(said: str, accepted: list[str], expected: float) -> None:
    assert f1(said, accepted) == pytest.approx(expected)
