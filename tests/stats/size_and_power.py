"""Measure the trend test's false positives and power: python tests/stats/size_and_power.py [curves]."""

import sys

import numpy as np
from scipy.signal import lfilter

from uptrend.records.view import Floats
from uptrend.stats.trend import measure_trend

RISES = {20: 4.0, 50: 2.0, 100: 1.4, 200: 1.0, 1000: 0.45}


def noise(random: np.random.Generator, points: int, rho: float) -> Floats:
    """Return AR(1) noise of deviation 1."""
    raw = lfilter([1.0], [1.0, -rho], random.standard_normal(points + 200))[200:]
    return np.asarray(raw * np.sqrt(1 - rho**2))


def share_found(points: int, rho: float, rise: float, curves: int, seed: int = 0) -> float:
    """Return the share of curves in which a trend is found at the 5% level."""
    random = np.random.default_rng([seed, points, int(100 * rho)])
    ramp = np.linspace(0, rise, points)
    found = [measure_trend(noise(random, points, rho) + ramp) for _ in range(curves)]
    return float(np.mean([trend is not None and trend.p < 0.05 for trend in found]))


def main() -> None:
    """Print the figures that docs/stats.md quotes."""
    curves = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    for points, rise in RISES.items():
        false = [share_found(points, rho, 0.0, curves) for rho in (0, 0.3, 0.6, 0.9)]
        true = [share_found(points, rho, rise, curves) for rho in (0, 0.3)]
        print(f"{points} points: false {[round(x, 3) for x in false]}, power {[round(x, 3) for x in true]}", flush=True)


if __name__ == "__main__":
    main()
