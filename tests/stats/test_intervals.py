"""Intervals against scipy, statsmodels, arch, numeric integration, and their coverage by
simulation.
"""

# ruff: noqa: I001 (names of one module side by side)

import itertools
import math

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from arch.bootstrap import IIDBootstrap
from scipy import integrate, stats
from statsmodels.formula.api import ols
from statsmodels.stats.nonparametric import rank_compare_2indep

from uptrend.records.view import Floats
from uptrend.stats.comparison import sequence_p
from uptrend.stats.intervals import (
    PRIOR_VARIANCE, Spread, all_right, bayes_factor, bootstrap_mean, chance_of_improvement, crossed_half, crossed_interval,
    interquartile_mean, iqm_difference, mean_squares, normal_interval, pass_at_k, sequence_interval,
    sequence_reach, spread_of, student_interval, student_reach, wilson,
)  # fmt: skip

RANDOM = np.random.default_rng(8)


@pytest.mark.parametrize("trials", [1, 2, 7, 40, 200, 2000])
def test_wilson_is_scipys(trials: int) -> None:
    for successes in {0, 1, trials // 3, trials // 2, trials - 1, trials}:
        expected = stats.binomtest(successes, trials).proportion_ci(method="wilson")
        assert wilson(successes, trials) == pytest.approx((expected.low, expected.high), abs=1e-7)
    assert wilson(0, 0) == (0.0, 1.0)
    assert normal_interval(2.0, 0.5, 0.1) == pytest.approx(stats.norm(2.0, 0.5).interval(0.9))


def test_pass_at_k_counts_every_choice_of_k() -> None:
    for attempts in range(1, 7):
        for correct, k in itertools.product(range(attempts + 1), range(1, attempts + 1)):
            answers = [True] * correct + [False] * (attempts - correct)
            choices = list(itertools.combinations(answers, k))
            expected = sum(map(any, choices)) / len(choices)
            assert pass_at_k(correct, attempts, k) == pytest.approx(expected), (
                correct,
                attempts,
                k,
            )
    with pytest.raises(ValueError, match="pass@8 needs at least 8"):
        pass_at_k(0, 4, 8)


@pytest.mark.parametrize(
    ("a", "b", "k"), [(0.4, 0.7, 1), (0.4, 5.0, 8), (2.0, 0.7, 3), (2.0, 5.0, 16)]
)
def test_all_right_is_the_moment_of_a_beta(a: float, b: float, k: int) -> None:
    assert all_right(a, b, k) == pytest.approx(float(stats.beta(a, b).moment(k)), rel=1e-6)


@pytest.mark.parametrize("count", [5, 40, 400])
def test_the_bootstrap_is_scipys(count: int) -> None:
    values = np.random.default_rng(count).beta(0.5, 0.5, count)
    low, high = bootstrap_mean(values)
    theirs = stats.bootstrap(
        (values,), np.mean, n_resamples=2_000, method="percentile", rng=np.random.default_rng(1)
    ).confidence_interval
    error = values.std() / count**0.5
    assert low == pytest.approx(
        theirs.low, abs=0.15 * error
    )  # 2,000 draws place a bound within a tenth of an error
    assert high == pytest.approx(theirs.high, abs=0.15 * error)
    assert bootstrap_mean(values) == (low, high)


@pytest.mark.parametrize(("seeds", "t"), [(2, 3.0), (3, -4.0), (5, 2.0), (8, 0.3), (16, 6.0)])
def test_the_bayes_factor_is_the_mixture_of_noncentral_t(seeds: int, t: float) -> None:
    """The right Haar measure leaves t alone: mix its noncentral density over the effect size."""

    def mixed(size: float) -> float:
        return float(
            stats.nct.pdf(t, seeds - 1, math.sqrt(seeds) * size)
            * stats.norm.pdf(size, scale=math.sqrt(PRIOR_VARIANCE))
        )

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


def test_the_sequence_holds_at_all_looks_at_once_where_students_interval_does_not() -> None:
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
def test_sequence_and_final_interval_together_err_as_often_as_they_may(
    either: bool, share: float
) -> None:
    """Eight seeds, looked at after each; a directional claim errs on one side, one of either
    direction on both.
    """
    values = np.random.default_rng(8).normal(size=(40_000, 8))
    wrong = np.zeros(len(values), dtype=bool)
    for count in range(2, 9):
        reach = (student_reach if count == 8 else sequence_reach)(count, share)
        mean, deviation = values[:, :count].mean(axis=1), values[:, :count].std(axis=1, ddof=1)
        wrong |= (np.abs(mean) if either else mean) > reach * deviation
    assert 0.02 < wrong.mean() < 0.05


@pytest.mark.parametrize("alpha", [0.05, 0.025])
def test_g_is_near_the_best_for_five_to_eight_seeds_and_three_never_end_an_experiment(
    alpha: float,
) -> None:
    for seeds in (5, 6, 7, 8):
        best = min(sequence_reach(seeds, alpha, g) for g in np.geomspace(0.1, 100, 400))
        assert sequence_reach(seeds, alpha) < 1.04 * best
    assert [math.isinf(sequence_reach(seeds, alpha)) for seeds in (1, 3, 4)] == [True, True, False]
    assert bayes_factor(Spread(1, 0.3, 0.0)) == 1.0


def test_equal_differences_do_not_end_it_before_the_sign_flip_test_could() -> None:
    assert sequence_interval(spread_of(np.full(5, 0.1))).low == -math.inf
    assert sequence_interval(spread_of(np.full(6, 0.1))).low == pytest.approx(0.1)
    assert bayes_factor(spread_of(np.zeros(6))) == 1.0
    limit = bayes_factor(Spread(6, 0.1, 1e-9))
    assert bayes_factor(spread_of(np.full(6, 0.1))) == pytest.approx(limit, rel=1e-3)


def tables(
    experiments: int, seeds: int, tasks: int, of_seeds: float, of_tasks: float, seed: int = 0
) -> Floats:
    random = np.random.default_rng(seed)
    made = random.normal(0, of_seeds, (experiments, seeds, 1)) + random.normal(
        0, of_tasks, (experiments, 1, tasks)
    )
    return np.asarray(made + random.normal(0, 0.5, (experiments, seeds, tasks)))


def test_the_mean_squares_are_statsmodels_and_the_crossed_half_width_is_theirs_by_hand() -> None:
    table = tables(1, 4, 7, 0.3, 0.4)[0]
    frame = pd.DataFrame(
        [(s, t, table[s, t]) for s in range(4) for t in range(7)], columns=["seed", "task", "d"]
    )
    expected = sm.stats.anova_lm(ols("d ~ C(seed) + C(task)", frame).fit())["mean_sq"]
    of_seeds, of_tasks, rest = (float(found) for found in mean_squares(table))
    assert (of_seeds, of_tasks, rest) == pytest.approx(tuple(expected))
    more = of_tasks - rest
    assert more > 0
    quantile = (stats.t.ppf(0.975, 3) * of_seeds + stats.t.ppf(0.975, 6) * more) / (of_seeds + more)
    assert float(crossed_half(table)) == pytest.approx(quantile * np.sqrt((of_seeds + more) / 28))


def test_crossed_is_as_wide_as_over_seeds_alone_where_tasks_agree() -> None:
    for table in tables(200, 5, 30, 0.1, 0.1):
        over_seeds, over_both = student_interval(table.mean(axis=1)), crossed_interval(table)
        assert over_both is not None
        if mean_squares(table)[1] < mean_squares(table)[2]:
            assert over_both.high == pytest.approx(over_seeds.high)


@pytest.mark.parametrize("seeds", [3, 5, 8])
@pytest.mark.parametrize(
    ("of_seeds", "of_tasks"), [(0.0, 0.0), (0.03, 0.1), (0.03, 0.4), (0.1, 0.2)]
)
def test_crossed_coverage_is_near_what_it_says(
    seeds: int, of_seeds: float, of_tasks: float
) -> None:
    """Seldom above 97%: with 3 seeds and tasks that deviate more than they do."""
    made = tables(4000, seeds, 100, of_seeds, of_tasks, seed=seeds)
    covered = float((np.abs(made.mean(axis=(1, 2))) < crossed_half(made)).mean())
    assert 0.935 <= covered <= 0.978


def test_crossed_needs_two_of_each_and_something_that_deviates() -> None:
    for table in (
        np.ones((1, 9)),
        np.ones((9, 1)),
        np.zeros((5, 0)),
        np.tile(np.arange(9.0), (5, 1)),
    ):
        assert crossed_interval(table) is None


def test_the_chance_is_mann_and_whitneys_averaged_over_tasksets_and_with_many_seeds_statsmodels() -> (
    None
):
    arm, control = (
        np.round(RANDOM.normal(0.6, 0.05, (8, 3)), 2),
        np.round(RANDOM.normal(0.56, 0.05, (8, 3)), 2),
    )
    each = [stats.mannwhitneyu(a, c).statistic / 64 for a, c in zip(arm.T, control.T, strict=True)]
    assert chance_of_improvement(arm, control).effect == pytest.approx(np.mean(each))
    arm, control = RANDOM.exponential(1.4, 400), RANDOM.exponential(1.0, 400)
    theirs = rank_compare_2indep(arm, control).conf_int(alpha=0.05)
    found = chance_of_improvement(arm[:, None], control[:, None])
    assert (found.low, found.high) == pytest.approx(theirs, abs=0.004)


@pytest.mark.parametrize("seeds", [3, 5, 8])
def test_the_chances_ends_are_where_hanley_and_mcneils_error_ends(seeds: int) -> None:
    arm, control = np.linspace(0, 1, seeds)[:, None] + 0.2, np.linspace(0, 1, seeds)[:, None]
    found = chance_of_improvement(arm, control)
    for end in (found.low, found.high):
        q1, q2 = end / (2 - end), 2 * end**2 / (1 + end)
        variance = (end * (1 - end) + (seeds - 1) * (q1 - end**2 + q2 - end**2)) / seeds**2
        assert abs(found.effect - end) == pytest.approx(1.959964 * math.sqrt(variance), rel=1e-5)
    certain = chance_of_improvement(
        arm + 2, control
    )  # every run beats every other, and there is doubt left
    assert (certain.effect, certain.high) == (1.0, pytest.approx(1.0))
    assert 0.3 < certain.low < 0.9


@pytest.mark.parametrize("seeds", [5, 8, 16])
@pytest.mark.parametrize("effect", [0.0, 1.0, 2.0])
def test_the_chance_of_improvement_covers(seeds: int, effect: float) -> None:
    true, random = stats.norm.cdf(effect / math.sqrt(2)), np.random.default_rng(seeds)
    found = [
        chance_of_improvement(random.normal(effect, 1, (seeds, 1)), random.normal(0, 1, (seeds, 1)))
        for _ in range(1200)
    ]
    assert 0.93 <= np.mean([one.low <= true <= one.high for one in found]) <= 0.98


ARM, CONTROL = RANDOM.normal(0.6, 0.05, (8, 3)), RANDOM.normal(0.56, 0.05, (8, 3))


def difference(arm: Floats, control: Floats) -> float:
    return float(stats.trim_mean(arm, 0.25, axis=None) - stats.trim_mean(control, 0.25, axis=None))


@pytest.mark.parametrize("count", [3, 4, 5, 8, 15, 24])
def test_the_interquartile_mean_is_scipys(count: int) -> None:
    scores = RANDOM.normal(size=(6, count))
    assert interquartile_mean(scores) == pytest.approx(stats.trim_mean(scores, 0.25, axis=1))


def test_the_iqm_difference_is_scipys_and_its_error_archs() -> None:
    assert iqm_difference(ARM, CONTROL) == iqm_difference(ARM, CONTROL)
    assert iqm_difference(ARM, CONTROL, 0.1).low > iqm_difference(ARM, CONTROL, 0.01).low
    assert iqm_difference(ARM[:1], CONTROL[:1]).high == math.inf
    arm, control = ARM[:4], CONTROL[:4]
    found = iqm_difference(arm, control)
    assert found.effect == pytest.approx(difference(arm, control))
    error = math.sqrt(
        float(IIDBootstrap(arm, control, seed=1).cov(difference, reps=1500)[0, 0]) * 4 / 3
    )
    assert found.high - found.effect == pytest.approx(stats.t.ppf(0.975, 3) * error, rel=0.06)
    assert found.effect - found.low == pytest.approx(found.high - found.effect)


@pytest.mark.parametrize("seeds", [3, 5, 8])
def test_the_iqm_difference_covers(seeds: int) -> None:
    random, kinds, inside = np.random.default_rng(seeds), np.array([-0.1, 0.0, 0.15]), 0
    for _ in range(400):
        arm, control = (
            random.normal(mean, 0.05, (seeds, 1)) + random.normal(0, 0.02, (seeds, 3)) + kinds
            for mean in (0.65, 0.6)
        )
        found = iqm_difference(arm, control)
        inside += found.low <= 0.05 <= found.high
    assert 0.92 <= inside / 400 <= 0.985
