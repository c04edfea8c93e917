"""Healthy runs with `uptrend.train`: odd in one way or another, and right."""

import random

from benchmarks.faults.blind.b.common import PLAIN, number_said, sums
from benchmarks.faults.blind.b.recipes import recipe
from benchmarks.faults.blind.case import Job, healthy


@healthy
def tenths(job: Job) -> None:
    """A graded reward in tenths, with parts of 0.1 and 0.3 and bounds that are not told."""

    def graded(completion: str, answer: str) -> float:
        said = number_said(completion)
        if said is None:
            return 0.0
        off = abs(said - int(answer))
        return 1.0 if off == 0 else 0.3 if off == 1 else 0.1 if off <= 3 else 0.0

    job.train(model="tiny", data=sums(500), prompt="question", reward=graded, steps=30, overrides=PLAIN)


@healthy
def three_rewards(job: Job) -> None:
    """Correctness with most of the weight, a little for a number at all and for being near."""

    def correct(completion: str, answer: str) -> float:
        return float(completion.strip() == answer)

    def is_number(completion: str) -> float:
        return float(completion.strip().lstrip("-").isdigit())

    def near_it(completion: str, answer: str) -> float:
        said = number_said(completion)
        return 0.0 if said is None else max(0.0, 1 - abs(said - int(answer)) / 10)

    weights = {correct: 1.0, is_number: 0.1, near_it: 0.3}
    job.train(model="tiny", data=sums(600, "+-*"), prompt="question", reward=weights,
              bounds=[0, 1], steps=30, overrides=PLAIN | {"sampling.temperature": 0.9})  # fmt: skip


@healthy
def adapters_with_penalty(job: Job) -> None:
    """LoRA with a KL penalty to the model without adapters."""
    job.train(recipe({"reward": "partial"}, model={"lora": {"r": 8, "alpha": 16}},
                     learning={"lr": 3e-4, "kl": {"beta": 0.02}}))  # fmt: skip


@healthy
def constant_length_loss(job: Job) -> None:
    """Dr. GRPO without scaling by the deviation, with larger groups and room that is not needed."""
    job.train(recipe({}, sampling={"size": 12, "groups": 6, "max_tokens": 16},
                     learning={"loss": "dr_grpo", "scale": "none", "lr": 6e-5}))  # fmt: skip


@healthy
def groups_of_four_resampled(job: Job) -> None:
    """Small groups, where dead ones are drawn again."""
    job.train(recipe({"reward": "rich"}, sampling={"groups": 16, "size": 4, "resample": 2}))


@healthy
def slow_but_moving(job: Job) -> None:
    """A careful rate of 3e-5 with a short warm-up and cosine decay, over 45 steps."""
    job.train(recipe({"reward": "partial"}, learning={"lr": 3e-5, "warmup": 3, "schedule": "cosine", "steps": 45}))


@healthy
def two_updates_per_step(job: Job) -> None:
    """Two minibatches per step with a higher upper clip."""
    job.train(recipe({}, learning={"minibatches": 2, "clip_high": 0.28, "loss": "gspo" if job.seed else "dapo"}))


@healthy
def cooler_sampling(job: Job) -> None:
    """Temperature 0.7 with dead groups kept from the learner."""
    job.train(recipe({}, sampling={"temperature": 0.7, "size": 12}, learning={"skip_dead": True}))


@healthy
def losses_as_rewards_below_zero(job: Job) -> None:
    """Rewards from -3 to 0: minus the distance, cut at 3; 0 is the best."""

    def minus_distance(completion: str, answer: str) -> float:
        said = number_said(completion)
        return -3.0 if said is None else -min(3.0, abs(said - int(answer)) / 2)

    job.train(model="tiny", data=sums(500), prompt="question", reward=minus_distance, bounds=[-3, 0], steps=30,
              overrides=PLAIN | {"learning.baseline": "leave_one_out"})  # fmt: skip


@healthy
def trl_signature_and_unknown_rows(job: Job) -> None:
    """A function in TRL's signature that can't tell for a few rows, which are left out."""
    rows = sums(500)
    for i, row in enumerate(rows):
        row["checked"] = i % 12 != 0

    def known(prompts: list[str], completions: list[str], answer: list[str], checked: list[bool]) -> list[float | None]:
        return [float(said.strip() == right) if sure else None
                for said, right, sure in zip(completions, answer, checked, strict=True)]  # fmt: skip

    rows = [row for row in rows if row["checked"]]
    random.Random(2).shuffle(rows)
    job.train(model="tiny", data=rows, prompt="question", reward=known, bounds=[0, 1], steps=30, overrides=PLAIN)
