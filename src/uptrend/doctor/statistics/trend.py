"""Is there a trend? A test whose false-positive rate holds on short, autocorrelated curves.

The curve is projected on orthonormal polynomials in time. The linear one carries the trend; from 60 points on the next
two are left to the bend of a curve that rises and levels off; the K after them carry noise alone, and under AR(1) each
has a known share of it, so that t = a₁/√s₁ ÷ √(mean aₖ²/sₖ) follows Student's t with K degrees of freedom, with
sₖ = vₖ'Σ(ρ)vₖ (after the series estimators of Phillips 2005 and Sun 2011, pre-whitened). ρ is the bias-corrected lag-1
autocorrelation plus one standard error: to think noise less autocorrelated than it is costs false alarms, the other
way only power. K is at most 12, for slow noise that is not AR(1). That helps and does not cure: white noise plus AR(1)
of .9 with half its deviation gave 16 / 16 / 11 / 4% false positives with 50 / 100 / 200 / 1000 points (500 curves,
before the bends were left out).

Measured with tests/doctor/statistics/size_and_power.py, 500 curves each (1000 for 20 and 50): false positives at 5%
nominal at autocorrelation 0 / .3 / .6 / .9, and power at 0 / .3 for a rise of 4, 2, 1.4, 1 and .45 noise deviations.

| points | false positives | power |
|---|---|---|
| 20 | 3.9 / 5.7 / 6.4 / 9.9% | 94 / 75% |
| 50 | 2.9 / 4.4 / 4.4 / 7.6% | 94 / 75% |
| 100 | 4.0 / 5.6 / 5.6 / 7.2% | 96 / 76% |
| 200 | 3.2 / 4.4 / 4.8 / 4.4% | 96 / 81% |
| 1000 | 6.0 / 4.8 / 4.4 / 5.8% | 98 / 81% |

A rise of 1.5 times that size which levels off after an eighth of the run is found in 88% of curves with 100 points and
91% with 200; with the bends counted as noise it was 71 and 72% (300 curves, independent noise).

Ordinary Newey-West with |t| ≥ 2 gives 18 / 21 / 31 / 56% with 20 points and 7 / 10 / 20 / 47% with 100 (300 curves).
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from uptrend.doctor.statistics.autocorrelation import lag_one, polynomials
from uptrend.doctor.statistics.distributions import student_cdf, student_quantile
from uptrend.records.view import Floats

MOST_POINTS = 240
"""Longer curves are averaged in blocks down to about this many points: same trend, less work, less autocorrelation."""
MOST_DIRECTIONS = 12
FEWEST_POINTS = 6
BENDS = 2
"""How many polynomials after the linear one are left out of the noise: a curve that rises and levels off has them."""
ENOUGH_TO_BEND = 60
"""Shorter curves need every direction for their error."""


@dataclass(frozen=True)
class TrendTest:
    """A fitted straight trend and how sure it is."""

    effect: float
    """The fitted change from the first point to the last."""
    error: float
    """Its standard error, autocorrelation included."""
    df: int
    """The degrees of freedom of that error."""
    rho: float
    """The lag-1 autocorrelation that was allowed for."""

    @property
    def t(self) -> float:
        """The effect in standard errors; infinite for a noiseless change."""
        if self.error > 0:
            return self.effect / self.error
        return math.copysign(math.inf, self.effect) if self.effect else 0.0

    @property
    def p(self) -> float:
        """The two-sided p-value."""
        return 0.0 if math.isinf(self.t) else 2 * student_cdf(-abs(self.t), self.df)

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """The effect's interval."""
        reach = student_quantile(0.5 + level / 2, self.df) * self.error
        return self.effect - reach, self.effect + reach

    def power(self, effect: float, alpha: float = 0.05) -> float:
        """The chance that a run with this noise shows a change of this size."""
        if self.error == 0:
            return 1.0
        critical, shift = student_quantile(1 - alpha / 2, self.df), abs(effect) / self.error
        return student_cdf(shift - critical, self.df) + student_cdf(-shift - critical, self.df)


def measure_trend(values: Floats, caution: float = 1.0) -> TrendTest | None:
    """The trend of a curve with its error; none where there are too few points for an error."""
    if len(values) < FEWEST_POINTS:
        return None
    blocks = _averaged(values)
    points = len(blocks)
    directions = max(2, min(points // 3, MOST_DIRECTIONS))
    bends = BENDS if points >= ENOUGH_TO_BEND else 0
    first = 2 + bends
    basis = polynomials(points, directions + 1 + bends)
    loads = basis.T @ blocks
    rho = _cautious(lag_one(blocks, 1 + bends // 2), points, caution)
    shares = _shares(points, directions + 1 + bends, round(rho, 3))
    noise = float(np.mean(loads[first:] ** 2 / shares[first:]))
    # Blocks' centers lie a little inside the curve's ends.
    span = float(basis[-1, 1] - basis[0, 1]) * (len(values) - 1) / (len(values) * (1 - 1 / points))
    effect, error = (_rounded(x, values) * span for x in (float(loads[1]), math.sqrt(noise * shares[1])))
    return TrendTest(effect, error, directions, rho)


def _cautious(rho: float, points: int, caution: float) -> float:
    """So many standard errors more; the second term is what the asymptotic error lacks on short curves."""
    return min(0.99, max(0.0, rho + caution * math.sqrt((1 - rho * rho) / points + (2.5 / points) ** 2)))


def _rounded(load: float, values: Floats) -> float:
    """0 for what is only rounding: a noiseless curve has no error, and a constant one no trend."""
    return 0.0 if abs(load) < 1e-12 * float(np.abs(values).max()) else load


def _averaged(values: Floats) -> Floats:
    if len(values) < 2 * MOST_POINTS:
        return np.asarray(values, dtype=np.float64)
    pieces = len(values) // max(1, len(values) // MOST_POINTS)
    return np.array([piece.mean() for piece in np.array_split(values, pieces)])


@lru_cache(maxsize=1024)
def _shares(points: int, degree: int, rho: float) -> Floats:
    """v'Σ(ρ)v of each polynomial v."""
    basis = polynomials(points, degree)
    own = np.array([np.correlate(column, column, "full")[points - 1 :] for column in basis.T])
    own[:, 1:] *= 2
    return np.asarray(own @ rho ** np.arange(points))
