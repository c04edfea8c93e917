"""Faults in recipes: settings, built-in tasksets, files for training and evaluation."""

import json
from typing import Any

from benchmarks.faults.blind.b.common import sums
from benchmarks.faults.blind.case import Job, fault


def recipe(tasks: dict[str, Any], **changed: dict[str, Any]) -> dict[str, Any]:
    """A recipe for `tiny` with a held-out set; sections given by name change its values."""
    table: dict[str, Any] = {
        "name": "mine", "model": {"name": "tiny"}, "tasks": {"name": "arithmetic", "train": 500} | tasks,
        "eval": {"tasks": 80, "every": 10}, "sampling": {"groups": 8, "size": 8, "max_tokens": 6},
        "learning": {"steps": 25, "lr": 5e-5},
    }  # fmt: skip
    return {key: {**table.get(key, {}), **changed.get(key, {})} if key != "name" else table[key]
            for key in [*table, *(key for key in changed if key not in table)]}  # fmt: skip


@fault("advantage.dead-groups-low")
def four_digit_products(job: Job) -> None:
    """Products of numbers up to 99 are far beyond the model: nearly every group is all wrong."""
    low, high, operations = (12, 99, ["*"]) if job.planted else (0, 20, ["+", "-"])
    sums_of = {"low": low, "high": high, "operations": operations}
    job.train(recipe(sums_of, eval={"name": "arithmetic", **sums_of}))


@fault("sampling.few-generations")
def pairs(job: Job) -> None:
    """Groups of two, to see more tasks per step: most come out alike by chance."""
    groups, size = (32, 2) if job.planted else (8, 8)
    job.train(recipe({"operations": ["+", "-", "*"]}, sampling={"groups": groups, "size": size}))


@fault("sampling.entropy-collapse")
def entropy_as_a_penalty(job: Job) -> None:
    """The coefficient of the entropy bonus has a minus sign, as if it were a term of the loss."""
    job.train(recipe({}, learning={"entropy": -2.0 if job.planted else 0.001,
                                   "lr": 1e-4 if job.planted else 5e-5, "steps": 40}))  # fmt: skip


@fault("optimizer.lr-large")
def rate_of_a_classifier(job: Job) -> None:
    """A learning rate of 1e-2, as for a classifier trained from nothing."""
    job.train(recipe({}, learning={"lr": 1e-2 if job.planted else 5e-5}))


@fault("sync.off-policy")
def many_passes(job: Job) -> None:
    """Sixteen passes over each step's rollouts, with the clip opened so that they count."""
    updates, clip = (16, 5.0) if job.planted else (1, 0.2)
    learning = {"updates": updates, "clip_low": min(clip, 0.99), "clip_high": clip, "steps": 20,
                "lr": 2e-4 if job.planted else 5e-5}  # fmt: skip
    job.train(recipe({}, learning=learning))


@fault("context.prompt-truncated")
def tight_prompts(job: Job) -> None:
    """max_prompt = 20 leaves out every question with two numbers of two digits."""
    job.train(recipe({"low": 3}, sampling={"max_prompt": 20 if job.planted else 64}, eval={"low": 3}))


@fault("data.memorized")
def twelve_questions(job: Job) -> None:
    """Twelve questions, seen in nearly every step for 45 steps: the model learns them by heart."""
    train = 12 if job.planted else 600
    asked = {"operations": ["+", "-"]}
    job.train(recipe({"train": train, **asked}, learning={"lr": 7e-5, "steps": 45},
                     eval={"name": "arithmetic", "tasks": 100, "every": 15, **asked}))  # fmt: skip


@fault("data.leak")
def respaced_copies(job: Job) -> None:
    """The test file was drawn from the training questions, which were then written with other spacing."""
    rows = sums(120, "+-*")
    tested = rows[:40] if job.planted else rows[80:]
    files = {"train": [{**row, "question": row["question"].replace(": ", ":  ")} for row in rows[:80]], "test": tested}
    for name, kept in files.items():
        (job.folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in kept))
    shared = {"name": "data", "prompt": "question", "reward": "exact", "chat": False}
    job.train(recipe({**shared, "file": str(job.folder / "train.jsonl"), "hold_out": "none", "train": 80},
                     eval={**shared, "file": str(job.folder / "test.jsonl"), "tasks": 40},
                     learning={"lr": 1e-4, "steps": 40}))  # fmt: skip


@fault("eval.unlike-training")
def evaluated_as_a_chat(job: Job) -> None:
    """Training sends plain text, evaluation goes through the chat template."""
    job.train(recipe({}, eval={"name": "arithmetic", "chat": job.planted}))


@fault("sampling.temperature-low")
def nearly_greedy(job: Job) -> None:
    """A temperature of 0.1, taken from the evaluation's settings."""
    job.train(recipe({}, sampling={"temperature": 0.1 if job.planted else 1.0}))
