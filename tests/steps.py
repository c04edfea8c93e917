"""Steps without a model that samples: made-up rollouts of given shapes, and the update that they
cause.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from uptrend.algo import advantages
from uptrend.config import Config, load_config
from uptrend.policy.optimizer import Applied
from uptrend.policy.policy import Policy
from uptrend.policy.weights import FlatWeights
from uptrend.records import Ending, Reward, Role, Rollout
from uptrend.records import Sequence as Tokens
from uptrend.training.learner import Experience, Learner, Update, lay_out

Shapes = list[tuple[int, list[list[int]]]]
"""By group: the prompt's length, and for each rollout the lengths of its turns, model and tool by
turns.
"""

SHAPES: Shapes = [(6, [[3], [5], [1]]), (11, [[2, 4, 3], [4], [6]]), (2, [[7], [1, 1, 1], []])]


class Kept:
    """An optimizer that only keeps the gradients."""

    has_memory = True

    def __init__(self, flat: FlatWeights) -> None:
        self.flat, self.gradients = flat, list[Tensor]()

    def apply(self, lr: float) -> Applied:  # noqa: ARG002
        self.gradients.append(self.flat.gradient.clone())
        self.flat.gradient.zero_()
        return Applied(1.0, 1.0, skipped=False)


def config_of(*overrides: str, **learning: Any) -> Config:
    table = {
        "sampling": {"groups": 3, "size": 3, "max_tokens": 8, "max_turns": 4},
        "learning": learning,
    }
    return load_config(table, overrides)


def rollouts_of(shapes: Shapes, seed: int = 0) -> list[Rollout]:
    """Random tokens and rewards in these shapes."""
    chance = np.random.default_rng(seed)
    rollouts = []
    for group, (prompt, members) in enumerate(shapes):
        head = chance.integers(4, 90, prompt)
        for index, turns in enumerate(members):
            roles = [Role.PROMPT] * prompt
            for i, length in enumerate(turns):
                roles += [Role.TOOL if i % 2 else Role.MODEL] * length
            ids = np.concatenate([head, chance.integers(4, 90, len(roles) - prompt)]).astype(
                np.int32
            )
            said = np.array([r == Role.MODEL for r in roles])
            logprobs = np.where(said, chance.normal(-2, 0.5, len(ids)), np.nan).astype(np.float32)
            turns_of, versions = (
                np.zeros(len(ids), np.int32),
                np.where(said, 0, -1).astype(np.int32),
            )
            sequence = Tokens(ids, turns_of, np.array(roles, np.int8), versions, logprobs)
            reward = Reward.of("r", float(chance.normal()), -9.0, 9.0, False)
            rollouts.append(
                Rollout(1, f"g{group}", index, f"t{group}", "f", "", 0, (), (sequence,), reward,
                        Ending.STOP_TOKEN, None, 0.0)
            )  # fmt: skip
    return rollouts


def advantages_of(rollouts: Sequence[Rollout], exp: Experience, config: Config) -> Tensor:
    rewards = torch.tensor([torch.nan if r.reward is None else r.reward.total for r in rollouts])
    groups = torch.tensor([int(r.group[1:]) for r in rollouts])
    given_n = advantages(
        rewards, groups, scale=config.learning.scale, baseline=config.learning.baseline
    )
    return given_n[exp.rollouts_b, None].expand(exp.mask_bs.shape)


def update(
    policy: Policy, rollouts: Sequence[Rollout], config: Config, optimizer: Any = None
) -> tuple[Update, list[Tensor]]:
    """Let the learner make an update; return it with the gradients."""
    kept = optimizer or Kept(policy.flat)
    learner = Learner(policy, kept, config)
    exp = lay_out(rollouts, config)
    reference = learner.logprobs(exp, reference=True) if config.learning.kl.beta else None
    old = learner.logprobs(exp, reference=False) if learner.needs_old else None
    done = learner.update(
        exp, advantages_of(rollouts, exp, config), 1, old_bs=old, reference_bs=reference
    )
    return done, getattr(kept, "gradients", [])
