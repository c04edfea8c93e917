"""Faults in recipes and rows, trained by Uptrend."""

from typing import Any

from benchmarks.faults.blind.a.common import PLAIN, number_in, right, sums
from benchmarks.faults.blind.case import Job, fault


def recipe(**sections: dict[str, Any]) -> dict[str, Any]:
    """Return a recipe on the tiny model with the usual sampling."""
    base: dict[str, dict[str, Any]] = {
        "model": {"name": "tiny"}, "tasks": {"name": "arithmetic", "operations": ["+", "-"], "train": 400},
        "eval": {"name": "arithmetic", "operations": ["+", "-"], "tasks": 100, "every": 10},
        "sampling": {"groups": 8, "size": 8, "max_tokens": 6, "temperature": 0.8},
        "learning": {"steps": 35, "lr": 3e-5},
    }  # fmt: skip
    return {key: {**base.get(key, {}), **sections.get(key, {})} for key in {**base, **sections}}


@fault("advantage.dead-groups-low")
def products_far_beyond_the_model(job: Job) -> None:
    """The range was raised to 200, so nearly no product is ever right."""
    tasks = {"operations": ["*"], "low": 60, "high": 200} if job.planted else {"operations": ["+", "-"]}
    job.train(recipe(tasks=tasks, eval=tasks))


@fault("advantage.dead-groups-high", "reward.gold-rejected")
def twenty_instead_of_a_fifth(job: Job) -> None:
    """A tolerance of 20 per cent was written as 20, so almost any number is right."""

    def close(prompt: str, completion: str, answer: str) -> float:
        said = number_in(completion)
        return float(said is not None and abs(said - int(answer)) <= (20 if job.planted else 0))

    job.train(model="tiny", data=sums(), reward=close, bounds=[0, 1], steps=30, overrides=PLAIN)


@fault("sampling.temperature-low")
def evaluation_temperature(job: Job) -> None:
    """The nearly greedy temperature of the evaluation script was kept for training."""
    job.train(recipe(sampling={"temperature": 0.1 if job.planted else 0.8}))


@fault("sampling.few-generations")
def pairs_to_save_memory(job: Job) -> None:
    """Groups of two to save memory, on tasks that one attempt in four solves."""
    size = {"groups": 32, "size": 2} if job.planted else {"groups": 8, "size": 8}
    tasks = {"operations": ["+", "-", "*"]}
    job.train(recipe(tasks=tasks, eval=tasks, sampling=size, learning={"steps": 30}))


@fault("optimizer.lr-small")
def rate_of_a_large_model(job: Job) -> None:
    """The learning rate comes from a paper on a model of 70 billion weights."""
    job.train(recipe(learning={"lr": 2e-7 if job.planted else 3e-5}))


@fault("context.completion-truncated")
def no_room_for_the_minus(job: Job) -> None:
    """Two tokens are enough for two digits, but not for a minus before them."""
    rows = sums(ops="-", a=(0, 9), b=(4, 20))
    changes = {**PLAIN, "sampling.max_tokens": 2 if job.planted else 5, "eval.max_tokens": 5}
    job.train(model="tiny", data=rows, reward=right, bounds=[0, 1], steps=30, overrides=changes)


@fault("context.prompt-truncated")
def limit_of_short_questions(job: Job) -> None:
    """The limit of prompts was measured on small numbers; questions with two numbers of two digits do not fit."""
    job.train(recipe(sampling={"max_prompt": 20 if job.planted else 0}))


@fault("data.memorized")
def two_dozen_rows_for_long(job: Job) -> None:
    """Two dozen examples, seen again and again at a high learning rate."""
    rows = sums(24 if job.planted else 800, ops="+-*", a=(2, 20), b=(2, 20))
    changes = {**PLAIN, "learning.lr": 1e-4, "sampling.groups": 12, "eval.name": "arithmetic", "eval.tasks": 100}
    job.train(model="tiny", data=rows, reward=right, bounds=[0, 1], steps=50, overrides=changes)


@fault("eval.unlike-training")
def evaluated_through_the_template(job: Job) -> None:
    """Training uses raw prompts, the evaluation the chat template."""
    job.train(recipe(eval={"chat": job.planted}))


@fault("sampling.entropy-explosion")
def generous_entropy_bonus(job: Job) -> None:
    """An entropy bonus a hundred times the usual one."""
    job.train(recipe(learning={"entropy": 0.3 if job.planted else 0.001, "lr": 5e-5, "steps": 40}))


@fault("kl.strangles")
def kl_of_another_scale(job: Job) -> None:
    """The penalty's weight is that of a trainer which divides it by the number of tokens."""
    kl = {"beta": 4.0 if job.planted else 0.01}
    job.train(recipe(learning={"kl": kl, "lr": 4e-5, "steps": 40}))
