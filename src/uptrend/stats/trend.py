"""Statistics of short, noisy, autocorrelated curves: trend, noise, levels, shifts and rank
correlation.

`measure_trend` keeps its false-positive rate on such curves; tests/stats/test_trend_test.py
measures it.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import ndtr, ndtri, stdtr, stdtrit

from uptrend.records.view import Floats

# Longer curves are averaged in blocks down to about this many points: same trend, less work, less
# autocorrelation.
MOST_POINTS = 240
# Points below which a trend has no error.
FEWEST_POINTS = 6
# Most polynomials that measure the noise.
MOST_DIRECTIONS = 12
# Polynomials after the linear one that are left out of the noise: a curve that rises and levels off
# has them.
BENDS = 2
# Points from which bends are left out; shorter curves need every direction for their error.
ENOUGH_TO_BEND = 60
# Grid over which the bias of the autocorrelation is inverted.
RHOS = np.concatenate([np.linspace(-0.6, 0.9, 31), np.linspace(0.91, 0.995, 18)])


@dataclass(frozen=True)
class TrendTest:
    """A fitted straight trend with its error."""

    effect: float
    """Fitted change from the first point to the last."""
    error: float
    """Its standard error, autocorrelation included."""
    df: int

    @property
    def t(self) -> float:
        """Effect in standard errors; infinite for a noiseless change."""
        if self.error > 0:
            return self.effect / self.error
        return math.copysign(math.inf, self.effect) if self.effect else 0.0

    @property
    def p(self) -> float:
        return float(2 * stdtr(self.df, -abs(self.t)))

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Return the ends of the effect's interval."""
        reach = float(stdtrit(self.df, 0.5 + level / 2)) * self.error
        return self.effect - reach, self.effect + reach

    def power(self, effect: float, alpha: float = 0.05) -> float:
        """Return the chance that a run with this noise shows a change of this size."""
        if self.error == 0:
            return 1.0
        critical = stdtrit(self.df, 1 - alpha / 2)
        shift = abs(effect) / self.error
        return float(stdtr(self.df, shift - critical) + stdtr(self.df, -shift - critical))


