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
from uptrend.stats.intervals import ROUNDING

# Longer curves are averaged in blocks down to about this many points: same trend, less work, less
# autocorrelation.
MAX_BLOCKS = 240
# Points below which a trend has no error.
MIN_POINTS = 6
# Polynomials that measure the noise: more follow slow noise less well, fewer leave Student's t with
# few degrees of freedom.
MIN_DIRECTIONS = 2
MAX_DIRECTIONS = 12
# Polynomials after the linear one that are left out of the noise: a curve that rises and levels off
# has them.
BEND_DIRECTIONS = 2
# Points from which bends are left out; shorter curves need every direction for their error.
MIN_POINTS_FOR_BENDS = 60
# Largest autocorrelation that the noise is believed to have; at 1 it would have no finite variance.
MAX_RHO = 0.99
# Grid over which the bias of the autocorrelation is inverted, finer where noise is slow.
RHO_GRID = np.concatenate([np.linspace(-0.6, 0.9, 31), np.linspace(0.91, 0.995, 18)])


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
        # The noncentral t is approximated by a t shifted by its noncentrality.
        critical = stdtrit(self.df, 1 - alpha / 2)
        shift = abs(effect) / self.error
        above = float(stdtr(self.df, shift - critical))
        below = float(stdtr(self.df, -shift - critical))
        return above + below


