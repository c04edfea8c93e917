"""The range of a reward whose functions state none: what was seen of it, and what a right answer earns."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Suspicion:
    """No way of writing a gold answer was accepted; what the run's own rewards do decides."""

    column: str
    names: list[str]


@dataclass
class RewardRange:
    """What is known of the reward's range: TRL states none, so it is what was seen, and what a gold answer earns."""

    names: list[str]
    """The reward functions."""
    weights: list[float]
    """Their factors in the total."""
    low: NDArray[np.float64]
    """The least that each has given."""
    high: NDArray[np.float64]
    """The most that each has given."""
    judge: int | None = None
    """The function that tells a right answer from a wrong one, where re-scoring found it."""
    right: float = float("nan")
    """What it gives a gold answer."""

    @classmethod
    def of(cls, names: Sequence[str], weights: Sequence[float]) -> "RewardRange":
        """Nothing seen yet."""
        count = len(names)
        return cls(list(names), list(weights), np.full(count, np.inf), np.full(count, -np.inf))

    def see(self, rewards: NDArray[np.float64]) -> None:
        """Widen the range by what was given."""
        with np.errstate(all="ignore"):
            self.low = np.fmin(self.low, np.nanmin(np.vstack([rewards, self.low]), axis=0))
            self.high = np.fmax(self.high, np.nanmax(np.vstack([rewards, self.high]), axis=0))

    def is_right(self, rewards: NDArray[np.float64]) -> bool | None:
        """Whether a rollout's answer is right, where that is known."""
        if self.judge is None:
            return None
        return bool(rewards[self.judge] >= self.right - 1e-6)

    def bounds(self) -> tuple[float, float]:
        """The least and the most that the total can be; NaN while only one value was ever seen."""
        low, high = (float(np.dot(side, self.weights)) for side in (self.low, self.high))
        return (low, high) if low < high else (float("nan"), float("nan"))
