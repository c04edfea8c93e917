"""The confidence sequence: its Bayes factor by numeric integration, and that it may be looked at after every seed."""

import math

import numpy as np
import pytest
from scipy import integrate, stats

from uptrend.lab.statistics.paired import Spread, spread_of, student_reach
from uptrend.lab.statistics.sequence import G, bayes_factor, sequence_interval, sequence_p, sequence_reach


@pytest.mark.parametrize(("seeds", "t"), [(2, 3.0), (3, -4.0), (5, 2.0), (8, 0.3), (16, 6.0)])
def test_the_bayes_factor_is_the_mixture_of_noncentral_t(seeds: int, t: float) -> None:
    """The right Haar measure leaves t alone: mix its noncentral density over the effect size."""

    def mixed(size: float) -> float:
        return float(stats.nct.pdf(t, seeds - 1, math.sqrt(seeds) * size) * stats.norm.pdf(size, scale=math.sqrt(G)))

    expected = integrate.quad(mixed, -12, 12, limit=200)[0] / stats.t.pdf(t, seeds - 1)
    spread = Spread(seeds, 0.02 + t * 0.03 / math.sqrt(seeds), 0.03)
    assert bayes_factor(spread, null=0.02) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("seeds", [4, 5, 8, 30])
@pytest.mark.parametrize("alpha", [0.05, 0.025])
def test_the_interval_ends_where_the_evidence_does(seeds: int, alpha: float) -> None:
    spread = Spread(seeds, 0.04, 0.03)
    interval = sequence_interval(spread, alpha)
    for end in (interval.low, interval.high):
        assert bayes_factor(spread, end) == pytest.approx(1 / alpha)
        assert sequence_p(spread, end) == pytest.approx(alpha)
    assert interval.high - interval.effect == pytest.approx(interval.effect - interval.low)


def test_it_holds_at_all_looks_at_once_where_students_interval_does_not() -> None:
    random, experiments, most = np.random.default_rng(7), 6000, 40
    values = random.normal(size=(experiments, most))
    counts = np.arange(1, most + 1)
    means = np.cumsum(values, axis=1) / counts
    with np.errstate(invalid="ignore"):
        deviations = np.sqrt((np.cumsum(values**2, axis=1) - counts * means**2) / (counts - 1))
    ever = {}
    for name, reach in (("sequence", sequence_reach), ("student", student_reach)):
        reaches = np.array([reach(int(n), 0.05) for n in counts[1:]])
        ever[name] = float((np.abs(means[:, 1:]) > reaches * deviations[:, 1:]).any(axis=1).mean())
    assert 0.005 < ever["sequence"] < 0.05
    assert ever["student"] > 0.15


@pytest.mark.parametrize(("either", "share"), [(False, 0.05), (True, 0.025)])
def test_sequence_and_final_interval_together_err_as_often_as_they_may(either: bool, share: float) -> None:
    """Eight seeds, looked at after each; a directional claim errs on one side, one of either direction on both."""
    values = np.random.default_rng(8).normal(size=(40_000, 8))
    wrong = np.zeros(len(values), dtype=bool)
    for count in range(2, 9):
        reach = (student_reach if count == 8 else sequence_reach)(count, share)
        mean, deviation = values[:, :count].mean(axis=1), values[:, :count].std(axis=1, ddof=1)
        wrong |= (np.abs(mean) if either else mean) > reach * deviation
    assert 0.02 < wrong.mean() < 0.05


def test_g_is_near_the_best_for_five_to_eight_seeds() -> None:
    grid = np.geomspace(0.1, 100, 400)
    for alpha in (0.05, 0.025):
        for seeds in (5, 6, 7, 8):
            best = min(sequence_reach(seeds, alpha, g) for g in grid)
            assert sequence_reach(seeds, alpha) < 1.04 * best


def test_three_seeds_never_end_an_experiment() -> None:
    for alpha in (0.05, 0.025):
        assert math.isinf(sequence_reach(3, alpha))
        assert math.isfinite(sequence_reach(4, alpha))
    assert math.isinf(sequence_reach(1, 0.05))
    assert bayes_factor(Spread(1, 0.3, 0.0)) == 1.0


def test_equal_differences_do_not_end_it_before_the_sign_flip_test_could() -> None:
    assert sequence_interval(spread_of(np.full(5, 0.1))).low == -math.inf
    assert sequence_interval(spread_of(np.full(6, 0.1))).low == pytest.approx(0.1)
    assert bayes_factor(spread_of(np.zeros(6))) == 1.0
    limit = bayes_factor(Spread(6, 0.1, 1e-9))
    assert bayes_factor(spread_of(np.full(6, 0.1))) == pytest.approx(limit, rel=1e-3)
