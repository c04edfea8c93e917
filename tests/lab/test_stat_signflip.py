"""The exact sign-flip test, against scipy's enumeration and by hand."""

import numpy as np
import pytest
from scipy import stats

from uptrend.lab.statistics import signflip
from uptrend.lab.statistics.signflip import fewest_seeds, least_p, sign_flip

RANDOM = np.random.default_rng(6)


@pytest.mark.parametrize("seeds", [2, 3, 5, 8, 12])
def test_p_is_scipys(seeds: int) -> None:
    differences = RANDOM.normal(0.3, 1, seeds)
    found = sign_flip(differences)
    for side, ours in (("greater", found.up), ("less", found.down), ("two-sided", found.both)):
        theirs = stats.permutation_test(
            (differences,), np.sum, permutation_type="samples", alternative=side, n_resamples=2**seeds, vectorized=False
        )
        assert ours == pytest.approx(theirs.pvalue), side


def test_by_hand() -> None:
    # 1, 2, -1: sums over the eight flips are ±4, ±2, ±2, 0, 0; seen is 2.
    found = sign_flip(np.array([1.0, 2.0, -1.0]))
    assert (found.up, found.down, found.both) == (3 / 8, 7 / 8, 6 / 8)


@pytest.mark.parametrize(("seeds", "one", "two"), [(5, 0.03125, 0.0625), (6, 0.015625, 0.03125), (8, 1 / 256, 1 / 128)])
def test_the_least_p(seeds: int, one: float, two: float) -> None:
    found = sign_flip(np.linspace(0.1, 0.2, seeds))
    assert (found.up, found.both) == (one, two)
    assert least_p(seeds) == one


def test_ties_but_for_rounding_are_ties() -> None:
    assert sign_flip(np.array([0.1, 0.2, 0.3, 0.1 + 0.2, 0.3 - 1e-17])).up == 2**-5


def test_how_many_seeds_can_reach_a_level() -> None:
    assert [fewest_seeds(alpha) for alpha in (0.5, 0.05, 0.025, 0.0625, 0.05 / 8)] == [2, 6, 7, 5, 9]


def test_many_seeds_are_drawn_and_near_the_enumeration(monkeypatch: pytest.MonkeyPatch) -> None:
    differences = RANDOM.normal(0.4, 1, 16)
    exact = sign_flip(differences)
    monkeypatch.setattr(signflip, "MOST_EXACT", 15)
    drawn = sign_flip(differences)
    assert drawn.up == pytest.approx(exact.up, abs=4 * np.sqrt(exact.up / signflip.FLIPS))
    assert drawn.up != exact.up
    assert sign_flip(differences) == drawn
