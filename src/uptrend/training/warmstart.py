"""Supervised learning on the scripted expert's rollouts, so that a small model has something to improve on.

The expert plays training tasks through the same plays and the same rendering as the model will, and what it
says is learned by the same update as in RL, with every advantage 1: the gradient of a token's ratio is then
that of its log-probability, so the loss is the mean negative log-probability of the expert's tokens. Prompts and
tool results are seen and not trained, as in RL, because it is the same code.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from uptrend.config import Config
from uptrend.config.schema import Kl, Learning
from uptrend.policy.policy import Policy
from uptrend.records import Rollout, Task, TasksetError
from uptrend.rollout.play import RolloutRequest
from uptrend.tasks.pool import Cursor, Pool
from uptrend.tasks.taskset import Taskset
from uptrend.training import metrics as measure
from uptrend.training.gather import Gathered, RolloutPlayer
from uptrend.training.left_out import why_left_out
from uptrend.training.loop import Course, Parts, run_course
from uptrend.training.metrics import Learned
from uptrend.training.observer import Stop


def supervised(config: Config, demonstrations: int) -> Config:
    """The recipe with the update that learns demonstrations: token-wise mean, no penalty, temperature 1."""
    warm, learning = config.warmstart, config.learning
    steps = warm.epochs * -(-demonstrations // warm.batch)
    return replace(
        config,
        sampling=replace(config.sampling, temperature=1.0),
        eval=replace(config.eval, every=0),
        learning=Learning(
            steps=steps, lr=warm.lr, schedule=warm.schedule, warmup=min(warm.warmup, steps), loss="dapo", kl=Kl(),
            max_grad_norm=learning.max_grad_norm, weight_decay=learning.weight_decay, beta1=learning.beta1,
            beta2=learning.beta2, tokens=learning.tokens,
        ),
    )  # fmt: skip


def demonstrate(policy: Policy, pool: Pool, config: Config) -> tuple[list[Rollout], list[str]]:
    """The expert's rollouts on training tasks, and what a person should know of those that were left out."""
    stage = pool.stages[0]
    chosen = stage.tasks[: config.warmstart.tasks]
    requests = [_request(task, stage.taskset, n) for n, task in enumerate(chosen)]
    rollouts = RolloutPlayer(policy, None, config).demonstrate(requests)
    left_out = [request for request, r in zip(requests, rollouts, strict=True) if not _can_be_learned(r, config)]
    notes = []
    if left_out:
        causes = why_left_out(RolloutPlayer(policy, None, _roomy(config)).demonstrate(left_out), config.sampling)
        notes.append(f"{len(left_out)} of {len(requests)} demonstrations were left out: {'; '.join(causes)}.")
    kept = [r for r in rollouts if _can_be_learned(r, config)]
    if not kept:
        raise TasksetError(notes[0] if notes else f"{pool.name} has no training task to demonstrate.")
    return kept, notes


def warmstart(parts: Parts, demonstrations: Sequence[Rollout]) -> Stop | None:
    """Learn the demonstrations, and evaluate before and after; `parts.config` comes from `supervised`."""
    batches = _batches(demonstrations, parts.config)

    def demonstrated(player: RolloutPlayer, cursor: Cursor, step: int) -> Gathered:  # noqa: ARG001 (nothing is played)
        return Gathered(next(batches), [], cursor)

    taught = replace(parts.components, advantages=_ones, metrics=_metrics)
    return run_course(replace(parts, components=taught), Course(demonstrated, parts.config.learning.steps, saves=False))


def _ones(rewards_n: Tensor, groups_n: Tensor, **_: str) -> Tensor:  # noqa: ARG001 (every demonstration counts)
    return torch.ones_like(rewards_n)


def _metrics(learned: Learned) -> dict[str, Any]:
    """Compute what a warm start's line has: nothing was sampled or rewarded."""
    exp, update = learned.exp, learned.update
    trained = exp.mask_bs & ~update.learner_bs.isnan()
    return {
        "warmstart/loss/mean": float(-update.learner_bs[trained].mean()),
        "learner/entropy/mean": float(update.sums.entropy / update.sums.tokens),
        **measure.update_metrics(update),
        **measure.token_metrics(learned.gathered.rollouts, exp, update),
        **measure.weight_metrics(learned.moved),
    }


def _batches(demonstrations: Sequence[Rollout], config: Config) -> Iterator[list[Rollout]]:
    """Every demonstration once an epoch, each epoch in another order."""
    for epoch in range(config.warmstart.epochs):
        order = list(demonstrations)
        random.Random(f"warmstart-{config.seed}-{epoch}").shuffle(order)
        for start in range(0, len(order), config.warmstart.batch):
            yield order[start : start + config.warmstart.batch]


def _request(task: Task, taskset: Taskset, number: int) -> RolloutRequest:
    return RolloutRequest(task, taskset, 0, f"gold-{number:06d}", 0, 0)


def _roomy(config: Config) -> Config:
    """With limits that stop nothing but a script without an end, to see what the expert would need."""
    return replace(config, sampling=replace(config.sampling, max_turns=1_000, context=1_000_000, max_prompt=0))


def _can_be_learned(rollout: Rollout, config: Config) -> bool:
    """Whether the model itself could have said this within its limits, and been right."""
    if rollout.reward is None or not rollout.reward.correct:
        return False
    turns = [sequence.turns[sequence.sampled] for sequence in rollout.sequences]
    return all(len(t) and max(torch.bincount(torch.from_numpy(t))) <= config.sampling.max_tokens for t in turns)
