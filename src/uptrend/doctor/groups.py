"""Advantages by the true group of each rollout: as they were recorded, and as its rewards say they should be.

The same formulas as the trainer's, written once more in numpy and fp64: a check that used the trainer's own
functions would repeat their mistakes.
"""

from dataclasses import dataclass

import numpy as np

from uptrend.doctor.rows import Flags, Floats, Ints, Rows, group_sum

EPSILON = 1e-4
"""What trainers add to a deviation before they divide by it."""


@dataclass(frozen=True)
class Grouped:
    """The scored and kept rollouts of one step."""

    rows: Rows
    place_n: Ints
    """Their numbers among all rollouts of the step."""
    group_n: Ints
    """Their groups, from 0."""
    reward_n: Floats
    advantage_n: Floats | None
    """What was recorded; None where nothing was."""

    def whole(self, flags: Flags) -> Flags:
        """From these rollouts to all of the step."""
        spread = np.zeros(len(self.rows), np.bool_)
        spread[self.place_n[flags]] = True
        return spread

    @property
    def size_g(self) -> Ints:
        """How many rollouts each group has."""
        return np.bincount(self.group_n)

    @property
    def dead_g(self) -> Flags:
        """Groups whose rewards are all the same number, to fp32's precision, which trainers compare in."""
        reward = self.reward_n.astype(np.float32)
        low = np.full(len(self.size_g), np.inf, np.float32)
        high = np.full(len(self.size_g), -np.inf, np.float32)
        np.minimum.at(low, self.group_n, reward)
        np.maximum.at(high, self.group_n, reward)
        return np.asarray(low == high)

    @property
    def centered_n(self) -> Floats:
        """Rewards less the mean of their group."""
        return self.reward_n - (group_sum(self.reward_n, self.group_n) / self.size_g)[self.group_n]

    @property
    def deviation_g(self) -> Floats:
        """The deviation of each group's rewards."""
        squares = group_sum(self.centered_n**2, self.group_n)
        return np.asarray(np.sqrt(squares / np.maximum(self.size_g - 1, 1)))


def grouped(r: Rows) -> Grouped | None:
    """A step by true groups; None without group ids or rewards."""
    if r.group_n is None or not r.has("reward"):
        return None
    place_n = np.flatnonzero(r.kept_n & np.isfinite(r.reward_n))
    if not len(place_n):
        return None
    group_n = np.unique(r.group_n[place_n], return_inverse=True)[1].astype(np.int64)
    advantage_n = _recorded(r)
    return Grouped(r, place_n, group_n, r.reward_n[place_n], None if advantage_n is None else advantage_n[place_n])


def _recorded(r: Rows) -> Floats | None:
    """The mean advantage over each rollout's trained tokens; NaN where it has none.

    What is left out of the loss was never given one: a mask that forgets tokens is no fault of the groups.
    """
    advantage, weight = r.tokens("advantages"), r.tokens("weights")
    if advantage is None:
        return None
    known = r.model_t & np.isfinite(advantage)
    if weight is not None:
        known &= np.nan_to_num(weight) != 0
    sums = np.bincount(r.rollout_t[known], weights=advantage[known], minlength=len(r))
    counts = np.bincount(r.rollout_t[known], minlength=len(r))
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def recomputed(g: Grouped, scale: str, baseline: str) -> Floats:
    """The advantages that these rewards give in these groups."""
    size_n = g.size_g[g.group_n]
    advantage_n = g.centered_n
    if baseline == "leave_one_out":
        advantage_n = advantage_n * size_n / np.maximum(size_n - 1, 1)
    if scale == "group":
        advantage_n = advantage_n / (g.deviation_g[g.group_n] + EPSILON)
    elif scale == "batch" and len(g.reward_n) > 1:
        advantage_n = advantage_n / (np.std(g.reward_n, ddof=1) + EPSILON)
    return np.where(g.dead_g[g.group_n], 0.0, advantage_n)
