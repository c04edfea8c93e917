"""Runs with nothing wrong, trained by Uptrend."""

import math
from typing import Any

from benchmarks.faults.blind.a.common import PLAIN, number_in, right, sums
from benchmarks.faults.blind.a.recipes import recipe
from benchmarks.faults.blind.case import Job, healthy


@healthy
def rich_rewards(job: Job) -> None:
    """Graded rewards on all three operations."""
    three = {"operations": ["+", "-", "*"], "reward": "rich"}
    job.train(recipe(tasks=three, eval=three, learning={"steps": 35}))


@healthy
def light_penalty_and_dapo(job: Job) -> None:
    """A small KL penalty with another loss."""
    job.train(recipe(learning={"loss": "dapo", "kl": {"beta": 0.01}, "clip_high": 0.28}))


@healthy
def small_adapter(job: Job) -> None:
    """LoRA of rank 8 at a rate that suits it."""
    job.train(recipe(model={"lora": {"r": 8, "alpha": 16}}, learning={"lr": 3e-4, "steps": 40}))


@healthy
def graded_by_decimals(job: Job) -> None:
    """Graded rewards of 0.1 and 0.3 with unknown bounds."""

    def graded(prompt: str, completion: str, answer: str) -> float:
        said = number_in(completion)
        if said is None:
            return 0.0
        off = abs(said - int(answer))
        return 1.0 if off == 0 else 0.3 if off == 1 else 0.1 if off < 5 else 0.0

    job.train(model="tiny", data=sums(ops="+-*"), reward=graded, steps=35, overrides=PLAIN)


@healthy
def parts_by_name(job: Job) -> None:
    """A dict of two parts: the answer, and a little for being near."""

    def parts(prompt: str, completion: str, answer: str) -> dict[str, float]:
        said = number_in(completion)
        near = 0.0 if said is None else 0.3 * math.exp(-abs(said - int(answer)) / 3)
        return {"correct": float(said == int(answer)), "near": near}

    job.train(model="tiny", data=sums(), reward=parts, steps=30, overrides=PLAIN)


@healthy
def groups_of_four_unscaled(job: Job) -> None:
    """Small groups, many of them, with advantages that are not divided."""
    job.train(recipe(
        sampling={"groups": 24, "size": 4}, learning={"loss": "dr_grpo", "scale": "none", "lr": 4e-5, "steps": 25},
    ))  # fmt: skip


@healthy
def slow_and_steady(job: Job) -> None:
    """A cautious rate that still moves the model."""
    job.train(recipe(sampling={"groups": 12}, learning={"lr": 1.5e-5, "steps": 50}, eval={"every": 25}))


@healthy
def just_enough_tokens(job: Job) -> None:
    """Three tokens are all that these answers need; most rollouts end at a stop or at the limit without harm."""
    rows = sums(ops="+")
    changes = {**PLAIN, "sampling.max_tokens": 3, "learning.skip_dead": True}
    job.train(model="tiny", data=rows, reward="number", steps=30, overrides=changes)


@healthy
def cool_and_decaying(job: Job) -> None:
    """Temperature 0.8, a cosine schedule with a short warm-up, and sequence ratios."""
    learning = {"loss": "gspo", "schedule": "cosine", "warmup": 2, "lr": 6e-5, "steps": 40}
    job.train(recipe(sampling={"temperature": 0.8, "resample": 1}, learning=learning))


@healthy
def rows_in_the_style_of_trl(job: Job) -> None:
    """A reward in TRL's signature, and two passes per step."""

    def score(prompts: list[str], completions: list[str], answer: list[str], **_: Any) -> list[float]:
        return [float(said.strip() == wanted) for said, wanted in zip(completions, answer, strict=True)]

    changes = {**PLAIN, "learning.updates": 2, "learning.lr": 2e-5, "sampling.temperature": 0.9}
    job.train(model="tiny", data=sums(300, ops="-"), reward=score, bounds=[0, 1], steps=25, overrides=changes)


@healthy
def half_hard_rows(job: Job) -> None:
    """Products among the sums: many groups are dead, enough are not."""
    changes = {**PLAIN, "sampling.groups": 12, "learning.lr": 4e-5}
    job.train(model="tiny", data=sums(500, ops="+*"), reward=right, bounds=[0, 1], steps=30, overrides=changes)
