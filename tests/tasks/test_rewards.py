"""The three rules, case by case."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uptrend.records import Message, Part, Reward, Task
from uptrend.tasks.arithmetic import Arithmetic, Binary, ComparisonFamily, Counting, grade


def product_task(a=6, b=7):
    return Arithmetic(Arithmetic.Options(), 0).task((a, "*", b))


def total(rule, said, task):
    return grade(rule, said, task).total


def test_exact():
    assert grade("exact", "42", product_task()) == Reward(1.0, -1.0, 1.0, True, (Part("exact", 1.0, -1.0, 1.0),))
    assert grade("exact", "41", product_task()) == Reward(-1.0, -1.0, 1.0, False, (Part("exact", -1.0, -1.0, 1.0),))


@pytest.mark.parametrize(
    ("said", "earned"),
    [
        ("42", 1.0),
        ("42 and more", 1.0),
        ("41", 0.5),
        ("43", 0.5),
        ("042", 0.5),  # right, written otherwise: as off by one
        ("44", 0.25),
        ("40", 0.25),
        ("37", 0.25),
        ("47", 0.25),
        ("48", -1.0),
        ("36", -1.0),
        ("13", -0.5),  # 6 + 7
        ("-1", -0.5),  # 6 - 7
        ("1", -1.0),
        ("1000", -1.0),
        ("forty-two", -1.0),
        ("it is 42", -1.0),
        ("", -1.0),
    ],
)
def test_partial(said, earned):
    assert total("partial", said, product_task()) == earned


def test_partial_looks_at_distance_before_the_operation():
    # 2 * 3 = 6; 5 is 2 + 3, but also off by one. -1 is 2 - 3, off by seven.
    assert total("partial", "5", product_task(2, 3)) == 0.5
    assert total("partial", "-1", product_task(2, 3)) == -0.5


@pytest.mark.parametrize(
    ("said", "earned"),
    [
        ("42", 1.0),
        ("43", 0.7),
        ("41", 0.7),
        ("042", 0.7),
        ("44", 0.4),
        ("40", 0.4),
        ("45", 0.1),
        ("47", 0.1),
        ("48", -0.2),
        ("52", -0.2),
        ("32", -0.2),
        ("53", -0.5),
        ("31", -0.5),
        ("-42", -0.5),
        ("none", -1.0),
        ("", -1.0),
    ],
)
def test_rich(said, earned):
    assert total("rich", said, product_task()) == earned


def test_binary_distances_are_of_values():
    five = Binary(Binary.Options(), 0).task(5)
    assert five.answer == "101"
    assert total("rich", "101", five) == 1.0
    assert total("rich", "110", five) == 0.7
    assert total("rich", "111", five) == 0.4
    assert total("rich", "0101", five) == 0.7
    assert total("rich", "1111", five) == -0.2
    assert total("rich", "5", five) == -1.0  # no number in base two
    assert total("partial", "100", five) == 0.5
    assert total("partial", "102", five) == -1.0


def test_counting_is_graded_by_distance():
    three = Counting(Counting.Options(), 0).task(("words", "cat", 3))
    assert total("rich", "4", three) == 0.7
    assert total("partial", "9", three) == -1.0


@pytest.mark.parametrize("rule", ["exact", "partial", "rich"])
def test_words_are_graded_exactly_under_every_rule(rule):
    task = ComparisonFamily(ComparisonFamily.Options(), 0).task((3, 7))
    assert grade(rule, "No.", task) == Reward.of("exact", 1.0, -1.0, 1.0, True)
    assert grade(rule, "yes", task) == Reward.of("exact", -1.0, -1.0, 1.0, False)
    assert grade(rule, "7", task) == Reward.of("exact", -1.0, -1.0, 1.0, False)


def test_a_part_is_named_after_its_rule():
    assert grade("partial", "1", product_task()).parts[0].name == "partial"
    assert grade("rich", "1", product_task()).parts[0].name == "rich"


@given(
    st.sampled_from(["exact", "partial", "rich"]),
    st.one_of(st.text(max_size=30), st.integers().map(str)),
    st.integers(-400, 400),
)
def test_only_the_answer_reaches_the_maximum(rule, said, answer):
    task = Task((Message("user", "?"),), str(answer), "x", data={"base": 10})
    reward = grade(rule, said, task)
    assert -1.0 <= reward.total <= 1.0
    assert (reward.total == 1.0) == reward.correct
    assert reward == grade(rule, said, task)
    assert grade(rule, str(answer), task).total == 1.0
