"""Power against simulation, and against the figures that a published protocol was planned with."""

import numpy as np
import pytest
from size_and_power import noise

from uptrend.doctor.statistics.least_squares import fit_line
from uptrend.doctor.statistics.power import points_for, power_of, step_noise


def test_power_against_simulation() -> None:
    random = np.random.default_rng(0)
    found = 0
    for _ in range(500):
        line = fit_line(noise(random, 100, 0.0) + np.linspace(0, 1, 100), 0)
        found += abs(line.t) > 1.96
    assert power_of(1.0, 1.0, 100) == pytest.approx(found / 500, abs=0.07)


def test_the_noise_of_a_step_is_that_of_its_tasks_and_rollouts() -> None:
    random = np.random.default_rng(0)
    rates = random.beta(2.0, 1.0, (4000, 8))
    means = (random.random((4000, 8, 16)) < rates[..., None]).mean(axis=(1, 2))
    inside = float(np.sqrt((rates * (1 - rates)).mean()))
    assert step_noise(inside, groups=8, size=16, task=float(rates.std())) == pytest.approx(means.std(), rel=0.05)


def test_points_for_is_the_inverse() -> None:
    needed = points_for(0.1, 0.13)
    assert power_of(0.1, 0.13, needed) == pytest.approx(0.8, abs=0.01)
    assert points_for(0.1, 0.13, rho=0.5) == pytest.approx(3 * needed, abs=3)
    assert power_of(0.1, 0.0, 10) == 1.0
