"""The normal and Student's t distributions, from `math` alone: checks must not load scipy.

The regularized incomplete beta function is Lentz's continued fraction (Numerical Recipes, 3rd ed., 6.4); quantiles
are bisections of it, which are slow by a library's measure and exact enough for any interval.
"""

import math
from collections.abc import Callable
from functools import lru_cache

_TINY = 1e-300


def normal_cdf(x: float) -> float:
    """P(Z ≤ x)."""
    return 0.5 * math.erfc(-x / math.sqrt(2))


@lru_cache(maxsize=1024)
def normal_quantile(p: float) -> float:
    """The x with P(Z ≤ x) = p."""
    return _bisect(normal_cdf, p, 40.0)


def student_cdf(x: float, df: float) -> float:
    """P(T ≤ x) with `df` degrees of freedom."""
    if x * x < df:  # near the middle, where one less the tail would lose digits
        return 0.5 + math.copysign(0.5, x) * incomplete_beta(0.5, df / 2, x * x / (df + x * x))
    tail = 0.5 * incomplete_beta(df / 2, 0.5, df / (df + x * x))
    return 1 - tail if x > 0 else tail


@lru_cache(maxsize=1024)
def student_quantile(p: float, df: float) -> float:
    """The x with P(T ≤ x) = p."""
    return _bisect(lambda x: student_cdf(x, df), p, 1e6)


def incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularized incomplete beta function I_x(a, b)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    if x < (a + 1) / (a + b + 2):
        return front * _continued_fraction(a, b, x) / a
    return 1 - front * _continued_fraction(b, a, 1 - x) / b


def _continued_fraction(a: float, b: float, x: float) -> float:
    c, d = 1.0, 1 / _away_from_zero(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, 400):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / _away_from_zero(1 + term * d)
            c = _away_from_zero(1 + term / c)
            value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return value


def _away_from_zero(x: float) -> float:
    return x if abs(x) > _TINY else _TINY


def _bisect(cdf: Callable[[float], float], p: float, reach: float) -> float:
    if not 0 < p < 1:
        raise ValueError(f"A probability lies between 0 and 1, and not at {p}.")
    low, high = -reach, reach
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if cdf(middle) < p else (low, middle)
    return (low + high) / 2