def measure_trend(values: Floats) -> TrendTest | None:
    """Return the trend of a curve with its error; none where there are too few points for an
    error.
    """
    # The curve is projected on orthonormal polynomials in time. The linear one carries the trend;
    # from 60 points on the next two are left to the bend of a curve that rises and levels off; the
    # K after them carry noise alone, and under AR(1) each has a known share of it, so that t =
    # a₁/√s₁ ÷ √(mean aₖ²/sₖ) follows Student's t with K degrees of freedom, with sₖ = vₖ'Σ(ρ)vₖ
    # (after the series estimators of Phillips 2005 and Sun 2011, pre-whitened). ρ is the
    # bias-corrected lag-1 autocorrelation plus one standard error: to think noise less
    # autocorrelated than it is costs false alarms, the other way only power. K is at most 12, for
    # slow noise that is not AR(1). That helps and does not cure: white noise plus AR(1) of .9 with
    # half its deviation gave 16 / 16 / 11 / 4% false positives with 50 / 100 / 200 / 1000 points
    # (500 curves, before the bends were left out).
    if len(values) < FEWEST_POINTS:
        return None
    blocks = _averaged(values)
    points = len(blocks)
    directions = max(2, min(points // 3, MOST_DIRECTIONS))
    bends = BENDS if points >= ENOUGH_TO_BEND else 0
    first = 2 + bends
    basis = polynomials(points, directions + 1 + bends)
    loads = basis.T @ blocks
    rho = lag_one(blocks, 1 + bends // 2)
    # One standard error is added; the second term is what the asymptotic error lacks on short
    # curves.
    rho = min(0.99, max(0.0, rho + math.sqrt((1 - rho * rho) / points + (2.5 / points) ** 2)))
    shares = _noise_shares(points, directions + 1 + bends, round(rho, 3))
    noise = float(np.mean(loads[first:] ** 2 / shares[first:]))
    # Blocks' centers lie a little inside the curve's ends.
    span = float(basis[-1, 1] - basis[0, 1]) * (len(values) - 1) / (len(values) * (1 - 1 / points))
    # What is only rounding counts as 0: a noiseless curve has no error, and a constant one no
    # trend.
    rounding = 1e-12 * float(np.abs(values).max())
    effect, error = (
        0.0 if abs(load) < rounding else load * span
        for load in (float(loads[1]), math.sqrt(noise * shares[1]))
    )
    return TrendTest(effect, error, directions)


def _averaged(values: Floats) -> Floats:
    if len(values) < 2 * MOST_POINTS:
        return np.asarray(values, dtype=np.float64)
    pieces = len(values) // max(1, len(values) // MOST_POINTS)
    return np.array([piece.mean() for piece in np.array_split(values, pieces)])


@lru_cache(maxsize=1024)
def _noise_shares(points: int, degree: int, rho: float) -> Floats:
    """Return v'Σ(ρ)v of each polynomial v."""
    basis = polynomials(points, degree)
    own = np.array([np.correlate(column, column, "full")[points - 1 :] for column in basis.T])
    own[:, 1:] *= 2
    return np.asarray(own @ rho ** np.arange(points))


@lru_cache(maxsize=64)
def polynomials(points: int, degree: int) -> Floats:
    """Return orthonormal polynomials in time of degree 0 to `degree`, one column each, rising at
    the end.
    """
    columns = np.polynomial.legendre.legvander(np.linspace(-1, 1, points), degree)
    basis, upper = np.linalg.qr(columns)
    return np.asarray(basis * np.sign(np.diag(upper)))


def residuals(values: Floats, degree: int) -> Floats:
    """Return a curve less the polynomial in time fitted to it."""
    basis = polynomials(len(values), degree)
    return values - basis @ (basis.T @ values)


def lag_one(values: Floats, degree: int = 1) -> float:
    """Return the lag-1 autocorrelation of the noise about a polynomial, corrected for bias; 0 for
    noiseless curves.
    """
    # The raw estimate r = Σ eᵢeᵢ₊₁ / Σ eᵢ² from residuals is too small, by about (2 + 4ρ) / n after
    # a straight line. Under AR(1) its expectation is known: with A the projector onto the residuals
    # and D the shift, E r ≈ tr(A D A Σ(ρ)) / tr(A Σ(ρ)). That is inverted over a grid of ρ.
    if len(values) < degree + 5:
        return 0.0
    noise = residuals(values, degree)
    power = float(noise @ noise)
    if power <= 1e-18 * max(1.0, float(values @ values)):
        return 0.0
    return float(
        np.interp(noise[:-1] @ noise[1:] / power, _expected_lag_one(len(values), degree), RHOS)
    )


@lru_cache(maxsize=64)
def _expected_lag_one(points: int, degree: int) -> Floats:
    """Return the raw estimate's expectation for each ρ of the grid, made strictly increasing."""
    basis = polynomials(points, degree)
    projector = np.eye(points) - basis @ basis.T
    shifted = projector[:, :-1] @ projector[1:, :]
    powers = RHOS[:, None] ** np.arange(points)
    expected = (powers @ _diagonal_sums(shifted)) / (powers @ _diagonal_sums(projector))
    return np.maximum.accumulate(expected + 1e-9 * np.arange(len(RHOS)))


def _diagonal_sums(matrix: Floats) -> Floats:
    return np.array(
        [np.trace(matrix, k) + (np.trace(matrix, -k) if k else 0.0) for k in range(len(matrix))]
    )


def power_of_rise(effect: float, noise: float, points: int, alpha: float) -> float:
    """Return the chance that a straight rise by `effect` over independent points of this noise
    shows, one-sided.
    """
    error = noise * math.sqrt(12 / points)
    return float(ndtr(effect / error - ndtri(1 - alpha))) if error > 0 else 1.0


def points_for(effect: float, noise: float, power: float, alpha: float) -> int:
    """Return the number of points with which such a rise has this power."""
    return math.ceil(12 * (float(ndtri(1 - alpha) + ndtri(power)) * noise / effect) ** 2)


def neighbor_noise(values: Floats) -> float:
    """Return the noise's deviation from differences of neighbors (von Neumann), blind to trends and
    shifts.
    """
    if len(values) < 3:
        return float(np.std(values)) if len(values) else 0.0
    return float(np.sqrt(np.mean(np.diff(values) ** 2) / 2))


@dataclass(frozen=True)
class Shift:
    """Change of level at a point of a curve."""

    before: float
    after: float
    z: float
    """Change in standard errors of `neighbor_noise`, which a slow drift does not inflate."""

    @property
    def change(self) -> float:
        return self.after - self.before


def shift_at(values: Floats, index: int) -> Shift:
    """Return the change of level at a known point."""
    before = values[:index]
    after = values[index:]
    error = neighbor_noise(values) * math.sqrt(1 / len(before) + 1 / len(after))
    change = float(after.mean() - before.mean())
    z = change / error if error > 0 else math.copysign(math.inf, change) if change else 0.0
    return Shift(float(before.mean()), float(after.mean()), z)


def robust_spread(values: Floats) -> float:
    """Return the interquartile range, scaled to equal a normal's deviation."""
    if len(values) == 0:
        return 0.0
    low, high = np.quantile(values, [0.25, 0.75])
    return float(high - low) / 1.349


def start(values: Floats, share: float = 0.25) -> float:
    """Return the median of the first part of a curve, of 3 points at least."""
    return float(np.median(values[: _count(values, share)]))


def end(values: Floats, share: float = 0.25) -> float:
    """Return the median of the last part of a curve, of 3 points at least."""
    return float(np.median(values[-_count(values, share) :]))


def _count(values: Floats, share: float) -> int:
    return max(min(3, len(values)), int(len(values) * share))


def rank_correlation(a: Floats, b: Floats) -> float:
    """Return Spearman's correlation, ties at their mean rank; 0 below 3 points or where one side is
    constant.
    """
    if len(a) < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0
    return float(np.corrcoef(_ranks(a), _ranks(b))[0, 1])


def _ranks(values: Floats) -> Floats:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[inverse], dtype=np.float64)
