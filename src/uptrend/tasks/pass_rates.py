"""Drawing tasks by how often the model passes them: one that it always or never passes makes a
group whose advantages are all 0, and teaches nothing.

The estimate of a task's pass rate is a running mean over its groups. A task whose estimate is
outside of the bounds is passed over, and its estimate then moves a little towards one half: the
model changes, so it is tried again some epochs later.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from uptrend.records import Rollout

# Weight of a task's last group in its estimate. With half, a group from before the last three
# counts for an eighth: the model has changed since.
LAST_GROUP_WEIGHT = 0.5
# Part of the way to one half that the estimate of a task moves when it is passed over. A task that
# was always right, at 1.0, is drawn again after five epochs if the upper bound is 0.9.
RETURN_RATE = 0.05
UNDECIDED_RATE = 0.5


@dataclass(frozen=True)
class PassBounds:
    """Pass rates of tasks that are drawn."""

    low: float
    high: float

    def hold(self, rate: float | None) -> bool:
        """Return True for a rate between the bounds, and for a task that was never drawn."""
        return rate is None or self.low <= rate <= self.high

    def distance(self, rate: float) -> float:
        """Return how far a rate is outside."""
        return max(self.low - rate, rate - self.high, 0.0)


def observe(rates: Mapping[str, float], rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Return the estimates after a step's rollouts; those without a reward do not count."""
    outcomes: dict[tuple[str, str], list[bool]] = {}
    for rollout in rollouts:
        if rollout.reward is not None:
            outcomes.setdefault((rollout.task, rollout.group), []).append(rollout.reward.correct)
    observed = dict(rates)
    for (task, _), correct in outcomes.items():
        rate = sum(correct) / len(correct)
        if task in observed:
            rate = LAST_GROUP_WEIGHT * rate + (1 - LAST_GROUP_WEIGHT) * observed[task]
        observed[task] = rate
    return observed


def pass_over(rates: Mapping[str, float], tasks: Collection[str]) -> dict[str, float]:
    """Return the estimates after these tasks were passed over."""
    moved = dict(rates)
    for task in tasks:
        moved[task] += RETURN_RATE * (UNDECIDED_RATE - moved[task])
    return moved
