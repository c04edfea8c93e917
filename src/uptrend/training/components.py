"""Parts of a run as values.

The loop and the probes take every part from here. Tests, probes and the fault benchmark replace a
part with `replace(components, sampler=...)`; nothing patches a name.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from uptrend import algo
from uptrend.config import Config, Learning
from uptrend.config.functions import load_named
from uptrend.policy.checkpoint import load_checkpoint
from uptrend.policy.optimizer import Optimizer
from uptrend.policy.policy import Policy
from uptrend.policy.weights import FlatWeights
from uptrend.records import ConfigError, RunDirectory
from uptrend.rollout.inprocess import CopySampler, InProcessSampler
from uptrend.rollout.sampler import NoSampler, Sampler
from uptrend.rollout.vllm import VllmSampler
from uptrend.tasks.pool import Cursor, HeldoutTasks, Pool
from uptrend.training.gather import Gathered, RolloutPlayer, gather
from uptrend.training.learner import Layout, Learner, lay_out
from uptrend.training.metrics import StepResult, step_metrics
from uptrend.training.observer import Observer, Stop
from uptrend.training.ranks import OneRank, Ranks, layout_of


@dataclass(frozen=True)
class Components:
    """Parts of the training loop, each a function or a class that makes it."""

    # Makes the sampler that plays rollouts.
    sampler: Callable[[Policy], Sampler] = InProcessSampler
    # Samples the groups of a step.
    gather: Callable[[RolloutPlayer, Pool, Cursor, int, Config], Gathered] = gather
    # Lays rollouts out for the learner: tokens, loss mask and attention mask.
    layout: Layout = lay_out
    # Computes advantages by group id: `(rewards_n, groups_n, *, scale, baseline)`.
    advantages: Callable[..., Tensor] = algo.advantages
    # Makes the learner: log-probabilities, loss and gradient.
    learner: Callable[[Policy, Optimizer, Config], Learner] = Learner
    # Makes the optimizer.
    optimizer: Callable[[FlatWeights, Learning], Optimizer] = Optimizer
    # Computes a step's metrics line.
    metrics: Callable[[StepResult], dict[str, Any]] = step_metrics
    # Loads a checkpoint into policy and optimizer; returns the loop's state.
    restore: Callable[[Path, Policy, Optimizer], dict[str, Any]] = load_checkpoint


def choose_components(config: Config, ranks: Ranks) -> Components:
    """Return the parts that a recipe asks for."""
    sharding = layout_of(config, ranks)
    if sharding == "fsdp2":
        from uptrend.policy.sharded import ShardedOptimizer

        components = Components(optimizer=ShardedOptimizer)
    elif sharding == "zero3":
        from uptrend.policy.zero import ZeroOptimizer

        components = Components(optimizer=ZeroOptimizer)
    else:
        components = Components()
    if config.learning.advantages != "group":
        users_function = load_named(config.learning.advantages, "advantages")
        components = replace(components, advantages=users_function)

    sampling = config.sampling
    if sampling.engine == "vllm":
        if ranks.rank != 0:  # rank 0 plays for all
            return replace(components, sampler=lambda _: NoSampler())
        # Servers take evaluations too, whose context may be longer than training's.
        sampling = replace(sampling, context=config.longest)
        return replace(components, sampler=partial(VllmSampler, sampling=sampling))
    if sampling.ahead and ranks.count > 1:
        raise ConfigError(
            f"sampling.ahead = {sampling.ahead} in {ranks.count} processes needs sampling.engine ="
            " 'vllm': each process would sample and learn on the same device."
        )
    # The policy's own weights can't sample while they change, or where each rank holds a part.
    if sampling.ahead or sharding != "ddp":
        return replace(components, sampler=CopySampler)
    return components


@dataclass(frozen=True)
class RunContext:
    """Recipe with everything that it names: what a run trains, plays and learns with. Probes use
    the same.
    """

    config: Config  # with every value filled in
    policy: Policy
    pool: Pool
    heldout: HeldoutTasks
    components: Components = field(default_factory=Components)
    ranks: Ranks = field(default_factory=OneRank)  # processes that train together
    notes: tuple[str, ...] = ()  # decisions about this run that its user should know of
    # True if model.chat was decided by playing tasks with and without a chat template.
    has_compared_chat: bool = False


@dataclass(frozen=True)
class LoopPlan:
    """Steps to run, the checkpoint to start from, and where all of it is recorded."""

    directory: RunDirectory
    last_step: int
    checkpoint: Path | None = None  # checkpoint to begin with; None for the model as it was loaded
    is_new: bool = True  # False for a resumed run, whose model was evaluated when it began
    saves: bool = True  # True if checkpoints are written
    ahead: int = 0  # steps that may be sampled ahead of the weights that learn from them
    observers: Sequence[Observer] = ()
    # Called at the loop's end with the Stop that ended it early, before `after` of the observers.
    on_end: Callable[[Stop | None], None] = lambda _: None

    def is_due(self, step: int, every: int) -> bool:
        """Return True for every `every`-th step and for the last one; 0 is the last one alone."""
        return step == self.last_step or (every > 0 and step % every == 0)
