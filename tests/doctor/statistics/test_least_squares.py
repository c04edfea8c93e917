"""The line with Newey-West errors against statsmodels."""

import numpy as np
import pytest
from statsmodels.api import OLS, add_constant

from uptrend.doctor.statistics.least_squares import fit_line


@pytest.mark.parametrize(("points", "lags"), [(12, 0), (40, 3), (200, 4), (200, 12)])
def test_slope_and_error(points: int, lags: int) -> None:
    values = np.cumsum(np.random.default_rng(points).standard_normal(points)) + 0.1 * np.arange(points)
    theirs = OLS(values, add_constant(np.arange(points))).fit(
        cov_type="HAC", cov_kwds={"maxlags": lags, "use_correction": False}
    )
    ours = fit_line(values, lags)
    assert (ours.slope, ours.error) == (pytest.approx(theirs.params[1]), pytest.approx(theirs.bse[1]))
    assert (ours.intercept, ours.t) == (pytest.approx(theirs.params[0]), pytest.approx(theirs.tvalues[1]))


def test_the_lags_are_newey_and_wests() -> None:
    values = np.random.default_rng(0).standard_normal(159)
    assert fit_line(values).error == fit_line(values, 4).error
