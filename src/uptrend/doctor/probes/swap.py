"""Other words in the place of a prompt or of tool results, as many as there were."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from uptrend.doctor.probes.bench import Bench
from uptrend.records import Role, Rollout


def with_other(rollout: Rollout, other: Rollout, role: Role) -> Rollout:
    """The model's words after another rollout's tokens of this role; lengths stay.

    The last token of a stretch stays too: it predicts the model's next word, and every token sees itself.
    """
    mine, theirs = rollout.sequences[0], other.sequences[0]
    ids = mine.ids.copy()
    places = mine.roles == int(role)
    places[:-1] &= places[1:]
    source = theirs.ids[theirs.roles == int(role)]
    ids[places] = np.resize(source, int(places.sum()))
    return replace(rollout, sequences=(replace(mine, ids=ids), *rollout.sequences[1:]))


def reaction(bench: Bench, before: Sequence[Rollout], after: Sequence[Rollout], role: Role) -> tuple[float, int]:
    """How far log-probabilities move on average, in nats, where different tokens of the role come before."""
    exps = [bench.experience(rollouts) for rollouts in (before, after)]
    moved_bs = (bench.logprobs(exps[0]) - bench.logprobs(exps[1])).abs()
    counted = torch.zeros_like(exps[0].real_bs)
    for b, line in enumerate(exps[0].lines):
        differ = np.flatnonzero(exps[0].lines[b].ids != exps[1].lines[b].ids)
        roles = before[line.rollout].sequences[0].roles
        if len(differ) and (roles[differ] == int(role)).all():
            counted[b, : len(line.sampled)] = torch.from_numpy(line.sampled > differ[0])
    values = moved_bs[counted & ~moved_bs.isnan()]
    return (float(values.mean()) if len(values) else float("nan")), len(values)
