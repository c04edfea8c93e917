"""Parts of the training loop as values.

The loop and the probes take every part from here. Tests, probes and the fault benchmark replace a part with
`replace(components, sampler=...)`; nothing patches a name.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from uptrend import algo
from uptrend.config import Config, Learning
from uptrend.policy.checkpoint import load_checkpoint
from uptrend.policy.optimizer import Optimizer
from uptrend.policy.policy import Policy
from uptrend.policy.weights import FlatWeights
from uptrend.rollout.inprocess import InProcessSampler
from uptrend.rollout.sampler import Sampler
from uptrend.tasks.pool import Cursor, Pool
from uptrend.training.gather import Gathered, RolloutPlayer, gather
from uptrend.training.learner import Layout, Learner, lay_out
from uptrend.training.metrics import Learned, step_metrics


@dataclass(frozen=True)
class Components:
    """Parts of the training loop, each a function or a class that makes it."""

    sampler: Callable[[Policy], Sampler] = InProcessSampler
    """Makes the sampler that plays rollouts."""
    gather: Callable[[RolloutPlayer, Pool, Cursor, int, Config], Gathered] = gather
    """Samples the groups of a step."""
    layout: Layout = lay_out
    """Lays rollouts out for the learner: tokens, loss mask and what attention sees."""
    advantages: Callable[..., Tensor] = algo.advantages
    """Computes advantages by group id: `(rewards_n, groups_n, *, scale, baseline)`."""
    learner: Callable[[Policy, Optimizer, Config], Learner] = Learner
    """Makes the learner: log-probabilities, loss and gradient."""
    optimizer: Callable[[FlatWeights, Learning], Optimizer] = Optimizer
    """Makes the optimizer."""
    metrics: Callable[[Learned], dict[str, Any]] = step_metrics
    """Computes a step's metrics line."""
    restore: Callable[[Path, Policy, Optimizer], dict[str, Any]] = load_checkpoint
    """Loads a checkpoint into policy and optimizer; returns the loop's state."""
