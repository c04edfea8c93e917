"""Synthetic runs, written by the real writer, for every test that only reads run directories."""

# ruff: noqa: I001 (names of records side by side)

import math
import random
import time
from pathlib import Path
from typing import Any

import numpy as np

from uptrend.config import load_config, to_table
from uptrend.records import (
    Ending, Evaluation, Message, Reward, Role, Rollout, RunDirectory, Sequence, rollouts_table,
)  # fmt: skip
from uptrend.records.schema import SCHEMA_VERSION
from uptrend.stats.intervals import wilson

# What a recipe without these keys meant for the version that recorded these runs.
RECORDED = {
    "model": {"name": "tiny"},
    "sampling": {"max_tokens": 8},
    "learning": {"loss": "grpo", "warmup": 0},
    "checkpoints": {"every": 0},
}


def info_of(name: str, overrides: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return a run.json as `uptrend train` writes it."""
    return {
        "schema": SCHEMA_VERSION, "name": name, "created": "2025-11-03T10:00:00+00:00",
        "uptrend": "0.1.0", "python": "3.11", "packages": {"numpy": "2.0"},
        "machine": {"device": "cpu", "threads": 2, "cpu": "a cpu", "gpu": None},
        "config": to_table(load_config({"name": name, **RECORDED}, overrides)),
        "tasks": {"name": "arithmetic", "version": 1, "seed": 0, "count": 500, "hash": "aa"},
        "eval": {"name": "arithmetic", "version": 1, "seed": 0, "count": 40, "hash": "bb"},
        "model": {"name": "tiny", "parameters": 1_000_000, "trainable": 1_000_000, "digest": "cc"},
        "notes": [],
    }  # fmt: skip


def rollout_of(
    step: int, group: str = "g0", index: int = 0, correct: bool = True, task: str = "t0"
) -> Rollout:
    """Return a rollout of five tokens: two of prompt, three sampled."""
    sequence = Sequence(
        ids=np.array([1, 2, 3, 4, 5], np.int32),
        turns=np.zeros(5, np.int32),
        roles=np.array([Role.PROMPT] * 2 + [Role.MODEL] * 3, np.int8),
        versions=np.array([-1, -1, step, step, step], np.int32),
        # Other weights at each step give the same tokens another probability.
        sampler=np.array([math.nan, math.nan, -0.5, -0.25, -0.125 - step / 1e4], np.float32),
    )
    said = (Message("user", "2 + 3 ="), Message("assistant", "5" if correct else "6"))
    reward = Reward.of("answer", float(correct), 0.0, 1.0, correct)
    return Rollout(
        step,
        group,
        index,
        task,
        "add",
        "5",
        7,
        said,
        (sequence,),
        reward,
        Ending.STOP_TOKEN,
        None,
        0.1,
    )


def metrics_of(step: int, steps: int, noise: random.Random, lift: float = 0.5) -> dict[str, Any]:
    """Return a metrics line of a run that learns."""
    progress = step / steps
    dead_low, dead_high = 0.3 * (1 - progress), 0.3 * progress**2
    return {
        "step": step,
        "time": 1_760_000_000.0 + step,
        "reward/mean": 0.2 + lift * progress + noise.gauss(0, 0.05),
        "reward/std": 0.4,
        "advantage/dead/share": dead_low + dead_high,
        "advantage/dead_low/share": dead_low,
        "advantage/dead_high/share": dead_high,
        "sampling/length/mean": 6 + progress + noise.gauss(0, 0.1),
        "learner/entropy/mean": 1.2 - 0.8 * progress + noise.gauss(0, 0.02),
        "kl/reference/mean": 0.02 * progress,
        "gradient/norm/before": 0.5 + noise.gauss(0, 0.05),
        "loss/total": math.nan if step == 2 else 0.0,
        **{
            "seconds/sample": 0.6,
            "seconds/score": 0.05,
            "seconds/update": 0.3,
            "seconds/record": 0.05,
        },
        "seconds/step": 1.0,
    }


def evaluation_of(step: int, correct: int, tasks: int) -> Evaluation:
    """Return an evaluation with so many right."""
    share, (low, high) = correct / tasks, wilson(correct, tasks)
    return Evaluation(
        step, tasks, correct, low, high, 0, share, {"add": share}, {"exact": share}, {}, 0.5
    )


def line_of(evaluation: Evaluation) -> dict[str, Any]:
    """Return an evaluation as its line in evals.jsonl."""
    return vars(evaluation) | {"accuracy": evaluation.accuracy, "time": time.time(), "hash": "bb"}


def write_run(
    path: Path,
    steps: int = 20,
    overrides: tuple[str, ...] = (),
    rights: tuple[int, int] = (15, 28),
    seed: int = 0,
    end: str | None = "finished",
    lift: float = 0.5,
) -> Path:
    """A run directory with all its files; `rights` of 40 held-out tasks before and after."""
    noise = random.Random(seed)
    info = info_of(path.name, (f"learning.steps={steps}", f"seed={seed}", *overrides))
    with RunDirectory.create(path, info) as directory:
        directory.event("started", step=0)
        for step in range(steps + 1):
            if step:
                line = metrics_of(step, steps, noise, lift)
                directory.step(line, rollouts_table(path.name, [rollout_of(step)]))
            if step in (0, steps // 2, steps):
                right = rights[0] + (rights[1] - rights[0]) * step // steps
                answers = [rollout_of(step, f"e{i}", 0, i < right, f"task-{i}") for i in range(40)]
                directory.evaluation(
                    line_of(evaluation_of(step, right, 40)), rollouts_table(path.name, answers)
                )
        if end:
            directory.event(end, **({} if end == "failed" else {"step": steps}))
    return path


def write_refused_run(path: Path) -> Path:
    """A run directory that preflight refused and `--keep-refused` left there: no step, no score."""
    with RunDirectory.create(path, info_of(path.name, ())) as directory:
        directory.event("started", step=0)
        reason = "reward.constant: All equal."
        directory.event("stopped", step=0, stopped_by="preflight", reason=reason)
    return path
