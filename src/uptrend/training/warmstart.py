"""Supervised learning on the scripted expert's rollouts, or on recorded conversations, so that a
small model has something to improve on.

The expert plays training tasks through the same plays and the same rendering as the model will, and
its tokens are learned by the same update as in RL, with every advantage 1: the gradient of a
token's ratio is then that of its log-probability, so the loss is the mean negative log-probability
of the expert's tokens. Prompts and tool results are seen and not trained, as in RL, because it is
the same code. Conversations are played too, by scripts that repeat their turns (tasks/chats.py).
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from uptrend.config import Config
from uptrend.config.schema import Kl, Learning, Sampling
from uptrend.policy.policy import Policy
from uptrend.records import Role, Rollout, Task, TasksetError
from uptrend.rollout.play import RolloutRequest
from uptrend.tasks.chats import Chats
from uptrend.tasks.pool import Cursor, Pool
from uptrend.tasks.taskset import HasDemonstrations, Script, Taskset
from uptrend.training.components import RunContext
from uptrend.training.gather import Gathered, RolloutPlayer
from uptrend.training.metrics import StepResult, is_correct, step_metrics

# Metrics of a step that mean something without sampling and rewards.
METRIC_PREFIXES = ("learner/entropy/", "gradient/", "optimizer/", "tokens/", "weights/")
# Limits by which `[sampling]` may leave a demonstration out, and what each one limits.
LIMIT_MAXIMA = {
    "max_turns": "most turns",
    "context": "longest rollout",
    "max_tokens": "longest turn",
    "max_prompt": "longest prompt",
    "rollout_timeout": "most seconds",
}
# Learning rate of adapters if the recipe leaves it out: ten times that of all weights.
ADAPTER_LR = 2e-4
# Limits that no demonstration reaches; timeouts and prompt lengths have none at 0.
NO_LIMITS: dict[str, Any] = {
    "max_turns": 1_000_000,
    "context": 1_000_000,
    "max_tokens": 1_000_000,
    "max_prompt": 0,
    "rollout_timeout": 0.0,
}


def supervised(config: Config, demonstrations: int) -> Config:
    """Return the recipe with the update that learns demonstrations: token-wise mean, no penalties,
    temperature 1.
    """
    warm = config.warmstart
    if config.model.lora is not None and "warmstart.lr" in config.omitted:
        warm = replace(warm, lr=ADAPTER_LR)
    learning = config.learning
    steps = warm.epochs * math.ceil(demonstrations / warm.batch)
    return replace(
        config,
        sampling=replace(config.sampling, temperature=1.0, repetition_penalty=1.0),
        eval=replace(config.eval, every=0),
        warmstart=warm,
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
    """Return the expert's rollouts on training tasks, or recorded conversations as rollouts; and
    notes, such as on those that were left out.
    """
    taskset = pool.stages[0].taskset
    notes: list[str] = []
    if isinstance(taskset, Chats):
        # The other limits are about sampling, and nothing is sampled.
        limits = NO_LIMITS | {"context": config.sampling.context}
        config = replace(config, sampling=replace(config.sampling, **limits))
        notes += _raw_text_notes(policy, taskset, config)
    requests: list[RolloutRequest] = []
    number = 0
    for source in pool.sources:
        stage = source.stages[0]
        for task in stage.tasks[: config.warmstart.tasks]:
            group = f"gold-{number:06d}"
            number += 1
            for i, script in enumerate(_scripts(stage.taskset, task, config.warmstart.per_task)):
                requests.append(
                    RolloutRequest(
                        task, stage.taskset, 0, group, i, 0, script=script, source=source.label
                    )
                )
    rollouts = RolloutPlayer(policy, None, config).demonstrate(requests)

    demonstrations: list[Rollout] = []
    left_out: list[RolloutRequest] = []
    for request, rollout in zip(requests, rollouts, strict=True):
        # Demonstrations of a taskset's own may be of mixed quality, chosen to be imitated.
        is_mixed = isinstance(request.taskset, HasDemonstrations)
        is_good = rollout.reward is not None if is_mixed else is_correct(rollout)
        if is_good and _has_possible_turns(rollout, config.sampling.max_tokens):
            demonstrations.append(rollout)
        else:
            left_out.append(request)

    if left_out:
        # Played again without limits, to say which limits would be enough.
        unlimited = replace(config.sampling, **NO_LIMITS)
        player = RolloutPlayer(policy, None, replace(config, sampling=unlimited))
        is_mixed = any(isinstance(request.taskset, HasDemonstrations) for request in left_out)
        causes = why_left_out(player.demonstrate(left_out), config.sampling, is_mixed)
        notes.append(
            f"{len(left_out)} of {len(requests)} demonstrations were left out: {'; '.join(causes)}."
        )
    if not demonstrations:
        no_tasks = f"{pool.name} has no training task to demonstrate."
        raise TasksetError(notes[-1] if left_out else no_tasks)
    return demonstrations, notes


def _raw_text_notes(policy: Policy, taskset: Chats, config: Config) -> list[str]:
    """Return a note if conversations are joined as raw text although the model has a template."""
    key = "model.chat" if taskset.chat is None else "tasks.chat"
    is_raw = (config.model.chat if taskset.chat is None else taskset.chat) is False
    if not is_raw or not policy.tokenizer.chat_template:
        return []
    return [
        f"Conversations are learned as raw text, joined without roles ({key} = false). To learn"
        f" them through the model's chat template, set {key} = true."
    ]


def _scripts(taskset: Taskset, task: Task, count: int) -> Sequence[Callable[[], Script] | None]:
    """Return the scripts that play a task; None is the task's expert."""
    if isinstance(taskset, HasDemonstrations):
        return list(taskset.demonstrations(task, count))
    return [None]


