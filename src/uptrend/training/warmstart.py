"""Supervised learning on the scripted expert's rollouts, so that a small model has something to
improve on.

The expert plays training tasks through the same plays and the same rendering as the model will, and
its tokens are learned by the same update as in RL, with every advantage 1: the gradient of a
token's ratio is then that of its log-probability, so the loss is the mean negative log-probability
of the expert's tokens. Prompts and tool results are seen and not trained, as in RL, because it is
the same code.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from uptrend.config import Config
from uptrend.config.schema import Kl, Learning, Sampling
from uptrend.policy.policy import Policy
from uptrend.records import Role, Rollout, TasksetError
from uptrend.rollout.play import RolloutRequest
from uptrend.tasks.pool import Cursor, Pool
from uptrend.tasks.taskset import HasDemonstrations
from uptrend.training import metrics as measure
from uptrend.training.components import RunContext
from uptrend.training.gather import Gathered, RolloutPlayer

# Metrics of a step that a warm start has as well.
KEPT = ("learner/entropy/", "gradient/", "optimizer/", "tokens/", "weights/")


def supervised(config: Config, demonstrations: int) -> Config:
    """Return the recipe with the update that learns demonstrations: token-wise mean, no penalties,
    temperature 1.
    """
    warm = config.warmstart
    learning = config.learning
    steps = warm.epochs * -(-demonstrations // warm.batch)
    return replace(
        config,
        sampling=replace(config.sampling, temperature=1.0, repetition_penalty=1.0),
        eval=replace(config.eval, every=0),
        learning=Learning(
            steps=steps,
            lr=warm.lr,
            schedule=warm.schedule,
            warmup=min(warm.warmup, steps),
            loss="dapo",
            kl=Kl(),
            max_grad_norm=learning.max_grad_norm,
            weight_decay=learning.weight_decay,
            beta1=learning.beta1,
            beta2=learning.beta2,
            tokens=learning.tokens,
            optimizer=learning.optimizer,
        ),
    )


def demonstrate(policy: Policy, pool: Pool, config: Config) -> tuple[list[Rollout], list[str]]:
    """Return the expert's rollouts on training tasks, and a note on those that were left out."""
    stage = pool.stages[0]
    taskset = stage.taskset
    count = config.warmstart.per_task
    is_mixed = isinstance(taskset, HasDemonstrations)
    requests = [
        RolloutRequest(task, taskset, 0, f"gold-{number:06d}", i, 0, script=script)
        for number, task in enumerate(stage.tasks[: config.warmstart.tasks])
        for i, script in enumerate(
            taskset.demonstrations(task, count)
            if isinstance(taskset, HasDemonstrations)
            else [None]
        )
    ]
    kept = list[Rollout]()
    left_out = list[RolloutRequest]()
    notes = list[str]()
    for request, rollout in zip(
        requests, RolloutPlayer(policy, None, config).demonstrate(requests), strict=True
    ):
        turns = [sequence.turns[sequence.sampled] for sequence in rollout.sequences]
        # The model itself could have written this within its limits, and it is right, or chosen to
        # be imitated.
        fits = all(len(t) and np.bincount(t).max() <= config.sampling.max_tokens for t in turns)
        if fits and (rollout.reward is not None if is_mixed else measure.is_correct(rollout)):
            kept.append(rollout)
        else:
            left_out.append(request)
    if left_out:
        # Played again without limits, to say which limits would be enough.
        unlimited = replace(
            config.sampling, max_turns=1_000, context=1_000_000, max_prompt=0, rollout_timeout=0.0
        )
        played = RolloutPlayer(policy, None, replace(config, sampling=unlimited)).demonstrate(
            left_out
        )
        causes = why_left_out(played, config.sampling, is_mixed)
        notes.append(
            f"{len(left_out)} of {len(requests)} demonstrations were left out: {'; '.join(causes)}."
        )
    if not kept:
        raise TasksetError(
            notes[0] if notes else f"{pool.name} has no training task to demonstrate."
        )
    return kept, notes


def why_left_out(
    rollouts: Sequence[Rollout], limits: Sampling, is_mixed: bool = False
) -> list[str]:
    """Count the causes, and say which limits would be enough; `rollouts` were played without
    limits.

    Of mixed quality, a demonstration need not be right.
    """
    failed = [r for r in rollouts if r.reward is None]
    wrong = [r for r in rollouts if r.reward is not None and not r.reward.correct and not is_mixed]
    causes = []
    if failed:
        causes.append(f"{len(failed)} failed, the first with {failed[0].error}")
    if wrong:
        causes.append(f"{len(wrong)} {'was' if len(wrong) == 1 else 'were'} not right")
    # A script's history is only appended to: it has one sequence.
    correct = [r for r in rollouts if r.reward is not None and r not in wrong]
    right = [r.sequences[0] for r in correct]
    turns = [np.unique(tokens.turns[tokens.sampled], return_counts=True)[1] for tokens in right]
    if silent := sum(len(sizes) == 0 for sizes in turns):
        causes.append(f"{silent} said nothing")
    for key, what, limit, needed in (
        ("max_turns", "most turns", limits.max_turns, [len(sizes) for sizes in turns]),
        ("context", "longest rollout", limits.context, [len(tokens.ids) for tokens in right]),
        (
            "max_tokens",
            "longest turn",
            limits.max_tokens,
            [int(sizes.max(initial=0)) for sizes in turns],
        ),
        (
            "max_prompt",
            "longest prompt",
            limits.max_prompt,
            [int((t.roles == Role.PROMPT).sum()) for t in right],
        ),
        (
            "rollout_timeout",
            "most seconds",
            limits.rollout_timeout,
            [math.ceil(r.seconds) for r in correct],
        ),
    ):
        exceeding = sum(0 < limit < size for size in needed)  # max_prompt = 0 is none
        if exceeding:
            causes.append(
                f"{exceeding} exceeded sampling.{key} = {limit} (the {what}: {max(needed)})"
            )
    return causes


def with_demonstrations(context: RunContext, demonstrations: Sequence[Rollout]) -> RunContext:
    """Return a run's context so that its steps learn the demonstrations; its config comes from
    `supervised`.
    """
    config = context.config
    warm = context.config.warmstart
    batches: list[list[Rollout]] = []
    # every demonstration once per epoch, each epoch in another order
    for epoch in range(warm.epochs):
        order = list(demonstrations)
        random.Random(f"warmstart-{config.seed}-{epoch}").shuffle(order)
        batches += [order[start : start + warm.batch] for start in range(0, len(order), warm.batch)]

    def gather(
        player: RolloutPlayer, pool: Pool, cursor: Cursor, step: int, config: Config
    ) -> Gathered:
        del player, pool, config  # nothing is played
        return Gathered(batches[step - 1], [], cursor)

    def ones(rewards_n: Tensor, groups_n: Tensor, **_: str) -> Tensor:  # noqa: ARG001 (every demonstration counts)
        return torch.ones_like(rewards_n)

    components = replace(context.components, gather=gather, advantages=ones, metrics=_metrics)
    return replace(context, components=components)


def _metrics(result: measure.StepResult) -> dict[str, Any]:
    """Compute the loss, and those metrics of a step that mean something where nothing was sampled
    or rewarded.
    """
    logprobs_bs = result.update.learner_bs
    loss = -logprobs_bs[result.experience.mask_bs & ~logprobs_bs.isnan()].mean()
    metrics = {
        key: value for key, value in measure.step_metrics(result).items() if key.startswith(KEPT)
    }
    return {"warmstart/loss/mean": float(loss), **metrics}
