"""Advantages: groups that teach nothing, groups that are not groups, and signs."""

import random
from dataclasses import replace
from typing import Any

import torch
from benchmarks.faults.fault import (
    Fault,
    Strength,
    gathered,
    learner,
    of_parts,
    of_settings,
    together,
    wrapped,
)
from torch import Tensor

from uptrend.records import Rollout

HARD = {"tasks.low": 4, "tasks.high": 40, "tasks.operations": ["*"], "tasks.reward": "exact"}
"""Products most of which the tiny model was never taught."""


def _negated(make: Any) -> Any:
    return lambda *given, **how: -make(*given, **how)


def _against(objective: Any) -> Any:
    """Negate advantages where the loss reads them."""
    return lambda logprobs, entropy, part, learning: objective(
        logprobs, entropy, replace(part, advantages_bt=-part.advantages_bt), learning
    )


def _shuffled(rollouts: list[Rollout]) -> list[Rollout]:
    return random.Random(0).sample(rollouts, len(rollouts))


def _by_position(make: Any) -> Any:
    """Take every so many rollouts in a row for a group."""
    return lambda rewards, groups, **how: make(
        rewards, torch.arange(len(rewards)) // int((groups == groups[0]).sum()), **how
    )


def _fifth_mixed(make: Any) -> Any:
    """Count some rollouts into the neighboring group."""

    def run(rewards_n: Tensor, groups_n: Tensor, **how: Any) -> Any:
        chance = random.Random(0)
        moved = torch.tensor([g + 1 if chance.random() < 0.2 else g for g in groups_n.tolist()])
        return make(rewards_n, moved % (int(groups_n.max()) + 1), **how)

    return run


def _too_large(make: Any) -> Any:
    """Divide by far less than the deviation."""
    return lambda *given, **how: make(*given, **how) * 12


def _hidden(metrics: Any) -> Any:
    """Count dead groups over the whole batch, as where rewards are scaled by batch."""
    dead = ("advantage/dead/share", "advantage/dead_low/share", "advantage/dead_high/share")
    return lambda learned: metrics(learned) | dict.fromkeys(dead, 0.0)


def _shorter_counts_more(objective: Any) -> Any:
    """Let a token's weight fall with the square of its rollout's length: long wrong answers are
    hardly punished.
    """

    def run(logprobs: Tensor, entropy: Tensor, part: Any, learning: Any) -> Any:
        length_b1 = part.mask_bt.sum(1, keepdim=True).clamp(min=1)
        return objective(
            logprobs,
            entropy,
            replace(part, weights_bt=part.weights_bt * 4 / length_b1**2),
            learning,
        )

    return run


FAULTS = (
    of_parts("advantage.length-bias", learner(objective=_shorter_counts_more), {
        "learning.loss": "grpo", "sampling.max_tokens": 16, "tasks.reward": "exact", "learning.lr": 4e-4}, steps=50,
        fix=("learning.loss",)),
    of_settings("advantage.dead-groups-low", HARD, steps=12, fix=("tasks.", "sampling.size"),
                also=("optimizer.dead-steps",)),
    of_parts("advantage.metric-blind", wrapped(metrics=_hidden), {**HARD, "tasks.low": 0, "tasks.high": 12}),
    Fault("advantage.wrong-groups", (
        Strength("groups-by-position", together(gathered(_shuffled), wrapped(advantages=_by_position)),
                 probe="advantages"),
        Strength("a fifth", wrapped(advantages=_fifth_mixed)))),
    of_parts("advantage.blow-up", wrapped(advantages=_too_large)),
    Fault("advantage.sign", (Strength("advantages-negated", wrapped(advantages=_negated), probe="advantages"),
                             Strength("loss-negated", learner(objective=_against), probe="sign"))),
    of_settings("config.group-of-one", {"sampling.size": 1, "sampling.groups": 32}, fix=("sampling.size",), steps=12),
    of_settings("optimizer.dead-steps", {**HARD, "tasks.low": 0, "tasks.high": 15, "sampling.groups": 2,
                                         "sampling.size": 4}, steps=30, seeds=2,
                also=("advantage.dead-groups-low", "sampling.few-generations"),
                fix=("sampling.", "tasks.")),
)  # fmt: skip
