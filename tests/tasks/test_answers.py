"""One way to read an answer, for training and evaluation alike."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uptrend.tasks.arithmetic import extract, is_right, read_number


@pytest.mark.parametrize(
    ("said", "read"),
    [
        ("23", "23"),
        ("  23\n", "23"),
        ("-7", "-7"),
        ("- 7", "-"),
        ("23.", "23"),
        ("23 apples", "23"),
        ("7.5", "7"),
        ("7th", "7"),
        ("007", "007"),
        ("-0", "-0"),
        ("+7", "+7"),
        ("(7)", "(7"),
        ("The answer is 7", "the"),
        ("Yes", "yes"),
        ("YES!", "yes"),
        ("no.", "no"),
        ("No, because 3", "no"),
        ("yes\nno", "yes"),
        ("", ""),
        ("   \n", ""),
        ("?!", ""),
        ("٣", "٣"),
    ],
)
def test_extraction_by_hand(said, read):
    assert extract(said) == read


@pytest.mark.parametrize(
    ("said", "answer", "right"),
    [
        ("7", "7", True),
        ("7 8", "7", True),
        ("77", "7", False),
        ("007", "7", False),
        ("-0", "0", False),
        ("I think it is 7", "7", False),
        ("Yes.", "yes", True),
        ("yes", "Yes", True),
        ("yesterday", "yes", False),
        ("", "7", False),
        ("101", "101", True),
        ("0101", "101", False),
    ],
)
def test_answers_are_compared_as_text(said, answer, right):
    assert is_right(said, answer) is right


def test_numbers_are_read_in_their_base():
    assert read_number("101", 2) == 5
    assert read_number("-101", 2) == -5
    assert read_number("12", 2) is None
    assert read_number("12", 10) == 12
    assert read_number("yes", 10) is None
    assert read_number("1_0", 10) is None
    assert read_number("9" * 5000, 10) is None  # more than Python reads: no crash


@given(st.integers(), st.text(max_size=20))
def test_a_leading_number_is_what_is_read(number, rest):
    if not rest[:1].isdigit():
        assert extract(f" {number}{rest}") == str(number)


@given(st.text())
def test_extraction_never_fails_and_reads_one_word(said):
    read = extract(said)
    assert read == extract(said)
    assert not read or not read[0].isspace()
    assert extract(f"word {said}") == "word"
