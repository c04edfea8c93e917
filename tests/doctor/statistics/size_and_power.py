"""Measures the trend test's false positives and power: python tests/doctor/statistics/size_and_power.py [curves]."""

import sys

import numpy as np
from scipy.signal import lfilter

from uptrend.doctor.statistics.looks import seen_trend
from uptrend.doctor.statistics.trend import measure_trend
from uptrend.records.view import Floats

RISES = {20: 4.0, 50: 2.0, 100: 1.4, 200: 1.0, 1000: 0.45}


def noise(random: np.random.Generator, points: int, rho: float) -> Floats:
    """AR(1) noise of deviation 1."""
    raw = lfilter([1.0], [1.0, -rho], random.standard_normal(points + 200))[200:]
    return np.asarray(raw * np.sqrt(1 - rho**2))


def share_found(points: int, rho: float, rise: float, curves: int, seed: int = 0) -> float:
    """In what share of curves a trend is found at the 5% level."""
    random = np.random.default_rng([seed, points, int(100 * rho)])
    ramp = np.linspace(0, rise, points)
    found = [measure_trend(noise(random, points, rho) + ramp) for _ in range(curves)]
    return float(np.mean([trend is not None and trend.p < 0.05 for trend in found]))


def share_ever_seen(points: int, every: int, rho: float, rise: float, curves: int, seed: int = 0) -> float:
    """In what share of curves one of the looks sees a trend."""
    random = np.random.default_rng([seed, points, int(100 * rho)])
    ramp = np.linspace(0, rise, points)
    looks = range(every, points + 1, every)
    seen = 0
    for _ in range(curves):
        curve = noise(random, points, rho) + ramp
        seen += any(seen_trend(curve[:look]) for look in looks)
    return seen / curves


def main() -> None:
    """Prints the figures that the docstrings of `trend` and `looks` quote."""
    curves = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    for points, rise in RISES.items():
        false = [share_found(points, rho, 0.0, curves) for rho in (0, 0.3, 0.6, 0.9)]
        true = [share_found(points, rho, rise, curves) for rho in (0, 0.3)]
        print(f"{points} points: false {[round(x, 3) for x in false]}, power {[round(x, 3) for x in true]}", flush=True)
    ever = [share_ever_seen(200, 5, rho, 0.0, curves // 2) for rho in (0, 0.3, 0.6, 0.9)]
    print(f"looked at every 5 of 200: false {ever}", flush=True)
    print(f"power at a rise of 1 and 2: {[share_ever_seen(200, 5, 0.0, rise, curves // 4) for rise in (1, 2)]}")


if __name__ == "__main__":
    main()
