"""Is it learning? The doctor's trend test on curves whose noise remembers, and when it is looked at every ten steps."""

import numpy as np
from benchmarks.verdicts.markdown import rate, table

from uptrend.doctor.statistics.looks import seen_trend
from uptrend.doctor.statistics.trend import measure_trend
from uptrend.records.view import Floats

STEPS, EVERY = 200, 10
RISES = {0.0: 1.0, 0.6: 2.0}
"""How far the rising curves rise, by autocorrelation, in deviations of their noise."""


def curves(count: int, steps: int, rho: float, rise: float, seed: int = 0) -> Floats:
    """AR(1) noise of deviation 1 about a straight rise."""
    random = np.random.default_rng([seed, steps, int(100 * rho), int(100 * rise)])
    noise = random.standard_normal((count, steps))
    for step in range(1, steps):
        noise[:, step] = rho * noise[:, step - 1] + np.sqrt(1 - rho * rho) * noise[:, step]
    return np.asarray(noise + np.linspace(0, rise, steps))


def is_found(curve: Floats) -> bool:
    """Whether the finished curve has a trend at the 5% level."""
    trend = measure_trend(curve)
    return trend is not None and trend.p < 0.05


def is_ever_seen(curve: Floats) -> bool:
    """Whether one of the looks, every ten steps, sees one."""
    return any(seen_trend(curve[:look]) is not None for look in range(EVERY, len(curve) + 1, EVERY))


def learning_table(count: int) -> str:
    """False trends and found ones, at the end and by looking."""
    rows = []
    for rho in (0.0, 0.6):
        flat, rising = curves(count, STEPS, rho, 0.0), curves(count, STEPS, rho, RISES[rho])
        shares = [
            np.array([test(curve) for curve in each]) for each in (flat, rising) for test in (is_found, is_ever_seen)
        ]
        short = np.array([is_found(curve) for curve in curves(count, STEPS // 4, rho, 0.0)])
        rows.append(
            [
                f"{rho:g}",
                rate(short),
                rate(shares[0]),
                rate(shares[1]),
                f"{RISES[rho]:g}",
                rate(shares[2]),
                rate(shares[3]),
            ]
        )
    heads = [
        "autocorrelation",
        "false at the end of 50 steps, %",
        "of 200, %",
        "false, looked at every 10 of 200 steps, %",
    ]
    return table([*heads, "rise, noise deviations", "found at the end, %", "found by looking, %"], rows)
