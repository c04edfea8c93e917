"""A step's gradient without a step: in one pass, and in micro-batches of one rollout each.

Two probes look at it: whether the same forward gives the same twice, and whether gradients add up.
"""

from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from uptrend.config import Config
from uptrend.config.schema import Kl
from uptrend.doctor.probes.bench import Bench, Caught
from uptrend.policy.optimizer import Optimizer
from uptrend.records import Rollout

ROLLOUTS = 8


@dataclass(frozen=True)
class Rehearsed:
    """The same rollouts several times: learning in one pass twice, then in micro-batches; and without learning."""

    learning_bs: tuple[Tensor, Tensor]
    """Log-probabilities while learning, twice in the same layout."""
    micro_bs: Tensor
    """Log-probabilities while learning in micro-batches of one row."""
    logprobs_bs: tuple[Tensor, Tensor]
    """Log-probabilities without a gradient, twice."""
    real_bs: Tensor
    """Tokens that exist."""
    difference: float
    """Length of the gradients' difference / length of the gradient of one pass."""
    ratio: float
    """Length of the micro-batches' gradient / length of that of one pass."""
    passes: int
    """Number of micro-batches."""


def rehearse(bench: Bench) -> Rehearsed:
    """Run all passes once per bench: two probes need them."""
    if not isinstance(bench.rehearsed, Rehearsed):
        with bench.scratch():
            bench.rehearsed = _rehearse(bench)
    assert isinstance(bench.rehearsed, Rehearsed)
    return bench.rehearsed


def _rehearse(bench: Bench) -> Rehearsed:
    rollouts = _chosen(bench)
    exp = bench.experience(rollouts)
    advantages_b = torch.where(torch.arange(len(exp.lines)) % 3 == 0, 1.0, -0.5)  # any that are not 0 will do
    longest = max(len(line.ids) for line in exp.lines)
    caught = Caught(bench.policy)
    seen = []
    # Twice the same layout, where only dropout can differ; then one row per micro-batch, where a fault of packing
    # shows too: rows that share a prompt might all fit into a larger one.
    for tokens in (1 << 30, 1 << 30, longest):
        learner = bench.components.learner(bench.policy, cast(Optimizer, caught), _alone(bench.config, tokens))
        update = learner.update(exp, advantages_b, 1, old_bs=None, reference_bs=None)
        seen.append(update.learner_bs)
    whole, _, parts = caught.gradients
    length = max(float(torch.linalg.vector_norm(whole)), 1e-12)
    return Rehearsed(
        learning_bs=(seen[0], seen[1]),
        micro_bs=seen[2],
        logprobs_bs=(bench.logprobs(exp), bench.logprobs(exp)),
        real_bs=exp.real_bs,
        difference=float(torch.linalg.vector_norm(parts - whole)) / length,
        ratio=float(torch.linalg.vector_norm(parts)) / length,
        passes=len(exp.lines),
    )


def _chosen(bench: Bench) -> list[Rollout]:
    """Rollouts of different lengths, from several groups: equal parts would hide a wrong mean."""
    said = sorted((r for r in bench.batch if r.sampled_tokens), key=lambda r: r.sampled_tokens)
    chosen = said[: ROLLOUTS // 2] + said[-ROLLOUTS // 2 :] if len(said) > ROLLOUTS else said
    return sorted(chosen, key=lambda r: (r.group, r.index))


def _alone(config: Config, tokens: int) -> Config:
    """One update of the policy term alone, with this budget of a micro-batch."""
    learning = replace(config.learning, tokens=tokens, updates=1, minibatches=1, kl=Kl(), skip_dead=False)
    return replace(config, learning=learning)
