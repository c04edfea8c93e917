"""How much a curve's noise remembers: the lag-1 autocorrelation, corrected for the bias of short curves.

The raw estimate r = Σ eᵢeᵢ₊₁ / Σ eᵢ² from residuals of a fitted polynomial is too small, by about (2 + 4ρ) / n after
a straight line. Under AR(1) its expectation is known: with A the projector onto the residuals and D the shift,
E r ≈ tr(A D A Σ(ρ)) / tr(A Σ(ρ)). We invert that over a grid of ρ.
"""

from functools import lru_cache

import numpy as np

from uptrend.records.view import Floats

GRID = np.concatenate([np.linspace(-0.6, 0.9, 31), np.linspace(0.91, 0.995, 18)])


def residuals(values: Floats, degree: int) -> Floats:
    """What a fitted polynomial in time leaves of a curve."""
    basis = polynomials(len(values), degree)
    return values - basis @ (basis.T @ values)


def lag_one(values: Floats, degree: int = 1) -> float:
    """The lag-1 autocorrelation of the noise about a polynomial, corrected for bias; 0 for noiseless curves."""
    if len(values) < degree + 5:
        return 0.0
    noise = residuals(values, degree)
    power = float(noise @ noise)
    if power <= 1e-18 * max(1.0, float(values @ values)):
        return 0.0
    return float(np.interp(noise[:-1] @ noise[1:] / power, _expected(len(values), degree), GRID))


def effective_size(points: int, rho: float) -> float:
    """How many independent points tell as much of a mean as these do under AR(1)."""
    return points * (1 - rho) / (1 + rho)


@lru_cache(maxsize=64)
def polynomials(points: int, degree: int) -> Floats:
    """Orthonormal polynomials in time of degree 0 to `degree`, a column each, rising at the end."""
    columns = np.polynomial.legendre.legvander(np.linspace(-1, 1, points), degree)
    basis, upper = np.linalg.qr(columns)
    return np.asarray(basis * np.sign(np.diag(upper)))


@lru_cache(maxsize=64)
def _expected(points: int, degree: int) -> Floats:
    """The raw estimate's expectation for each ρ of the grid, made strictly increasing."""
    basis = polynomials(points, degree)
    projector = np.eye(points) - basis @ basis.T
    shifted = projector[:, :-1] @ projector[1:, :]
    powers = GRID[:, None] ** np.arange(points)
    expected = (powers @ _diagonals(shifted)) / (powers @ _diagonals(projector))
    return np.maximum.accumulate(expected + 1e-9 * np.arange(len(GRID)))


def _diagonals(matrix: Floats) -> Floats:
    """The sums of a matrix's entries at each distance from the diagonal."""
    points = len(matrix)
    sums = [np.trace(matrix, k) + (np.trace(matrix, -k) if k else 0.0) for k in range(points)]
    return np.array(sums)
