"""The figures beside a verdict: how often the intervals of improvement and of interquartile means
cover.
"""

import math

import numpy as np
from benchmarks.verdicts.markdown import rate
from benchmarks.verdicts.simulated import SHARED
from scipy.special import ndtr

from uptrend.present.formatting import markdown_table
from uptrend.records.view import Floats
from uptrend.stats.intervals import chance_of_improvement, iqm_difference

DEVIATION, EFFECT, OWN = 0.05, 0.05, 0.02
"""Of runs between seeds, of the arm, and of a run's score on one taskset about its mean."""
TASKSETS = np.array([-0.1, 0.0, 0.15])
HEADS = [
    "seeds",
    "improvement, independent runs, %",
    "improvement, seeds in common, %",
    "interquartile means, %",
]


def runs(random: np.random.Generator, seeds: int, shared: float) -> tuple[Floats, Floats]:
    """Arm and control, a row a seed; so much of the variance is in common between them."""
    in_common = random.normal(0, math.sqrt(shared) * DEVIATION, (seeds, 1))
    own = random.normal(0, math.sqrt(1 - shared) * DEVIATION, (2, seeds, 1))
    return EFFECT + in_common + own[0], in_common + own[1]


def covers(random: np.random.Generator, seeds: int) -> list[bool]:
    """Whether each interval has its truth in it, in one experiment."""
    chance = float(ndtr(EFFECT / DEVIATION / math.sqrt(2)))
    apart, together = (
        chance_of_improvement(*runs(random, seeds, shared)) for shared in (0.0, SHARED)
    )
    arm, control = (
        side + TASKSETS + random.normal(0, OWN, (seeds, len(TASKSETS)))
        for side in runs(random, seeds, SHARED)
    )
    middle = iqm_difference(arm, control)
    return [
        one.low <= true <= one.high
        for one, true in ((apart, chance), (together, chance), (middle, EFFECT))
    ]


def beside_table(experiments: int) -> str:
    """By seeds."""
    rows = []
    for seeds in (3, 5, 8, 16):
        random = np.random.default_rng(seeds)
        found = np.array([covers(random, seeds) for _ in range(experiments)])
        rows.append([str(seeds), *(rate(column) for column in found.T)])
    return markdown_table(HEADS, rows)
