"""The rank test against pymannkendall."""

import numpy as np
import pymannkendall
import pytest
from size_and_power import noise

from uptrend.doctor.statistics.kendall import mann_kendall


@pytest.mark.parametrize("rho", [0.0, 0.6])
@pytest.mark.parametrize("points", [15, 60, 150])
def test_plain_and_corrected(points: int, rho: float) -> None:
    curve = noise(np.random.default_rng(points), points, rho) + np.linspace(0, 1, points)
    plain, theirs = mann_kendall(curve, corrected=False), pymannkendall.original_test(curve)
    assert (plain.score, plain.z) == (theirs.s, pytest.approx(theirs.z))
    assert (plain.slope, plain.p) == (pytest.approx(theirs.slope), pytest.approx(theirs.p))
    corrected, theirs = mann_kendall(curve), pymannkendall.hamed_rao_modification_test(curve)
    # Ours never takes the variance for smaller than that of independent points.
    assert abs(corrected.z) == pytest.approx(min(abs(theirs.z), abs(plain.z)), rel=1e-6)


def test_ties_and_constants() -> None:
    tied = np.array([0.0, 0.0, 0.5, 0.5, 0.5, 1.0, 1.0, 0.0, 1.0, 1.0])
    assert mann_kendall(tied, corrected=False).z == pytest.approx(pymannkendall.original_test(tied).z)
    assert mann_kendall(np.ones(10)).z == 0.0


def test_the_correction_lowers_false_positives() -> None:
    random = np.random.default_rng(0)
    curves = [noise(random, 100, 0.6) for _ in range(150)]
    plain = np.mean([mann_kendall(curve, corrected=False).p < 0.05 for curve in curves])
    corrected = np.mean([mann_kendall(curve).p < 0.05 for curve in curves])
    assert plain > 0.15
    assert corrected < plain - 0.05
