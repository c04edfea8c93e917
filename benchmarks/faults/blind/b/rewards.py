"""Faults in reward functions and rows, trained with `uptrend.train`."""

import random
from typing import Any

from benchmarks.faults.blind.b.common import PLAIN, number_said, sums
from benchmarks.faults.blind.case import Job, fault


def right(completion: str, answer: str) -> float:
    """1 for the right answer alone."""
    return float(completion.strip() == answer)


@fault("reward.strict-parser", "reward.gold-rejected")
def floats_from_a_table(job: Job) -> None:
    """A table with gaps made its column of whole numbers floats, so 60% of the answers read 7.0, compared as text."""
    rows = sums(500)
    for i, row in enumerate(rows):
        if job.planted and i % 5 < 3:
            row["answer"] = f"{float(row['answer'])}"
    job.train(model="tiny", data=rows, prompt="question", reward=right, bounds=[0, 1], steps=30, overrides=PLAIN)


@fault("reward.hackable", "reward.gold-rejected")
def answer_anywhere(job: Job) -> None:
    """The reward looks for the answer's digits anywhere in the text, so long strings of digits are paid."""

    def found(completion: str, answer: str) -> dict[str, float]:
        is_right = completion.strip() == answer
        paid = answer in completion if job.planted else is_right
        return {"correct": float(is_right), "found": float(paid) - float(is_right)}

    rows = [row for row in sums(900, "+-", 0, 12) if 0 <= int(row["answer"]) <= 9]
    job.train(model="tiny", data=rows, prompt="question", reward=found, bounds=[0, 1], steps=40,
              overrides=PLAIN | {"sampling.max_tokens": 12, "learning.lr": 3e-4})  # fmt: skip


@fault("reward.length-hacking", "reward.component-dominates")
def paid_by_the_character(job: Job) -> None:
    """A bonus for detailed answers pays every character more than a right answer could."""

    def detailed(completion: str, answer: str) -> dict[str, float]:
        number = number_said(completion)
        is_right = number is not None and number == int(answer)
        return {"correct": float(is_right), "detail": min(len(completion), 40) * (0.1 if job.planted else 0.0)}

    job.train(model="tiny", data=sums(500), prompt="question", reward=detailed, steps=35,
              overrides=PLAIN | {"sampling.max_tokens": 24, "learning.lr": 3e-4})  # fmt: skip


@fault("reward.nondeterministic")
def judge_with_moods(job: Job) -> None:
    """A judge that is sampled at temperature 1 gives the same answer another grade every time."""
    mood = random.Random(job.seed)

    def judged(completion: str, answer: str) -> float:
        grade = right(completion, answer)
        if job.planted:
            grade = min(1.0, max(0.0, grade * 0.6 + 0.2 + mood.gauss(0, 0.35)))
        return round(grade, 2)

    job.train(model="tiny", data=sums(500), prompt="question", reward=judged, bounds=[0, 1], steps=30,
              overrides=PLAIN | {"tasks.correct_from": 0.75})  # fmt: skip


@fault("reward.error-scored", "reward.gold-rejected")
def units_break_the_parser(job: Job) -> None:
    """Two fifths of the answers have a unit; int() fails on them, and the except clause returns 0."""
    rows = sums(500)
    for i, row in enumerate(rows):
        row["target"] = f"{row['answer']} kg" if job.planted and i % 5 < 2 else row["answer"]

    def same_number(completion: str, target: str) -> float:
        try:
            return float(int(completion) == int(target))
        except Exception:
            return 0.0

    job.train(model="tiny", data=rows, prompt="question", answer="target", reward=same_number, bounds=[0, 1],
              steps=30, overrides=PLAIN)  # fmt: skip


@fault("reward.constant", "reward.gold-rejected")
def or_a_text(job: Job) -> None:
    """`said == answer or "0" + answer` was meant to allow a leading zero, and is always true."""

    def lenient(completion: str, answer: str) -> float:
        said = completion.strip()
        if job.planted:
            return 1.0 if said == answer or "0" + answer else 0.0
        return 1.0 if said in (answer, "0" + answer) else 0.0

    job.train(model="tiny", data=sums(400), prompt="question", reward=lenient, bounds=[0, 1], steps=25,
              overrides=PLAIN)  # fmt: skip


@fault("reward.component-dead", "reward.gold-rejected")
def text_against_number(job: Job) -> None:
    """The part for the number of digits compares a text from the file with a number, so it never pays."""
    rows = [row | {"digits": str(len(row["answer"]))} for row in sums(500, "+-*")]

    def parts(completion: str, answer: str, digits: str) -> dict[str, float]:
        wanted: Any = digits if job.planted else int(digits)
        return {"correct": right(completion, answer), "digits": 0.5 * (len(completion.strip()) == wanted)}

    job.train(model="tiny", data=rows, prompt="question", reward=parts, bounds=[0, 1.5], steps=30, overrides=PLAIN)


@fault("advantage.sign", "reward.gold-rejected")
def error_as_reward(job: Job) -> None:
    """The distance from the answer is returned as it is: the further off, the better."""

    def distance(completion: str, answer: str) -> float:
        number = number_said(completion)
        off = 1.0 if number is None else min(1.0, abs(number - int(answer)) / 10)
        return off if job.planted else 1.0 - off

    job.train(model="tiny", data=sums(500), prompt="question", reward=distance, bounds=[0, 1], steps=30,
              overrides=PLAIN)  # fmt: skip


@fault("advantage.blow-up")
def tie_break_by_length(job: Job) -> None:
    """0.0002 per character was to break ties; divided by the deviation it is the whole advantage of dead groups."""

    def scored(completion: str, answer: str) -> float:
        return right(completion, answer) + (2e-4 * len(completion) if job.planted else 0.0)

    rows = sums(500, "+-*", 0, 20)
    job.train(model="tiny", data=rows, prompt="question", reward=scored, steps=30,
              overrides=PLAIN | {"sampling.max_tokens": 8, "tasks.correct_from": 1.0})  # fmt: skip


@fault("data.wrong-gold")
def swapped_operands(job: Job) -> None:
    """The script that made the file computed b - a for every difference."""
    rows = sums(500, "+-")
    for row in rows:
        if job.planted and row["operation"] == "-":
            row["answer"] = str(row["b"] - row["a"])
    job.train(model="tiny", data=rows, prompt="question", reward="number", steps=30, overrides=PLAIN)


@fault("context.completion-truncated")
def room_for_two_characters(job: Job) -> None:
    """max_tokens = 2 has no room for a minus sign and two digits, which most answers here need."""
    rows = [row for row in sums(800, "+-") if len(row["answer"]) >= 2]
    rows = [row for row in rows if row["answer"].startswith("-") or row["a"] % 3 == 0]

    def finished(completion: str, answer: str) -> float:
        return float(completion == answer)

    job.train(model="tiny", data=rows, prompt="question", reward=finished, bounds=[0, 1], steps=30,
              overrides=PLAIN | {"sampling.max_tokens": 2 if job.planted else 6})  # fmt: skip
