"""The quick version of benchmarks/VERDICTS.md: verdicts err as seldom as they say, on simulated
experiments.
"""

import numpy as np
import pytest
from benchmarks.verdicts.learning import curves, is_found
from benchmarks.verdicts.outcomes import INVALIDATED, SMALLEST, VALIDATED, disagreements, outcomes
from benchmarks.verdicts.simulated import Setting

from uptrend.stats.intervals import wilson

EXPERIMENTS = 600


def least(happened: np.ndarray) -> float:  # type: ignore[type-arg]
    """The lower end of a rate's 99.9% interval: there are many rates here."""
    return wilson(int(happened.sum()), len(happened), alpha=0.001)[0]


@pytest.mark.parametrize(("seeds", "deviation"), [(3, 0.05), (5, 0.03), (8, 0.02)])
def test_errors_coverage_and_power(seeds: int, deviation: float) -> None:
    null, at_least = (
        outcomes(Setting(seeds, deviation, effect), EXPERIMENTS, seed=2)
        for effect in (0.0, SMALLEST)
    )
    too = outcomes(Setting(seeds, deviation, SMALLEST, on_these_tasks=False), EXPERIMENTS, seed=3)
    for wrong in (null.verdict == VALIDATED, at_least.verdict == INVALIDATED):
        assert least(wrong) <= 0.025
    for wrong in (null.early == VALIDATED, at_least.early == INVALIDATED):
        assert least(wrong) <= 0.05
    covered = np.concatenate([null.covered, at_least.covered])
    assert 0.93 <= covered.mean() <= 0.97
    assert 0.925 <= too.covered_too.mean() <= 0.98
    found = (at_least.verdict == VALIDATED).mean()
    assert at_least.foreseen(SMALLEST)[0] == pytest.approx(found, abs=0.06)
    assert at_least.printed_power == pytest.approx(found, abs=0.07)


def test_the_judge_says_the_same() -> None:
    assert disagreements(Setting(5, 0.03, SMALLEST), 20) == 0


@pytest.mark.parametrize("rho", [0.0, 0.6])
def test_learning_is_not_seen_where_there_is_none(rho: float) -> None:
    flat = curves(200, 200, rho, rise=0.0, seed=1)
    assert least(np.array([is_found(curve) for curve in flat])) <= 0.05
    rising = curves(40, 200, rho, rise=3.0, seed=1)
    assert np.mean([is_found(curve) for curve in rising]) > 0.9
