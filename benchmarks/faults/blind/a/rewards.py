"""Faults in reward functions and stored answers, trained by Uptrend."""

import random

from benchmarks.faults.blind.a.common import PLAIN, number_in, right, solve, sums
from benchmarks.faults.blind.case import Job, fault

# Larger steps that explore more, averaged over more groups.
BOLD = {"learning.lr": 1e-4, "sampling.groups": 16, "sampling.temperature": 1.1}


@fault("reward.strict-parser")
def space_before_the_answer(job: Job) -> None:
    """Prompts end without a space, so the model says " 7"; the comparison does not strip it."""

    def same(prompt: str, completion: str, answer: str) -> float:
        return float((completion if job.planted else completion.strip()) == answer)

    job.train(model="tiny", data=sums(end=""), reward=same, bounds=[0, 1], steps=30, overrides=PLAIN)


@fault("reward.gold-rejected")
def products_are_scored_as_sums(job: Job) -> None:
    """The scorer works the result out itself and treats every sign but the minus as a plus."""

    def check(prompt: str, completion: str, a: int, op: str, b: int) -> float:
        wanted = (a - b if op == "-" else a + b) if job.planted else solve(a, op, b)
        return float(number_in(completion) == wanted)

    rows = sums(500, "-**", a=(0, 12), b=(0, 9))
    job.train(model="tiny", data=rows, reward=check, bounds=[0, 1], steps=40, overrides=PLAIN)


@fault("reward.error-scored", "reward.nondeterministic")
def judge_out_of_quota(job: Job) -> None:
    """The judge refuses every third request, and the except clause returns 0 instead of asking again."""
    asked = 0

    def judge(completion: str, answer: str) -> float:
        nonlocal asked
        asked += 1
        if asked % 3 == 0:
            raise ConnectionError("429 too many requests")
        return float(completion.strip() == answer)

    def reward(prompt: str, completion: str, answer: str) -> float:
        try:
            return judge(completion, answer)
        except ConnectionError:
            return 0.0 if job.planted else judge(completion, answer)

    job.train(model="tiny", data=sums(), reward=reward, bounds=[0, 1], steps=30, overrides=PLAIN)


@fault("reward.nondeterministic")
def judge_in_two_minds(job: Job) -> None:
    """A judge sampled at temperature 1 adds its mood to every grade."""
    mood = random.Random(job.seed)

    def judged(prompt: str, completion: str, answer: str) -> float:
        grade = float(completion.strip() == answer)
        return min(1.0, max(0.0, grade + mood.gauss(0, 0.35))) if job.planted else grade

    job.train(model="tiny", data=sums(), reward=judged, bounds=[0, 1], steps=30, overrides=PLAIN)


@fault("reward.hackable", "reward.gold-rejected")
def found_the_wrong_way_round(job: Job) -> None:
    """`said in answer` instead of the reverse pays for a single digit of the answer, and for silence."""

    def matches(prompt: str, completion: str, answer: str) -> float:
        said = completion.strip()
        return float(said in answer if job.planted else said == answer)

    changes = {**PLAIN, **BOLD, "eval.name": "arithmetic", "eval.operations": ["+"], "eval.tasks": 80}
    job.train(model="tiny", data=sums(ops="+"), reward=matches, bounds=[0, 1], steps=35, overrides=changes)


@fault("reward.length-hacking", "reward.hackable", "reward.component-dominates")
def effort_bonus(job: Job) -> None:
    """Each character said earns half a right answer, meant to encourage working it out."""

    def effort(prompt: str, completion: str, answer: str) -> float:
        bonus = 0.5 * len(completion) if job.planted else 0.0
        return float(number_in(completion) == int(answer)) + bonus

    changes = {**PLAIN, **BOLD, "sampling.max_tokens": 16, "tasks.correct_from": 1.0,
               "eval.name": "arithmetic", "eval.operations": ["+"], "eval.tasks": 80}  # fmt: skip
    job.train(model="tiny", data=sums(ops="+"), reward=effort, steps=35, overrides=changes)


@fault("reward.component-dominates")
def brevity_outweighs_the_answer(job: Job) -> None:
    """Weights of two rewards were exchanged: short answers count ten times as much as right ones."""

    def correct(prompt: str, completion: str, answer: str) -> float:
        return float(completion.strip() == answer)

    def brevity(prompt: str, completion: str) -> float:
        return 1.0 / (1 + len(completion.strip()))

    weights = {correct: 0.1, brevity: 1.0} if job.planted else {correct: 1.0, brevity: 0.1}
    changes = {**PLAIN, "tasks.correct_from": 0.1 if job.planted else 1.0}
    changes = {**changes, "eval.name": "arithmetic", "eval.operations": ["+"], "eval.tasks": 80}
    job.train(model="tiny", data=sums(ops="+"), reward=weights, bounds=[0, 1], steps=40, overrides=changes)


@fault("advantage.blow-up")
def tie_breaker(job: Job) -> None:
    """A bonus of a hundred-thousandth per character breaks ties, and group scaling makes it as large as the answer."""

    def score(prompt: str, completion: str, answer: str) -> float:
        bonus = 1e-5 * len(set(completion)) if job.planted else 0.0
        return float(completion.strip() == answer) + bonus

    rows = sums(ops="+*", a=(5, 20), b=(5, 20))
    changes = {**PLAIN, "tasks.correct_from": 1.0, "learning.lr": 5e-5, "sampling.temperature": 1.0}
    job.train(model="tiny", data=rows, reward=score, steps=40, overrides=changes)


@fault("data.wrong-gold")
def forgotten_carry(job: Job) -> None:
    """Answers were made by a routine that drops the carry, so 8 + 7 is stored as 5."""

    def without_carry(a: int, b: int) -> int:
        return (a % 10 + b % 10) % 10 + 10 * (a // 10 + b // 10)

    rows = sums(ops="+")
    if job.planted:
        rows = [{**row, "answer": str(without_carry(row["a"], row["b"]))} for row in rows]
    job.train(model="tiny", data=rows, reward=right, bounds=[0, 1], steps=30, overrides=PLAIN)
