"""Is it learning? The doctor's trend test on curves with autocorrelated noise."""

import numpy as np
from benchmarks.verdicts.markdown import rate

from uptrend.present.formatting import markdown_table
from uptrend.records.view import Floats
from uptrend.stats.trend import measure_trend

STEPS = 200
RISES = {0.0: 1.0, 0.6: 2.0}
"""Rise of the rising curves in deviations of their noise, by autocorrelation."""


def curves(count: int, steps: int, rho: float, rise: float, seed: int = 0) -> Floats:
    """Return AR(1) noise of deviation 1 about a straight rise."""
    random = np.random.default_rng([seed, steps, int(100 * rho), int(100 * rise)])
    noise = random.standard_normal((count, steps))
    for step in range(1, steps):
        noise[:, step] = rho * noise[:, step - 1] + np.sqrt(1 - rho * rho) * noise[:, step]
    return np.asarray(noise + np.linspace(0, rise, steps))


def is_found(curve: Floats) -> bool:
    """Return whether the finished curve has a trend at the 5% level."""
    trend = measure_trend(curve)
    return trend is not None and trend.p < 0.05


def learning_table(count: int) -> str:
    """Return false trends and found ones."""
    rows = []
    for rho, rise in RISES.items():
        found = [
            rate(np.array([is_found(curve) for curve in curves(count, steps, rho, height)]))
            for steps, height in ((STEPS // 4, 0.0), (STEPS, 0.0), (STEPS, rise))
        ]
        rows.append([f"{rho:g}", *found[:2], f"{rise:g}", found[2]])
    heads = [
        "autocorrelation",
        "false at the end of 50 steps, %",
        "of 200, %",
        "rise, noise deviations",
        "found, %",
    ]
    return markdown_table(heads, rows)
