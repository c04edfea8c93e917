"""Whether a run's reward fell from its best and stayed down, and where."""

from dataclasses import dataclass

import numpy as np

from uptrend.doctor.curves import REWARD, rollout_spread
from uptrend.records import RunView
from uptrend.records.view import Floats
from uptrend.stats.trend import neighbor_noise

SHORTEST = 12
SHARE_LOST = 0.5
"""A fall counts from half of what lies between the best level and the worst ever reached."""


@dataclass(frozen=True)
class Collapse:
    """A fall that was not made good."""

    best: float
    """The best level, over a tenth of the run."""
    last: float
    """The level of the last quarter."""
    index: int
    """The first point that lies nearer to the last level than to the best, for good."""


def find_collapse(view: RunView) -> Collapse | None:
    """The collapse of a run's reward, if it had one."""
    values = view.curve(REWARD)[1]
    if len(values) < SHORTEST:
        return None
    width = max(3, len(values) // 10)
    levels = np.convolve(values, np.ones(width) / width, "valid")
    peak = int(np.argmax(levels))
    best, last = float(levels[peak]), float(values[-max(width, len(values) // 4) :].mean())
    after = levels[peak:]
    if len(after) < width or not _is_real(view, values, best, last, float(levels.min()), width):
        return None
    middle = (best + last) / 2
    if bool((levels[-width:] > middle).any()):
        return None
    above = np.flatnonzero(levels > middle)
    return Collapse(best, last, int(above[-1]) + width // 2 + 1)


def _is_real(view: RunView, values: Floats, best: float, last: float, worst: float, width: int) -> bool:
    """Large against the noise of the levels, against rollouts' spread, and against what the run ever gained."""
    fall = best - last
    noise = neighbor_noise(values) * np.sqrt(2 / width)
    return bool(fall > 5 * noise and fall > 0.5 * rollout_spread(view) and fall > SHARE_LOST * (best - worst))
