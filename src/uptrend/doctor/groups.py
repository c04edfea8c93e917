"""A step's rollouts by their true groups, and evidence that points at one of them.

Suffixes: n = rollout, g = group, t = token.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from uptrend.records import Evidence
from uptrend.records.table import Flags, Floats, Ints, RolloutTable

# Added to a standard deviation before dividing by it, as TRL and `algo/advantages.py` do.
STD_EPSILON = 1e-4


@dataclass(frozen=True)
class RolloutSubset:
    """Some rollouts of one step."""

    table: RolloutTable
    """All rollouts of the step."""
    index_n: Ints
    """Index of each of these rollouts in the table."""

    def flags_over_step(self, flags: Flags) -> Flags:
        """Return flags of these rollouts as flags of all rollouts of the step."""
        flags_of_step = np.zeros(len(self.table), np.bool_)
        flags_of_step[self.index_n[flags]] = True
        return flags_of_step


@dataclass(frozen=True)
class RewardGroups:
    """Rewards by group."""

    group_n: Ints
    """Group of each rollout, numbered from 0."""
    reward_n: Floats

    @cached_property
    def size_g(self) -> Ints:
        """Rollouts of each group."""
        return np.bincount(self.group_n)

    @cached_property
    def dead_g(self) -> Flags:
        """Groups whose rewards are all the same number, in fp32, in which trainers compare."""
        reward_n = self.reward_n.astype(np.float32)
        lowest_g = np.full(len(self.size_g), np.inf, np.float32)
        highest_g = np.full(len(self.size_g), -np.inf, np.float32)
        np.minimum.at(lowest_g, self.group_n, reward_n)
        np.maximum.at(highest_g, self.group_n, reward_n)
        return np.asarray(lowest_g == highest_g)

    @cached_property
    def centered_n(self) -> Floats:
        """Rewards minus the mean of their group."""
        mean_g = group_sum(self.reward_n, self.group_n) / self.size_g
        return self.reward_n - mean_g[self.group_n]

    @cached_property
    def deviation_g(self) -> Floats:
        """Sample standard deviation of each group's rewards; 0 for a single rollout."""
        squares_g = group_sum(self.centered_n**2, self.group_n)
        return np.asarray(np.sqrt(squares_g / np.maximum(self.size_g - 1, 1)))


@dataclass(frozen=True)
class GroupedRollouts(RewardGroups, RolloutSubset):
    """Rollouts of one step that were scored and learned from, by their true groups."""

    advantage_n: Floats | None
    """Recorded advantages; None if the trainer recorded none."""


def group_rollouts(table: RolloutTable) -> GroupedRollouts | None:
    """Return a step's rollouts by true groups; None without group ids or rewards."""
    index_n = np.flatnonzero(table.kept_n & np.isfinite(table.reward_n))
    if table.group_n is None or not len(index_n):
        return None
    _, group_n = np.unique(table.group_n[index_n], return_inverse=True)
    return GroupedRollouts(
        table,
        index_n,
        group_n.astype(np.int64),
        table.reward_n[index_n],
        _recorded_advantages(table, index_n),
    )


def _recorded_advantages(table: RolloutTable, index_n: Ints) -> Floats | None:
    """Return the mean recorded advantage of these rollouts' trained tokens."""
    advantage_t = table.read_tokens_if_kept("advantages")
    if advantage_t is None:
        return None
    counted_t = table.model_t & np.isfinite(advantage_t)
    weight_t = table.read_tokens_if_kept("weights")
    if weight_t is not None:
        # Tokens outside the loss never got an advantage. That a mask leaves them out is no fault of
        # the groups.
        counted_t &= np.nan_to_num(weight_t) != 0
    return table.mean_n(advantage_t, counted_t)[index_n]


def recompute_advantages(groups: RewardGroups, scale: str, baseline: str) -> Floats:
    """Return the advantages that these rewards give in these groups."""
    # Written once more in numpy and fp64: a check that used the trainer's own functions would
    # repeat their mistakes.
    group_n = groups.group_n
    advantage_n = groups.centered_n
    if baseline == "leave_one_out":
        # r - mean of the others = (r - mean of all) * size / (size - 1)
        size_n = groups.size_g[group_n]
        advantage_n = advantage_n * size_n / np.maximum(size_n - 1, 1)
    if scale == "group":
        advantage_n = advantage_n / (groups.deviation_g[group_n] + STD_EPSILON)
    elif scale == "batch" and len(groups.reward_n) > 1:
        advantage_n = advantage_n / (np.std(groups.reward_n, ddof=1) + STD_EPSILON)
    return np.where(groups.dead_g[group_n], 0.0, advantage_n)


def rollout_evidence(
    tables: Sequence[RolloutTable],
    flags_by_step: Sequence[Flags],
    text: str,
    value: float,
    metric: str = "",
) -> Evidence:
    """Return evidence that points at the first flagged rollout."""
    for table, flags_n in zip(tables, flags_by_step, strict=True):
        if flags_n.any():
            first = int(flags_n.argmax())
            return Evidence(text, value, metric, table.step, table.name(first))
    return Evidence(text, value, metric)


def subset_evidence(
    subsets: Sequence[RolloutSubset],
    flags_by_step: Sequence[Flags],
    text: str,
    value: float,
    metric: str = "",
) -> Evidence:
    """Return evidence that points at the first flagged rollout of these subsets of steps."""
    tables: list[RolloutTable] = []
    flags_over_steps: list[Flags] = []
    for subset, flags_n in zip(subsets, flags_by_step, strict=True):
        tables.append(subset.table)
        flags_over_steps.append(subset.flags_over_step(flags_n))
    return rollout_evidence(tables, flags_over_steps, text, value, metric)


def count_flags(flags_by_step: Iterable[Flags]) -> int:
    """Return the number of flags that are set, over all steps."""
    return sum(int(flags.sum()) for flags in flags_by_step)


def group_sum(values: Floats, codes: Ints) -> Floats:
    """Return the sum of the values of each code, from 0 to the largest."""
    length = int(codes.max(initial=-1)) + 1
    return np.bincount(codes, weights=values, minlength=length).astype(np.float64)
