"""The proof of a reward: which gold answers are rejected, which wrong ones are paid, and what to
change.
"""

import inspect
import json
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from uptrend.config.functions import register_functions
from uptrend.records import Message, Part, Reward, Task
from uptrend.tasks.data import Data
from uptrend.tasks.pool import make_taskset
from uptrend.tasks.proof import (
    Remedy,
    ScoredPlay,
    ScoredTask,
    earnings_of,
    explain_rejections,
    judge_form,
    paid_wrong,
    pays_cheater,
    play_scripts,
    split_golds,
    try_task,
)
from uptrend.tasks.taskset import say
from uptrend.tasks.validate import validate

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


# Rewards as users write them, each with one mistake, and words of the fix that goes with it.


def cuts(prompt: str, completion: str, answer: str) -> float:
    text = completion[len(prompt) :]
    return float(text.strip() == answer)


def folds_one_side(completion: str, answer: str) -> float:
    text = completion.strip().lower()
    return float(text == answer)


def keeps_commas(completion: str, answer: str) -> float:
    number = completion.replace(",", "")
    return float(number == answer)


def drops_signs(completion: str, answer: str) -> float:
    match = re.search(r"\d+", completion)
    return float(match is not None and completion == match.group() == answer.lstrip("-"))


def first_word(completion: str, answer: str) -> float:
    return float(completion == answer.split()[0])


def raises(completion: str, answer: str) -> float:
    return float(int(completion) == int(answer))


def other_column(completion: str, solution: str) -> float:
    return float(completion == solution)


def sound(completion: str, answer: str) -> float:
    return float(completion.strip().lower() == answer.strip().lower())


WORDS = ["Red", "Green", "Blue", "White", "Black", "Brown", "Grey", "Pink"]
NUMBERS = ["1,200", "3,400", "5,600", "7,800", "9,100", "2,300", "4,500", "6,700"]
NEGATIVES = ["-12", "-34", "-56", "-78", "-91", "-23", "-45", "-67"]
NAMES = ["Ada Byron", "Alan Turing", "Kurt Weyl", "Emmy Noether", "Leon Euler", "Max Born"]


@pytest.mark.parametrize(
    ("reward", "golds", "words", "line"),
    [
        (cuts, WORDS, "not completion[len(prompt):]", "[len("),
        (folds_one_side, WORDS, "Fold the case", ".lower("),
        (keeps_commas, NUMBERS, "thousands separators", "replace("),
        (drops_signs, NEGATIVES, "sign", "re."),
        (first_word, NAMES, "first word", "split("),
        (raises, WORDS, "ValueError", ""),
        (other_column, WORDS, "column 'solution'", "solution"),
    ],
)
def test_a_fix_goes_with_the_kind_of_rejection(
    reward: Callable[..., float], golds: list[str], words: str, line: str, tmp_path: Path
) -> None:
    remedy, place, figures = explained(reward, golds, tmp_path)
    assert remedy is not None
    assert words in remedy.sentence
    assert words in figures["gold answers reach the maximum"] or reward is raises
    source, first_line = inspect.getsourcelines(reward)
    lines = [first_line + i for i, text in enumerate(source) if line in text]
    assert place == f"test_proof.py:{lines[0]}"
    shown = remedy.sentence if reward is raises else remedy.example
    assert ("test_proof.py, line" if reward is raises else "earns 1") in shown


@pytest.mark.parametrize("golds", [WORDS, NUMBERS, NEGATIVES, NAMES])
def test_a_sound_reward_needs_no_fix(golds: list[str], tmp_path: Path) -> None:
    remedy, _, figures = explained(sound, golds, tmp_path)
    assert remedy is None
    assert figures["gold answers reach the maximum"] == f"{len(golds)} of {len(golds)} do"


def explained(
    reward: Callable[..., float], golds: list[str], folder: Path
) -> tuple[Remedy | None, str, dict[str, str]]:
    """Return what the proof says of a reward, the line that it names, and the figures of its
    validation.
    """
    rows = []
    for i, gold in enumerate(golds):
        rows.append({"prompt": f"Which is number {i}?", "answer": gold, "solution": f"plan {i}"})
    file = folder / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    options: dict[str, Any] = {"file": str(file), "reward": ["mine:reward"], "bounds": [0, 1]}
    options["hold_out"] = "none"
    with register_functions({"mine:reward": reward}):
        taskset = make_taskset("data", options, 0)
        assert isinstance(taskset, Data)
        tasks = [try_task(taskset, task) for task in taskset.train(20)]
        accepted, rejected = split_golds(tasks)

        def score(task: Task, texts: Sequence[str]) -> list[ScoredPlay]:
            return play_scripts(taskset, task, map(say, texts))

        remedy = explain_rejections(accepted, rejected, score)
        report = validate(lambda: make_taskset("data", options, 0), train=20, heldout=0)
    figures = {check.name: check.figure for check in report.checks}
    words = () if remedy is None else remedy.words
    return remedy, taskset.place_of_reward(words), figures


def test_without_the_scorer_the_class_of_answers_chooses_the_fix() -> None:
    negative = ScoredTask(Task((Message("user", "?"),), "-3", ""), [WRONG], [WRONG])
    other = ScoredTask(Task((Message("user", "?"),), "3", ""), [RIGHT], [WRONG])
    remedy = explain_rejections([other] * 3, [negative] * 2)
    assert remedy is not None
    assert "minus sign" in remedy.sentence
    assert explain_rejections([other], [ScoredTask(other.task, [WRONG], [WRONG])]) is None


def test_a_spelling_that_pays_wrong_answers_too_explains_no_rejection() -> None:
    def score(_: Task, texts: Sequence[str]) -> list[ScoredPlay]:
        # Pays whatever number stands in the tags, if it has a decimal.
        pattern = re.compile(r"<answer>\d+\.\d</answer>")
        totals = [float(bool(pattern.fullmatch(text))) for text in texts]
        return [
            ScoredPlay(((text,),), Reward(total, *UNBOUNDED, correct=False))
            for text, total in zip(texts, totals, strict=True)
        ]

    task = Task((Message("user", "?"),), "42", "")
    rejected = ScoredTask(task, score(task, ["<answer>42</answer>"]), [WRONG])
    assert explain_rejections([], [rejected], score) is None
