"""Advantages: groups that teach nothing, groups that are not groups, and signs."""

import random
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch
from benchmarks.faults.fault import Fault, Strength, of_plant, of_settings
from benchmarks.faults.planted.known import known
from tests.doctor.planted_faults import swapped

from uptrend.algo.losses import LOSSES
from uptrend.training import loop
from uptrend.training import metrics as measure

HARD = {"tasks.low": 4, "tasks.high": 40, "tasks.operations": ["*"], "tasks.reward": "exact"}
"""Products most of which the tiny model was never taught."""


def _by_variance(make: Any) -> Any:
    """Divided by the variance instead of the deviation, and by nothing that keeps it from 0."""

    def run(rewards_n: torch.Tensor, groups_n: torch.Tensor, **how: Any) -> torch.Tensor:
        scaled: torch.Tensor = make(rewards_n, groups_n, **how)
        return scaled * 12

    return run


def _hidden(told: Any) -> Any:
    """The trainer's own count of dead groups looks at the whole batch, as where rewards are scaled by batch."""
    return lambda *x: told(*x) | {"advantage/dead/share": 0.0, "advantage/dead_low/share": 0.0,
                                  "advantage/dead_high/share": 0.0}  # fmt: skip


def _half_mixed(make: Any) -> Any:
    """Some rollouts are counted into the neighboring group."""

    def run(rewards_n: torch.Tensor, groups_n: torch.Tensor, **how: Any) -> torch.Tensor:
        chance = random.Random(0)
        moved = torch.tensor([g + 1 if chance.random() < 0.2 else g for g in groups_n.tolist()])
        return make(rewards_n, moved % (int(groups_n.max()) + 1), **how)  # type: ignore[no-any-return]

    return run


def _shorter_counts_more(weights: Any) -> Any:
    """A token's weight falls with the square of its rollout's length: long wrong answers are hardly punished."""

    def run(mask_bt: torch.Tensor, rollouts_b: torch.Tensor, most: int) -> torch.Tensor:
        by_length: torch.Tensor = weights(mask_bt, rollouts_b, most)
        return by_length * 4 / mask_bt.sum(1, keepdim=True).clamp(min=1) ** 2

    return run


def _length_bias() -> AbstractContextManager[Any]:
    return swapped(LOSSES, "grpo", lambda loss: replace(loss, weights=_shorter_counts_more(loss.weights)))


FAULTS = (
    of_plant("advantage.length-bias", _length_bias, {"learning.loss": "grpo", "sampling.max_tokens": 16,
             "tasks.reward": "exact", "learning.lr": 4e-4}, steps=50, fix=("learning.loss",)),
    of_settings("advantage.dead-groups-low", HARD, steps=12, fix=("tasks.", "sampling.size"),
                also=("optimizer.dead-steps",)),
    of_plant("advantage.metric-blind", lambda: swapped(measure, "advantage_metrics", _hidden),
             {**HARD, "tasks.low": 0, "tasks.high": 12}),
    Fault("advantage.wrong-groups", (known("groups-by-position"),
                                     Strength("a fifth", lambda: swapped(loop, "advantages", _half_mixed)))),
    of_plant("advantage.blow-up", lambda: swapped(loop, "advantages", _by_variance)),
    Fault("advantage.sign", (known("advantages-negated"), known("loss-negated"))),
    of_settings("config.group-of-one", {"sampling.size": 1, "sampling.groups": 32}, fix=("sampling.size",), steps=12),
    of_settings("optimizer.dead-steps", {**HARD, "tasks.low": 0, "tasks.high": 15, "sampling.groups": 2,
                                         "sampling.size": 4}, steps=30, seeds=2,
                also=("advantage.dead-groups-low", "sampling.few-generations"),
                fix=("sampling.", "tasks.")),
)  # fmt: skip
