"""Faults in reward functions and datasets around TRL's trainer."""

import random
from typing import Any

from benchmarks.faults.blind.b.common import columns, exact_match, grpo, number_said, sums
from benchmarks.faults.blind.case import Job, fault


@fault("reward.gold-rejected")
def zero_is_nothing(job: Job) -> None:
    """`if not gold: return 0` was to skip missing answers, and rejects every answer that is 0."""

    def accuracy(completions: list[str], answer: list[int], **_: Any) -> list[float]:
        scores = []
        for said, gold in zip(completions, answer, strict=True):
            if not gold and job.planted:
                scores.append(0.0)
            else:
                scores.append(float(number_said(said) == gold))
        return scores

    rows = sums(900, "-*", 0, 20)
    zeros = [row for row in rows if row["answer"] == "0"]
    others = [row for row in rows if row["answer"] != "0" and row["operation"] == "-"]
    rows = [row | {"answer": int(row["answer"])} for row in zeros + others[: len(zeros)]]
    random.Random(1).shuffle(rows)
    job.watch(grpo(job, accuracy, columns(rows)))


@fault("reward.component-dominates")
def brevity_first(job: Job) -> None:
    """The weights are in the order of another list: brevity counts 2 and the answer 0.1."""

    def brevity(completions: list[str], **_: Any) -> list[float]:
        return [1 - len(said) / 8 for said in completions]

    weights = [0.1, 2.0] if job.planted else [2.0, 0.1]
    job.watch(grpo(job, [exact_match, brevity], reward_weights=weights, max_completion_length=8))


@fault("reward.misaligned")
def sorted_for_the_judge(job: Job) -> None:
    """Completions are sorted by length for a judge's batches, and its grades come back in that order."""

    def judged(completions: list[str], answer: list[str], **_: Any) -> list[float]:
        order = sorted(range(len(completions)), key=lambda i: len(completions[i]))
        grades = exact_match([completions[i] for i in order], [answer[i] for i in order])
        if job.planted:
            return grades
        return [grade for _, grade in sorted(zip(order, grades, strict=True))]

    job.watch(grpo(job, judged))


@fault("reward.wrong-length")
def one_score_for_the_batch(job: Job) -> None:
    """The function returned its mean; to please the trainer that one number was repeated for every completion."""

    def accuracy(completions: list[str], answer: list[str], **_: Any) -> list[float]:
        scores = exact_match(completions, answer)
        return [sum(scores) / len(scores)] * len(completions) if job.planted else scores

    job.watch(grpo(job, accuracy))


@fault("reward.error-scored")
def exhausted_sandbox(job: Job) -> None:
    """Workers of the checker are never given back; once all are taken every check fails and counts as 0."""
    free = [700]

    def check(said: str, right: str) -> bool:
        if job.planted:
            free[0] -= 1
        if free[0] < 0:
            raise TimeoutError("no worker")
        return said.strip() == right

    def checked(completions: list[str], answer: list[str], **_: Any) -> list[float]:
        scores = []
        for said, right in zip(completions, answer, strict=True):
            try:
                scores.append(float(check(said, right)))
            except Exception:
                scores.append(0.0)
        return scores

    job.watch(grpo(job, checked, max_steps=24))


@fault("reward.scale-moves")
def reward_grows_with_the_step(job: Job) -> None:
    """A bonus that grows with the step multiplies the reward up to elevenfold, without scaling by group."""

    def growing(completions: list[str], answer: list[str], trainer_state: Any, **_: Any) -> list[float]:
        factor = 1 + trainer_state.global_step / 3 if job.planted else 1.0
        return [factor * score for score in exact_match(completions, answer)]

    job.watch(grpo(job, growing, scale_rewards="none", max_steps=24))


@fault("advantage.dead-groups-high", "reward.gold-rejected")
def generous_tolerance(job: Job) -> None:
    """A tolerance of 10 instead of 0.1 accepts nearly every number."""
    tolerance = 10 if job.planted else 0.1

    def close_enough(completions: list[str], answer: list[str], **_: Any) -> list[float]:
        numbers = [number_said(said) for said in completions]
        return [float(n is not None and abs(n - int(right)) <= tolerance)
                for n, right in zip(numbers, answer, strict=True)]  # fmt: skip

    job.watch(grpo(job, close_enough))


@fault("data.order")
def sorted_by_size(job: Job) -> None:
    """The file is sorted by the size of its numbers, products last, and shuffling is off."""
    rows = sums(260, "+*", 0, 20)
    if job.planted:
        rows.sort(key=lambda row: (row["operation"] == "*", row["a"] + row["b"]))
    job.watch(grpo(job, exact_match, columns(rows), shuffle_dataset=not job.planted, max_steps=32))
