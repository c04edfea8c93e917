"""A step's rollouts by their true groups, and evidence that points at one of them.

n = rollout, g = group.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from uptrend.records import Evidence
from uptrend.records.table import Flags, Floats, Ints, RolloutTable

# What trainers add to a deviation before they divide by it.
STD_EPSILON = 1e-4


@dataclass(frozen=True)
class RolloutSubset:
    """Some rollouts of one step."""

    table: RolloutTable
    index_n: Ints
    """Their numbers among all rollouts of the step."""

    def flags_over_step(self, flags: Flags) -> Flags:
        """Spread flags of these rollouts over all of the step."""
        whole = np.zeros(len(self.table), np.bool_)
        whole[self.index_n[flags]] = True
        return whole


@dataclass(frozen=True)
class RewardGroups:
    """Rewards by group."""

    group_n: Ints
    """Their groups, from 0."""
    reward_n: Floats

    @cached_property
    def size_g(self) -> Ints:
        return np.bincount(self.group_n)

    @cached_property
    def dead_g(self) -> Flags:
        """Groups whose rewards are all the same number, to fp32's precision, which trainers compare
        in.
        """
        reward = self.reward_n.astype(np.float32)
        low = np.full(len(self.size_g), np.inf, np.float32)
        high = np.full(len(self.size_g), -np.inf, np.float32)
        np.minimum.at(low, self.group_n, reward)
        np.maximum.at(high, self.group_n, reward)
        return np.asarray(low == high)

    @cached_property
    def centered_n(self) -> Floats:
        """Rewards less the mean of their group."""
        return self.reward_n - (group_sum(self.reward_n, self.group_n) / self.size_g)[self.group_n]

    @cached_property
    def deviation_g(self) -> Floats:
        """Standard deviation of each group's rewards."""
        squares = group_sum(self.centered_n**2, self.group_n)
        return np.asarray(np.sqrt(squares / np.maximum(self.size_g - 1, 1)))


@dataclass(frozen=True)
class GroupedRollouts(RewardGroups, RolloutSubset):
    """The scored and kept rollouts of one step, by the true group of each."""

    advantage_n: Floats | None
    """Recorded advantages; None where nothing was recorded."""


def group_rollouts(r: RolloutTable) -> GroupedRollouts | None:
    """Return a step by true groups; None without group ids or rewards."""
    index_n = np.flatnonzero(r.kept_n & np.isfinite(r.reward_n) & r.has("reward"))
    if r.group_n is None or not len(index_n):
        return None
    group_n = np.unique(r.group_n[index_n], return_inverse=True)[1].astype(np.int64)
    advantage = r.tokens("advantages")
    weight = r.tokens("weights")
    advantage_n = None
    if advantage is not None:
        # Tokens left out of the loss were never given an advantage: a mask that forgets them is no
        # fault of the groups.
        known = r.model_t & np.isfinite(advantage)
        if weight is not None:
            known &= np.nan_to_num(weight) != 0
        advantage_n = r.mean_n(advantage, known)[index_n]
    return GroupedRollouts(r, index_n, group_n, r.reward_n[index_n], advantage_n)


def recompute_advantages(g: RewardGroups, scale: str, baseline: str) -> Floats:
    """Return the advantages that these rewards give in these groups."""
    # Written once more in numpy and fp64: a check that used the trainer's own functions would
    # repeat their mistakes.
    size_n = g.size_g[g.group_n]
    advantage_n = g.centered_n
    if baseline == "leave_one_out":
        advantage_n = advantage_n * size_n / np.maximum(size_n - 1, 1)
    if scale == "group":
        advantage_n = advantage_n / (g.deviation_g[g.group_n] + STD_EPSILON)
    elif scale == "batch" and len(g.reward_n) > 1:
        advantage_n = advantage_n / (np.std(g.reward_n, ddof=1) + STD_EPSILON)
    return np.where(g.dead_g[g.group_n], 0.0, advantage_n)


def rollout_evidence(
    rows: Sequence[RolloutTable], flags: Sequence[Flags], text: str, value: float, metric: str = ""
) -> Evidence:
    """Return evidence that points at the first flagged rollout; `flags` are by rollout, one array
    per step.
    """
    for r, flags_n in zip(rows, flags, strict=True):
        if flags_n.any():
            return Evidence(text, value, metric, r.step, r.name(int(flags_n.argmax())))
    return Evidence(text, value, metric)


def subset_evidence(
    steps: Sequence[RolloutSubset],
    flags: Sequence[Flags],
    text: str,
    value: float,
    metric: str = "",
) -> Evidence:
    """Return evidence that points at the first flagged one of the chosen rollouts."""
    whole = [chosen.flags_over_step(f) for chosen, f in zip(steps, flags, strict=True)]
    return rollout_evidence([chosen.table for chosen in steps], whole, text, value, metric)


def count_flags(flags: Iterable[Flags]) -> int:
    """Return the number of flags that are set, over all steps."""
    return sum(int(f.sum()) for f in flags)


def group_sum(values: Floats, codes: Ints) -> Floats:
    """Return the sum over each group."""
    return np.bincount(codes, weights=values, minlength=int(codes.max(initial=-1)) + 1).astype(
        np.float64
    )
