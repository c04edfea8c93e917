"""Curves with fewer points, and smoother ones."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from uptrend.present.drawing import moving_mean, smooth, stretch_means, stretches, thin_curve


def test_a_stretch_has_the_mean_of_its_finite_values() -> None:
    values = np.array([1.0, 3.0, math.nan, 7.0, math.inf, math.nan])
    assert stretch_means(values, stretches(6, 3)).tolist()[:2] == [2.0, 7.0]
    assert math.isnan(stretch_means(values, stretches(6, 3))[2])
    assert stretch_means(np.zeros(0), stretches(0, 3)).tolist() == []


@given(st.integers(0, 400), st.integers(0, 400))
def test_stretches_cover_a_curve_and_are_about_equal(points: int, most: int) -> None:
    begins = stretches(points, most)
    lengths = np.diff([*begins, points])
    assert len(begins) == min(points, most)
    if len(begins):
        assert begins[0] == 0
        assert lengths.max() - lengths.min() <= 2  # a beginning may be rounded down


def test_a_thinned_curve_keeps_its_first_step_and_its_mean() -> None:
    steps = np.arange(1, 1001)
    curve = thin_curve(steps, steps.astype(float), 10)
    assert curve[0] == (1, 50.5)
    assert np.mean([value for _, value in curve]) == 500.5
    assert thin_curve(steps[:3], np.array([2.0, 4.0, 6.0])) == ((1, 2.0), (2, 4.0), (3, 6.0))


def test_a_moving_mean_has_fewer_neighbors_at_the_ends() -> None:
    assert moving_mean([1, 2, 3, 4], 1) == [1, 2, 3, 4]
    assert moving_mean([0, 3, 6, 0], 3) == [1.5, 3, 3, 3]
    assert moving_mean([], 3) == []
    assert smooth([5.0, 1.0]) == [5.0, 1.0]  # a short curve stays as it is
