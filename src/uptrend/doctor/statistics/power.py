"""Whether a run could have shown what is sought: power before or after it, from its own noise and autocorrelation."""

import math

from uptrend.doctor.statistics.autocorrelation import effective_size
from uptrend.doctor.statistics.distributions import normal_cdf, normal_quantile


def step_noise(rollout: float, groups: int, size: int, task: float) -> float:
    """The deviation of a step's mean reward: tasks differ by `task`, rollouts of one task by `rollout`."""
    return math.sqrt(task**2 / groups + rollout**2 / (groups * size))


def power_of(effect: float, noise: float, points: int, rho: float = 0.0, alpha: float = 0.05) -> float:
    """The chance that a straight rise by `effect` over so many points is told from noise of this deviation."""
    error = noise * math.sqrt(12 / max(1.0, effective_size(points, rho)))
    if error == 0:
        return 1.0
    critical = normal_quantile(1 - alpha / 2)
    return normal_cdf(abs(effect) / error - critical) + normal_cdf(-abs(effect) / error - critical)


def points_for(effect: float, noise: float, rho: float = 0.0, power: float = 0.8, alpha: float = 0.05) -> int:
    """How many points show such a rise with this power."""
    reach = normal_quantile(1 - alpha / 2) + normal_quantile(power)
    return math.ceil(12 * (reach * noise / effect) ** 2 * (1 + rho) / (1 - rho))