def _has_possible_turns(rollout: Rollout, max_tokens: int) -> bool:
    """Return True if the model could sample these turns: no sequence without one, none too long."""
    for sequence in rollout.sequences:
        turns = sequence.turns[sequence.sampled]
        if not len(turns) or np.bincount(turns).max() > max_tokens:
            return False
    return True


def why_left_out(
    rollouts: Sequence[Rollout], limits: Sampling, is_mixed: bool = False
) -> list[str]:
    """Count the causes, and say which limits would be enough; `rollouts` were played without
    limits.

    Demonstrations of mixed quality need not be right.
    """
    failed: list[Rollout] = []
    wrong: list[Rollout] = []
    usable: list[Rollout] = []
    for rollout in rollouts:
        if rollout.reward is None:
            failed.append(rollout)
        elif is_mixed or rollout.reward.correct:
            usable.append(rollout)
        else:
            wrong.append(rollout)
    causes: list[str] = []
    if failed:
        causes.append(f"{len(failed)} failed, the first with {failed[0].error}")
    if wrong:
        causes.append(f"{len(wrong)} {'was' if len(wrong) == 1 else 'were'} not right")

    sizes: dict[str, list[int]] = {key: [] for key in LIMIT_MAXIMA}
    n_silent = 0
    for rollout in usable:
        turn_lengths: list[int] = []
        for sequence in rollout.sequences:
            _, lengths = np.unique(sequence.turns[sequence.sampled], return_counts=True)
            turn_lengths += lengths.tolist()
        first_prompt = rollout.sequences[0].roles == Role.PROMPT
        n_silent += len(turn_lengths) == 0
        sizes["max_turns"].append(len(turn_lengths))
        sizes["context"].append(max(len(sequence.ids) for sequence in rollout.sequences))
        sizes["max_tokens"].append(max(turn_lengths, default=0))
        sizes["max_prompt"].append(int(first_prompt.sum()))
        sizes["rollout_timeout"].append(math.ceil(rollout.seconds))
    if n_silent:
        causes.append(f"{n_silent} said nothing")
    for key, maximum in LIMIT_MAXIMA.items():
        limit = getattr(limits, key)
        exceeding = sum(0 < limit < size for size in sizes[key])  # 0 is no limit
        if exceeding:
            causes.append(
                f"{exceeding} exceeded sampling.{key} = {limit} (the {maximum}: {max(sizes[key])})"
            )
    return causes


def with_demonstrations(context: RunContext, demonstrations: Sequence[Rollout]) -> RunContext:
    """Return a run's context so that its steps learn the demonstrations; its config comes from
    `supervised`.
    """
    config = context.config
    size = config.warmstart.batch
    batches: list[list[Rollout]] = []
    for epoch in range(config.warmstart.epochs):
        order = list(demonstrations)
        random.Random(f"warmstart-{config.seed}-{epoch}").shuffle(order)
        for start in range(0, len(order), size):
            batches.append(order[start : start + size])

    def gather(
        player: RolloutPlayer, pool: Pool, cursor: Cursor, step: int, config: Config
    ) -> Gathered:
        del player, pool, config  # nothing is played
        return Gathered(batches[step - 1], [], cursor)

    def advantages_of_1(rewards_n: Tensor, groups_n: Tensor, **_: str) -> Tensor:  # noqa: ARG001 (every demonstration counts)
        return torch.ones_like(rewards_n)

    components = replace(
        context.components, gather=gather, advantages=advantages_of_1, metrics=_metrics
    )
    return replace(context, components=components)


def _metrics(result: StepResult) -> dict[str, Any]:
    """Compute the loss, and those metrics of a step that mean something without sampling and
    rewards.
    """
    logprobs_bs = result.update.learner_bs
    is_computed_bs = result.experience.mask_bs & ~logprobs_bs.isnan()
    loss = -logprobs_bs[is_computed_bs].mean()
    metrics: dict[str, Any] = {}
    for key, value in step_metrics(result).items():
        if key.startswith(METRIC_PREFIXES):
            metrics[key] = value
    return {"warmstart/loss/mean": float(loss), **metrics}
