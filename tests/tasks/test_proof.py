"""The proof of a reward: which gold answers are rejected, and which wrong ones are paid."""

import math
from collections.abc import Sequence

import pytest

from uptrend.records import Message, Part, Reward, Task
from uptrend.tasks.proof import (
    ScoredPlay,
    ScoredTask,
    earnings_of,
    judge_form,
    paid_wrong,
    pays_cheater,
    split_golds,
)

UNBOUNDED = (math.nan, math.nan)


def play(
    total: float | None,
    bounds: tuple[float, float] = UNBOUNDED,
    correct: bool = False,
    parts: int = 1,
) -> ScoredPlay:
    if total is None:
        return ScoredPlay((("ValueError: no number",),), None, ValueError("no number"))
    each = tuple(Part(str(n), total / parts, *UNBOUNDED) for n in range(parts))
    return ScoredPlay((("text",),), Reward(total, *bounds, correct, each))


def tried(gold: ScoredPlay | None, *others: ScoredPlay) -> ScoredTask:
    return ScoredTask(
        Task((Message("user", "2 + 2 = "),), "4", "sums"), [gold] if gold else [], others
    )


def unbounded(gold: float | None, *others: float) -> ScoredTask:
    return tried(play(gold), *map(play, others))


RIGHT = play(1, (0, 1), correct=True)
WRONG = play(0, (0, 1))
SHORT_OF_IT = play(0.9, (0, 1), correct=True)


@pytest.mark.parametrize(
    ("tasks", "is_rejected"),
    [
        ([tried(RIGHT, WRONG)], [False]),
        ([tried(WRONG, WRONG)], [True]),
        ([tried(SHORT_OF_IT, WRONG)], [True]),
        # A penalty keeps it from the maximum.
        ([tried(play(0.9, (0, 1), correct=True, parts=2), WRONG)], [False]),
        ([tried(play(0.9, (0, 1), correct=True, parts=2), SHORT_OF_IT)], [True]),
        ([tried(None, WRONG)], [False]),
        # Without bounds, what wrong answers earn decides.
        ([unbounded(2, 1, 0), unbounded(-1, -5)], [False, False]),
        ([unbounded(2, 1), unbounded(0, 1)], [False, True]),
        ([unbounded(2, 1), unbounded(1, 1)], [False, True]),
        (
            [unbounded(2, 1), unbounded(2, 2)],
            [False, False],
        ),  # that one is paid, and gold is not rejected
        ([unbounded(0, 0), unbounded(0, 0)], [True, True]),
        ([unbounded(None, 0)], [True]),
    ],
)
def test_gold_answers_that_do_not_earn_the_most(
    tasks: Sequence[ScoredTask], is_rejected: list[bool]
) -> None:
    accepted, rejected = split_golds(tasks)
    assert [any(each is other for other in rejected) for each in tasks] == is_rejected
    assert len(accepted) == is_rejected.count(False)


def test_wrong_answers_that_are_paid() -> None:
    paid = play(1, (0, 1))
    assert paid_wrong([tried(RIGHT, WRONG, paid)], by_maximum=True) == [(tried(RIGHT).task, paid)]
    assert len(paid_wrong([unbounded(2, 1, 2, 3), unbounded(5, 4)], by_maximum=False)) == 2
    # Gold that earns nothing is no bar.
    assert len(paid_wrong([unbounded(None, 0)], by_maximum=False)) == 1


def test_who_goes_for_the_reward_is_paid_in_full_or_as_gold_is() -> None:
    assert pays_cheater(play(0, (0, 1), correct=True))
    assert pays_cheater(play(1, (0, 1)))
    assert not pays_cheater(play(3))
    assert pays_cheater(play(3), gold_total=3)
    assert not pays_cheater(play(None), gold_total=-1)


def test_a_form_in_which_gold_is_told_from_wrong_answers() -> None:
    tasks = [unbounded(1, 0), unbounded(1, 0), unbounded(1, 0), unbounded(0, 0)]
    assert judge_form(tasks) == (0.75, 0)
    assert judge_form([*tasks, unbounded(0, 0)]) is None
    assert judge_form(tasks, sign=-1) is None
    assert judge_form([unbounded(-1, 0)], sign=-1) == (-1, 0)
    assert judge_form([]) is None
    assert judge_form([unbounded(1)]) is None
    assert judge_form([tried(play(1), play(None))]) is None


@pytest.mark.parametrize(
    ("tasks", "is_inverted"),
    [
        ([unbounded(-1, 0, 0), unbounded(-1, 0, -1)], True),
        ([unbounded(1, 0, 5), unbounded(1, 0, 0)], False),  # a wrong one is paid now and then
        ([unbounded(0, 0)], False),
        ([unbounded(None, 0)], False),
    ],
)
def test_right_answers_that_earn_less(tasks: Sequence[ScoredTask], is_inverted: bool) -> None:
    assert earnings_of(tasks).is_inverted == is_inverted
