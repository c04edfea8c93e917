"""Level shifts and robust levels."""

import numpy as np
import pytest
from scipy import stats

from uptrend.doctor.statistics.shift import level_shift, neighbor_noise, shift_at
from uptrend.doctor.statistics.spread import end, rank_correlation, robust_spread, start


def test_a_shift_is_found_where_it_is() -> None:
    values = 0.1 * np.random.default_rng(0).standard_normal(100)
    values[60:] -= 1
    shift = level_shift(values)
    assert shift is not None
    assert shift.index == 60
    assert shift.change == pytest.approx(-1, abs=0.1)
    assert shift.z < -20
    assert abs(shift_at(0.1 * np.random.default_rng(1).standard_normal(100), 50).z) < 4
    assert level_shift(np.ones(4)) is None


def test_neighbor_noise_does_not_see_trends() -> None:
    noise = np.random.default_rng(0).standard_normal(2000)
    assert neighbor_noise(noise + np.linspace(0, 50, 2000)) == pytest.approx(1, abs=0.05)


def test_spread_and_levels() -> None:
    values = np.random.default_rng(0).standard_normal(4000)
    values[:40] = 1000
    assert robust_spread(values) == pytest.approx(1, abs=0.05)
    assert robust_spread(np.zeros(0)) == 0
    assert (start(np.arange(8.0)), end(np.arange(8.0))) == (1.0, 6.0)
    a, b = np.random.default_rng(1).standard_normal((2, 50))
    assert rank_correlation(a, a + b) == pytest.approx(stats.spearmanr(a, a + b).statistic)
    assert rank_correlation(a, np.ones(50)) == 0
