"""Seeds and tasks crossed: the mean squares against statsmodels, and the interval's coverage by simulation."""

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from scipy import stats
from statsmodels.formula.api import ols

from uptrend.lab.statistics.crossed import crossed_half, crossed_interval, mean_squares
from uptrend.lab.statistics.paired import paired_interval
from uptrend.records.view import Floats


def tables(experiments: int, seeds: int, tasks: int, of_seeds: float, of_tasks: float, seed: int = 0) -> Floats:
    random = np.random.default_rng(seed)
    made = random.normal(0, of_seeds, (experiments, seeds, 1)) + random.normal(0, of_tasks, (experiments, 1, tasks))
    return np.asarray(made + random.normal(0, 0.5, (experiments, seeds, tasks)))


def test_the_mean_squares_are_statsmodels() -> None:
    table = tables(1, 4, 7, 0.3, 0.4)[0]
    frame = pd.DataFrame([(s, t, table[s, t]) for s in range(4) for t in range(7)], columns=["seed", "task", "d"])
    expected = sm.stats.anova_lm(ols("d ~ C(seed) + C(task)", frame).fit())["mean_sq"]
    assert [float(found) for found in mean_squares(table)] == pytest.approx(list(expected))


def test_the_half_width_by_hand() -> None:
    table = tables(1, 4, 7, 0.3, 0.4)[0]
    of_seeds, of_tasks, rest = (float(found) for found in mean_squares(table))
    more = of_tasks - rest
    assert more > 0
    quantile = (stats.t.ppf(0.975, 3) * of_seeds + stats.t.ppf(0.975, 6) * more) / (of_seeds + more)
    assert float(crossed_half(table)) == pytest.approx(quantile * np.sqrt((of_seeds + more) / 28))


def test_it_is_as_wide_as_over_seeds_alone_where_tasks_agree() -> None:
    for table in tables(200, 5, 30, 0.1, 0.1):
        over_seeds, over_both = paired_interval(table.mean(axis=1)), crossed_interval(table)
        assert over_both is not None
        if mean_squares(table)[1] < mean_squares(table)[2]:
            assert over_both.high == pytest.approx(over_seeds.high)


@pytest.mark.parametrize("seeds", [3, 5, 8])
@pytest.mark.parametrize(("of_seeds", "of_tasks"), [(0.0, 0.0), (0.03, 0.1), (0.03, 0.4), (0.1, 0.2)])
def test_coverage_is_near_what_it_says(seeds: int, of_seeds: float, of_tasks: float) -> None:
    """Seldom above 97%: with 3 seeds and tasks that deviate more than they do."""
    made = tables(4000, seeds, 100, of_seeds, of_tasks, seed=seeds)
    covered = float((np.abs(made.mean(axis=(1, 2))) < crossed_half(made)).mean())
    assert 0.935 <= covered <= 0.978


def test_it_needs_two_of_each_and_something_that_deviates() -> None:
    assert crossed_interval(np.ones((1, 9))) is None
    assert crossed_interval(np.ones((9, 1))) is None
    assert crossed_interval(np.zeros((5, 0))) is None
    assert crossed_interval(np.tile(np.arange(9.0), (5, 1))) is None