def measure_trend(values: Floats) -> TrendTest | None:
    """Return the trend of a curve with its error; None if it has too few points for an error."""
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
    if len(values) < MIN_POINTS:
        return None
    blocks = _average_blocks(values)
    points = len(blocks)
    directions = max(MIN_DIRECTIONS, min(points // 3, MAX_DIRECTIONS))
    bends = BEND_DIRECTIONS if points >= MIN_POINTS_FOR_BENDS else 0
    degree = 1 + bends + directions

    # Coefficients a of the polynomials, and the share s of the noise that each of them has.
    basis = polynomials(points, degree)
    loads = basis.T @ blocks
    rho = _cautious_rho(blocks, degree=1 + bends // 2)
    shares = _noise_shares(points, degree, round(rho, 3))
    first_noise = 2 + bends
    noise_variance = float(np.mean(loads[first_noise:] ** 2 / shares[first_noise:]))
    trend_load = float(loads[1])
    trend_error = math.sqrt(noise_variance * shares[1])

    # From a coefficient to a change over the whole curve: the blocks' centers lie a little inside
    # its ends.
    inner_span = float(basis[-1, 1] - basis[0, 1])
    span = inner_span * (len(values) - 1) / (len(values) * (1 - 1 / points))

    # A noiseless curve has no error, and a constant one no trend.
    rounding = ROUNDING * float(np.abs(values).max())
    return TrendTest(
        effect=0.0 if abs(trend_load) < rounding else trend_load * span,
        error=0.0 if trend_error < rounding else trend_error * span,
        df=directions,
    )


def _average_blocks(values: Floats) -> Floats:
    """Return a curve, a long one as the means of about `MAX_BLOCKS` blocks of equal length."""
    if len(values) < 2 * MAX_BLOCKS:
        return np.asarray(values, dtype=np.float64)
    block_length = len(values) // MAX_BLOCKS
    count = len(values) // block_length
    return np.array([block.mean() for block in np.array_split(values, count)])


def _cautious_rho(blocks: Floats, degree: int) -> float:
    """Return the noise's lag-1 autocorrelation plus one standard error, within 0 and `MAX_RHO`."""
    points = len(blocks)
    rho = lag_one(blocks, degree)
    # (1 − ρ²) / n is the asymptotic variance (Bartlett 1946); the second term is what it lacks on
    # short curves.
    error = math.sqrt((1 - rho * rho) / points + (2.5 / points) ** 2)
    return min(MAX_RHO, max(0.0, rho + error))


@lru_cache(maxsize=1024)
def _noise_shares(points: int, degree: int, rho: float) -> Floats:
    """Return v'Σ(ρ)v of each polynomial v, where Σ(ρ)ᵢⱼ = ρ^|i − j|."""
    basis = polynomials(points, degree)
    # A quadratic form in a Toeplitz matrix is a sum over lags: each lag but 0 is there twice.
    correlations = []
    for column in basis.T:
        by_lag = np.correlate(column, column, "full")[points - 1 :]
        correlations.append(by_lag)
    own = np.array(correlations)
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
    # a straight line (compare Marriott and Pope 1954, Biometrika 41). Under AR(1) its expectation
    # is known: with A the projector onto the residuals and D the shift, E r ≈ tr(A D A Σ(ρ)) /
    # tr(A Σ(ρ)). That is inverted over a grid of ρ.
    if len(values) < degree + 5:
        return 0.0
    noise = residuals(values, degree)
    power = float(noise @ noise)
    if power <= 1e-18 * max(1.0, float(values @ values)):  # a billionth of the values: rounding
        return 0.0
    raw = noise[:-1] @ noise[1:] / power
    return float(np.interp(raw, _expected_lag_one(len(values), degree), RHO_GRID))


@lru_cache(maxsize=64)
def _expected_lag_one(points: int, degree: int) -> Floats:
    """Return the raw estimate's expectation for each ρ of the grid, made strictly increasing."""
    basis = polynomials(points, degree)
    projector = np.eye(points) - basis @ basis.T
    shifted = projector[:, :-1] @ projector[1:, :]
    powers = RHO_GRID[:, None] ** np.arange(points)
    # tr(M Σ(ρ)) is the sum over lags of ρ^lag times the sum of M's two diagonals at that lag.
    expected = (powers @ _diagonal_sums(shifted)) / (powers @ _diagonal_sums(projector))
    return np.maximum.accumulate(expected + 1e-9 * np.arange(len(RHO_GRID)))


def _diagonal_sums(matrix: Floats) -> Floats:
    """Return the sum of the diagonals above and below the main one, by distance from it."""
    sums = [np.trace(matrix)]
    for k in range(1, len(matrix)):
        sums.append(np.trace(matrix, k) + np.trace(matrix, -k))
    return np.array(sums)


# A least-squares slope over n points of a unit interval has the variance σ² / Σ(x − x̄)², and the
# sum is about n / 12 (any textbook on regression).
SLOPE_VARIANCE = 12


def power_of_rise(effect: float, noise: float, points: int, alpha: float) -> float:
    """Return the power of a one-sided test of a straight rise by `effect`, over independent points
    of this noise.
    """
    error = noise * math.sqrt(SLOPE_VARIANCE / points)
    if error > 0:
        return float(ndtr(effect / error - ndtri(1 - alpha)))
    return 1.0


def points_for(effect: float, noise: float, power: float, alpha: float) -> int:
    """Return the number of points with which `power_of_rise` reaches `power`."""
    reach = float(ndtri(1 - alpha) + ndtri(power))
    return math.ceil(SLOPE_VARIANCE * (reach * noise / effect) ** 2)


def neighbor_noise(values: Floats) -> float:
    """Return the noise's deviation from differences of neighbors, blind to trends and shifts."""
    # Half the mean square of successive differences (von Neumann 1941, Annals of Mathematical
    # Statistics 12).
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
    if error > 0:
        z = change / error
    elif change:
        z = math.copysign(math.inf, change)
    else:
        z = 0.0
    return Shift(float(before.mean()), float(after.mean()), z)


# Interquartile range of a normal distribution, in deviations: 2 Φ⁻¹(0.75).
NORMAL_INTERQUARTILE_RANGE = 1.349


def robust_spread(values: Floats) -> float:
    """Return the interquartile range, scaled to equal a normal's deviation."""
    if len(values) == 0:
        return 0.0
    low, high = np.quantile(values, [0.25, 0.75])
    return float(high - low) / NORMAL_INTERQUARTILE_RANGE


def start(values: Floats, share: float = 0.25) -> float:
    """Return the median of the first part of a curve, at least 3 points of it."""
    return float(np.median(values[: _part_length(values, share)]))


def end(values: Floats, share: float = 0.25) -> float:
    """Return the median of the last part of a curve, at least 3 points of it."""
    return float(np.median(values[-_part_length(values, share) :]))


def _part_length(values: Floats, share: float) -> int:
    return max(min(3, len(values)), int(len(values) * share))


def rank_correlation(a: Floats, b: Floats) -> float:
    """Return Spearman's rank correlation (1904), ties at their mean rank; 0 below 3 points or where
    one side is constant.
    """
    if len(a) < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0
    return float(np.corrcoef(_ranks(a), _ranks(b))[0, 1])


def _ranks(values: Floats) -> Floats:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    mean_ranks = np.cumsum(counts) - (counts - 1) / 2
    return np.asarray(mean_ranks[inverse], dtype=np.float64)
