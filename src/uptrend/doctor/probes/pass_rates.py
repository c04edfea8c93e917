"""How often groups of a size will be dead, from the rewards of the groups that were played.

A group's chance p of earning the most is seen through its n rollouts, k of them at the top: p ~ Beta(a + k,
b + n − k), with a and b fitted to all groups by moments. A group of G is then all top or all not with chance
E[pᴳ] + E[(1−p)ᴳ]. For rewards of many values this counts less as alive than there is: what was seen is
scaled by it, not replaced.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from uptrend.records import Rollout
from uptrend.stats.intervals import all_right


@dataclass(frozen=True)
class PassRates:
    """What was seen of the groups."""

    rewards: tuple[tuple[float, ...], ...]
    """The scored rewards of each."""
    lows: tuple[float, ...]
    """The least that can be earned in each."""
    highs: tuple[float, ...]
    """The most."""
    distinct: float
    """The mean share of rollouts of a group that say something different."""

    @property
    def dead(self) -> list[bool]:
        """Whether all rewards are equal."""
        return [len(set(r)) < 2 for r in self.rewards]

    @property
    def dead_low(self) -> list[bool]:
        """Dead at the bottom."""
        return [d and r[0] <= low + 1e-6 for d, r, low in zip(self.dead, self.rewards, self.lows, strict=True)]

    @property
    def dead_high(self) -> list[bool]:
        """Dead at the top."""
        return [d and r[0] >= high - 1e-6 for d, r, high in zip(self.dead, self.rewards, self.highs, strict=True)]

    @property
    def pass_rate(self) -> float:
        """The mean share of rollouts at the top."""
        counts = [sum(x >= high - 1e-6 for x in r) / len(r) for r, high in zip(self.rewards, self.highs, strict=True)]
        return float(np.mean(counts))


def groups_of(rollouts: Sequence[Rollout]) -> PassRates:
    """Groups by their id; those without a scored rollout are left out."""
    members: dict[str, list[Rollout]] = {}
    for rollout in rollouts:
        if rollout.reward is not None:
            members.setdefault(rollout.group, []).append(rollout)
    said = [len({_words(r) for r in m}) / len(m) for m in members.values()]
    return PassRates(
        tuple(tuple(r.reward.total for r in m if r.reward) for m in members.values()),
        tuple(m[0].reward.low for m in members.values() if m[0].reward),
        tuple(m[0].reward.high for m in members.values() if m[0].reward),
        float(np.mean(said)) if said else 0.0,
    )


def predict_dead(groups: PassRates, size: int) -> float:
    """The share of dead groups at another size."""
    values = [r for r in groups.rewards if r]
    if not values:
        return 1.0
    many_valued = len({x for r in values for x in r}) > 2
    if many_valued:
        # Unbiased where the size is at most what was played, and smoothed by one unseen value beyond.
        return float(np.mean([_all_equal(r, size) for r in values]))
    tops = np.array(
        [sum(x >= max(high, -np.inf) - 1e-6 for x in r) for r, high in zip(values, groups.highs, strict=True)]
    )
    counts = np.array([len(r) for r in values])
    a, b = _fit(tops / counts, counts)
    return float(
        np.mean(
            [
                all_right(a + k, b + n - k, size) + all_right(b + n - k, a + k, size)
                for k, n in zip(tops, counts, strict=True)
            ]
        )
    )


def _all_equal(rewards: tuple[float, ...], size: int) -> float:
    """The chance that `size` draws are one value; half a rollout of something else is taken to be about."""
    counts = np.array([rewards.count(x) for x in set(rewards)], float)
    n = len(rewards) + 0.5
    return float(sum(all_right(c, n - c, size) for c in counts))


def _fit(shares: np.ndarray, counts: np.ndarray) -> tuple[float, float]:
    """A Beta's two numbers by moments, within 0.1 and 10."""
    mean = float(np.clip(shares.mean(), 0.02, 0.98))
    noise = mean * (1 - mean) / counts.mean()
    spread = max(float(shares.var()) - noise, 1e-3)
    total = float(np.clip(mean * (1 - mean) / spread - 1, 0.2, 10))
    return mean * total, (1 - mean) * total


def _words(rollout: Rollout) -> bytes:
    return b"".join(s.ids[s.sampled].tobytes() for s in rollout.sequences)
