"""Answers as text: read strictly and leniently, found in datasets, corrupted, drawn and named by
class.
"""

import pytest

from uptrend.tasks.answers import (
    Form,
    answer_of,
    computed_result,
    draw_every_class,
    final_answer,
    forms_of,
    gold_column,
    name_class,
    near_miss,
    other_answers,
    says,
    says_leniently,
)


@pytest.mark.parametrize(
    ("text", "gold", "strictly", "somehow"),
    [
        ("7", "7", True, True),
        (" 7.\nand more", "7", True, True),
        ("<think>x</think><answer> Valiford </answer>", "valiford", True, True),
        ("The answer is 12.", "12", False, True),
        ("#### 1,200", "1200", False, True),
        ("\\boxed{3.0}", "3", False, True),
        ("x = 5", "5", False, True),
        ("5 or 6", "5", False, False),
        ("-7", "7", False, False),
        ("I do not know", "7", False, False),
        ("17", "7", False, False),
        # Nobody writes numbers so, and a scorer that rejects them loses nothing.
        ("-0", "0", False, False),
        ("x = -0.0", "0", False, False),
        ("007", "7", False, False),
        ("-0.5", "-0.5", True, True),
        ("= 0", "0", False, True),
        ("", "", False, False),
    ],
)
def test_the_second_reader(text: str, gold: str, strictly: bool, somehow: bool) -> None:
    assert says(text, gold) is strictly
    assert says_leniently(text, gold) is somehow
    assert answer_of(text) == answer_of(answer_of(text))


def test_gold_answers_are_found_in_a_dataset() -> None:
    assert gold_column({"prompt": "x", "Solution": "a #### 7"}) == "Solution"
    assert gold_column({"prompt": "x", "answer": {"gold": [7]}}) == "answer"
    assert gold_column({"prompt": "x", "id": 3}) is None
    answers = {
        "so 3 #### 1,200": "1,200",
        r"thus \boxed{5}": "5",
        "<answer> a </answer>": "a",
        " b ": "b",
    }
    assert [final_answer(text) for text in answers] == list(answers.values())


def test_wrong_answers_are_never_the_gold_one_in_other_words() -> None:
    assert other_answers("1200", ["1,200", "1200.0", "7"]) == ["7"]
    assert other_answers("Rome", ["rome", "Paris"]) == ["Paris"]
    misses = {"12": "13", "1,200": "1201", "2.5": "3.5", "Rome": "emoRx"}
    assert [near_miss(gold) for gold in misses] == list(misses.values())


def test_an_answer_that_is_no_text_is_written_in_more_forms() -> None:
    assert {form.part for form in forms_of(["7"])} == {""}
    parts = [form.part for form in forms_of(["7", '["a", "b"]']) if form.words == "{}"]
    assert [Form("{}", part).write('["a", "b"]') for part in parts] == [
        '["a", "b"]',
        "['a', 'b']",
        "a",
    ]


def test_a_few_answers_are_of_every_class() -> None:
    golds = [*map(str, range(1, 10)), "-3", "0", "Rome"]
    drawn = draw_every_class(golds * 10, lambda gold: gold, 16)
    assert len(drawn) == 16
    assert {"-3", "0", "Rome"} < set(drawn)
    assert draw_every_class(golds, lambda gold: gold, 100) != golds
    assert sorted(draw_every_class(golds, lambda gold: gold, 100)) == sorted(golds)


@pytest.mark.parametrize(
    ("rejected", "accepted", "name"),
    [
        (["-3", "-4"], ["3", "4"], "2 of 2 that are negative, 0 of 2 others"),
        (["-3", "4"], ["3", "-4"], ""),
        (["-3"], ["3", "4"], ""),  # one may be an odd row
        (["3", "4"], [], ""),
    ],
)
def test_a_class_is_named_where_its_members_alone_are_rejected(
    rejected: list[str], accepted: list[str], name: str
) -> None:
    assert name_class(rejected, accepted) == name


@pytest.mark.parametrize(
    ("prompt", "result"),
    [("Calculate: 3 - 5 = ", -2), ("2 × 4?", 8), ("1 + 2 + 3", None), ("3 + x", None)],
)
def test_the_result_of_a_prompt(prompt: str, result: float | None) -> None:
    assert computed_result(prompt) == (
        pytest.approx(float("nan"), nan_ok=True) if result is None else result
    )
