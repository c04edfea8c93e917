"""Intervals and chances, against scipy and against brute force."""

import itertools
import math

import pytest
from scipy import stats

from synthetic import evaluation_of
from uptrend.records import mcnemar, pass_at_k, wilson


@pytest.mark.parametrize("trials", [1, 2, 7, 40, 200, 2000])
def test_wilson_is_scipy_s(trials: int) -> None:
    for successes in {0, 1, trials // 3, trials // 2, trials - 1, trials}:
        expected = stats.binomtest(successes, trials).proportion_ci(method="wilson")
        assert wilson(successes, trials) == pytest.approx((expected.low, expected.high), abs=1e-7)


def test_wilson_of_nothing_knows_nothing() -> None:
    assert wilson(0, 0) == (0.0, 1.0)


def test_pass_at_k_counts_every_choice_of_k() -> None:
    for attempts in range(1, 7):
        for correct, k in itertools.product(range(attempts + 1), range(1, attempts + 1)):
            answers = [True] * correct + [False] * (attempts - correct)
            choices = list(itertools.combinations(answers, k))
            expected = sum(map(any, choices)) / len(choices)
            assert pass_at_k(correct, attempts, k) == pytest.approx(expected), (correct, attempts, k)


def test_pass_at_k_needs_k_attempts() -> None:
    with pytest.raises(AssertionError):
        pass_at_k(0, 4, 8)


def test_mcnemar_is_the_exact_binomial_test() -> None:
    for only_a, only_b in itertools.product(range(12), repeat=2):
        n = only_a + only_b
        expected = stats.binomtest(only_a, n).pvalue if n else 1.0
        assert mcnemar(only_a, only_b) == pytest.approx(expected)
    assert mcnemar(700, 900) == pytest.approx(stats.binomtest(700, 1600).pvalue, rel=1e-9)


def test_an_evaluation_knows_its_accuracy_and_interval() -> None:
    evaluation = evaluation_of(0, 30, 40)
    assert evaluation.accuracy == 0.75
    assert evaluation.interval == wilson(30, 40)
    assert math.isnan(evaluation_of(0, 0, 1).__class__(0, 0, 0, 0, 0.0, {}, {}, {}, 0.0).accuracy)
