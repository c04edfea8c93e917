"""Playing the fixed held-out set: greedily for accuracy, and several sampled attempts for pass@k on request."""

import time

import numpy as np

from uptrend.config import Config
from uptrend.records import Evaluation, Rollout
from uptrend.rollout.play import RolloutRequest, derive
from uptrend.stats.intervals import pass_at_k, wilson
from uptrend.tasks.pool import HeldOut
from uptrend.training.gather import RolloutPlayer


def evaluate(player: RolloutPlayer, held_out: HeldOut, step: int, config: Config) -> tuple[Evaluation, list[Rollout]]:
    """Accuracy after a step, with the rollouts behind it."""
    began = time.perf_counter()
    rollouts = player.play(_requests(held_out, step, 1, config), temperature=0.0)
    attempts: list[Rollout] = []
    if config.eval.attempts:
        requests = _requests(held_out, step, config.eval.attempts, config)
        attempts = player.play(requests, temperature=config.sampling.temperature)
    scored = [r for r in rollouts if r.reward is not None]
    families = dict.fromkeys(r.family for r in rollouts)
    correct = sum(_right(r) for r in rollouts)
    low, high = wilson(correct, len(rollouts))
    return Evaluation(
        step=step,
        tasks=len(rollouts),
        correct=correct,
        low=low,
        high=high,
        failed=len(rollouts) - len(scored),
        reward=float(np.mean([r.reward.total for r in scored if r.reward])) if scored else None,
        by_family={f: float(np.mean([_right(r) for r in rollouts if r.family == f])) for f in families},
        parts=_parts(scored),
        pass_at=_pass_at(attempts, config.eval.attempts),
        seconds=time.perf_counter() - began,
    ), [*rollouts, *attempts]


def _requests(held_out: HeldOut, step: int, attempts: int, config: Config) -> list[RolloutRequest]:
    return [
        RolloutRequest(
            task,
            held_out.taskset,
            step,
            f"eval-{step:06d}-{n:04d}",
            i,
            derive(config.seed, "eval", step, n, i),
        )
        for n, task in enumerate(held_out.tasks)
        for i in range(attempts)
    ]


def _parts(scored: list[Rollout]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for part in (part for r in scored if r.reward for part in r.reward.parts):
        values.setdefault(part.name, []).append(part.value)
    return {name: float(np.mean(found)) for name, found in values.items()}


def _pass_at(rollouts: list[Rollout], attempts: int) -> dict[int, float]:
    """The mean over tasks, for 1, 2, 4, … and all attempts."""
    if not rollouts:
        return {}
    right = np.array([_right(r) for r in rollouts]).reshape(-1, attempts).sum(1)
    ks = sorted({*(1 << i for i in range(attempts.bit_length())), attempts})
    return {k: float(np.mean([pass_at_k(int(c), attempts, k) for c in right])) for k in ks}


def _right(rollout: Rollout) -> bool:
    return rollout.reward is not None and rollout.reward.correct
