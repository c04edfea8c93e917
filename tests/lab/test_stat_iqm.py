"""The interquartile mean, against scipy and arch's bootstrap."""

import math

import numpy as np
import pytest
from arch.bootstrap import IIDBootstrap
from scipy import stats

from uptrend.lab.statistics.iqm import interquartile_mean, iqm_difference
from uptrend.records.view import Floats

RANDOM = np.random.default_rng(8)
ARM, CONTROL = RANDOM.normal(0.6, 0.05, (8, 3)), RANDOM.normal(0.56, 0.05, (8, 3))


def difference(arm: Floats, control: Floats) -> float:
    return float(stats.trim_mean(arm, 0.25, axis=None) - stats.trim_mean(control, 0.25, axis=None))


@pytest.mark.parametrize("count", [3, 4, 5, 8, 15, 24])
def test_the_interquartile_mean_is_scipys(count: int) -> None:
    scores = RANDOM.normal(size=(6, count))
    assert interquartile_mean(scores) == pytest.approx(stats.trim_mean(scores, 0.25, axis=1))


def test_its_difference_is_scipys_and_its_error_archs() -> None:
    arm, control = ARM[:4], CONTROL[:4]
    found = iqm_difference(arm, control)
    assert found.effect == pytest.approx(difference(arm, control))
    error = math.sqrt(float(IIDBootstrap(arm, control, seed=1).cov(difference, reps=1500)[0, 0]) * 4 / 3)
    assert found.high - found.effect == pytest.approx(stats.t.ppf(0.975, 3) * error, rel=0.06)
    assert found.effect - found.low == pytest.approx(found.high - found.effect)


@pytest.mark.parametrize("seeds", [3, 5, 8])
def test_coverage(seeds: int) -> None:
    random, kinds, inside = np.random.default_rng(seeds), np.array([-0.1, 0.0, 0.15]), 0
    for _ in range(400):
        arm, control = (
            random.normal(mean, 0.05, (seeds, 1)) + random.normal(0, 0.02, (seeds, 3)) + kinds for mean in (0.65, 0.6)
        )
        found = iqm_difference(arm, control)
        inside += found.low <= 0.05 <= found.high
    assert 0.92 <= inside / 400 <= 0.985


def test_it_is_the_same_at_every_call_and_endless_for_one_seed() -> None:
    assert iqm_difference(ARM, CONTROL) == iqm_difference(ARM, CONTROL)
    assert iqm_difference(ARM, CONTROL, 0.1).low > iqm_difference(ARM, CONTROL, 0.01).low
    assert iqm_difference(ARM[:1], CONTROL[:1]).high == math.inf
