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
    """The same rollouts, twice."""

    seen_bs: tuple[Tensor, Tensor]
    """Log-probabilities while learning, in one pass and in micro-batches."""
    logprobs_bs: tuple[Tensor, Tensor]
    """And while only looking, twice."""
    real_bs: Tensor
    """Which of them are there."""
    difference: float
    """The length of the gradients' difference, as a part of the gradient's."""
    ratio: float
    """The second gradient's length against the first's."""
    passes: int
    """How many micro-batches the second had."""


def rehearse(bench: Bench) -> Rehearsed:
    """Both passes; remembered on the bench, as two probes ask."""
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
    for tokens in (1 << 30, longest):  # one row per micro-batch: rows that share a prompt might all fit into more
        learner = bench.components.learner(bench.policy, cast(Optimizer, caught), _alone(bench.config, tokens))
        update = learner.update(exp, advantages_b, 1, old_bs=None, reference_bs=None)
        seen.append(update.learner_bs)
    first, second = caught.gradients
    length = float(torch.linalg.vector_norm(first))
    apart = float(torch.linalg.vector_norm(second - first))
    return Rehearsed(
        (seen[0], seen[1]), (bench.logprobs(exp), bench.logprobs(exp)), exp.real_bs, apart / max(length, 1e-12),
        float(torch.linalg.vector_norm(second)) / max(length, 1e-12), len(exp.lines),
    )  # fmt: skip


def _chosen(bench: Bench) -> list[Rollout]:
    """Rollouts of different lengths, from several groups: equal parts would hide a wrong mean."""
    said = sorted((r for r in bench.batch if r.sampled_tokens), key=lambda r: r.sampled_tokens)
    chosen = said[: ROLLOUTS // 2] + said[-ROLLOUTS // 2 :] if len(said) > ROLLOUTS else said
    return sorted(chosen, key=lambda r: (r.group, r.index))


def _alone(config: Config, tokens: int) -> Config:
    """One update of the policy term alone, with this budget of a micro-batch."""
    learning = replace(config.learning, tokens=tokens, updates=1, minibatches=1, kl=Kl(), skip_dead=False)
    return replace(config, learning=learning)
