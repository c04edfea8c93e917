"""The exact sign-flip test: if an arm did nothing, each seed's difference could as well have had the other sign.

Its p is the share of the 2ⁿ ways to flip signs whose sum lies as far out as the one that was seen. It supposes nothing
but that symmetry, and is coarse: with n seeds the least p is 2⁻ⁿ one-sided and 2¹⁻ⁿ two-sided, so 5 seeds can't go
below .031 and .0625, 6 not below .016 and .031, 8 not below .004 and .008.
"""

import math
from dataclasses import dataclass

import numpy as np

from uptrend.records.view import Floats

MOST_EXACT = 20
"""Up to so many seeds all flips are counted: a million at most."""
FLIPS = 200_000
"""Beyond it, so many flips are drawn, always the same ones."""


@dataclass(frozen=True)
class SignFlip:
    """The test's outcome."""

    up: float
    """One-sided p of a mean above 0."""
    down: float
    """One-sided p of a mean below 0."""
    both: float
    """Two-sided p."""


def sign_flip(differences: Floats) -> SignFlip:
    """The test on differences by seed."""
    seen = float(np.sum(differences))
    slack = 1e-9 * float(np.abs(differences).sum())  # flips that tie but for rounding count as ties
    sums = _sums(differences)
    shares = [np.mean(sums >= seen - slack), np.mean(sums <= seen + slack), np.mean(np.abs(sums) >= abs(seen) - slack)]
    return SignFlip(*(float(share) for share in shares))


def least_p(seeds: int) -> float:
    """The least one-sided p that so many seeds can give; the two-sided one is twice it."""
    return 2.0**-seeds


def fewest_seeds(alpha: float) -> int:
    """How many seeds the two-sided test needs to reach alpha at all."""
    return math.ceil(1 - math.log2(alpha))


def _sums(differences: Floats) -> Floats:
    """The sums under every flip, the unflipped one first."""
    if len(differences) > MOST_EXACT:
        signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(FLIPS, len(differences)))
        signs[0] = 1.0
        return np.asarray(signs @ differences)
    sums = np.zeros(1)
    for difference in differences:
        sums = np.concatenate([sums + difference, sums - difference])
    return sums
