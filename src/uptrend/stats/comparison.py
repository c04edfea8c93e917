"""Tests of one arm against another, corrections for several of them, and what a number of seeds can
show.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.special import bdtr, ndtr, stdtr, stdtrit

from uptrend.records import Run
from uptrend.records.summary import correct_by_task
from uptrend.records.view import Floats
from uptrend.stats.intervals import Spread, bayes_factor, normal_interval, spread_of, student_reach

# Seeds up to which the sign-flip test counts all flips: a million at most.
MOST_EXACT = 20
# Flips drawn beyond it, always the same ones.
FLIPS = 200_000
# Nobody runs more seeds than this.
MOST_SEEDS = 1000


def paired_p(spread: Spread, null: float = 0.0) -> float:
    """Return the paired t test's two-sided p; 1 below two seeds, the sign-flip test's where all
    differences agree.
    """
    if spread.seeds < 2:
        return 1.0
    if spread.deviation == 0:
        return 2.0 ** (1 - spread.seeds) if spread.mean != null else 1.0
    t = (spread.mean - null) * math.sqrt(spread.seeds) / spread.deviation
    return float(2 * stdtr(spread.seeds - 1, -abs(t)))


def sequence_p(spread: Spread, null: float = 0.0) -> float:
    """Return a p-value of `null` that holds whenever one stops: the inverse of the evidence."""
    return min(1.0, 1 / bayes_factor(spread, null))


def mcnemar(only_a: int, only_b: int) -> float:
    """Return the exact two-sided p-value of a paired comparison, from the tasks that only one side
    answered right.
    """
    # If neither were better, each such task would fall to either side like a fair coin (McNemar
    # 1947).
    return min(1.0, float(2 * bdtr(min(only_a, only_b), only_a + only_b, 0.5)))


def paired_interval(gained: int, lost: int, tasks: int) -> tuple[float, float]:
    """Return the 95% interval of a change of accuracy on the same tasks, from those that changed
    sides.
    """
    # Half a task more in each of the four cells (Agresti and Min 2005): no change in ten tasks has
    # an error too.
    more = gained + 0.5
    less = lost + 0.5
    count = tasks + 2
    low, high = normal_interval(
        (more - less) / count, math.sqrt(more + less - (more - less) ** 2 / count) / count
    )
    return max(-1.0, low), min(1.0, high)


@dataclass(frozen=True)
class PairedAnswers:
    """Counts of the tasks that two models, or one model twice, were asked, by which of the two
    answered correctly.
    """

    both: int
    only_a: int
    only_b: int
    neither: int

    @property
    def tasks(self) -> int:
        return self.both + self.only_a + self.only_b + self.neither

    @property
    def effect(self) -> float:
        """Accuracy of B less that of A."""
        return (self.only_b - self.only_a) / self.tasks

    @property
    def interval(self) -> tuple[float, float]:
        return paired_interval(self.only_b, self.only_a, self.tasks)

    @property
    def p(self) -> float:
        return mcnemar(self.only_a, self.only_b)


def pair_answers(correct_a: Mapping[str, bool], correct_b: Mapping[str, bool]) -> PairedAnswers:
    """Compare correct answers by task, over the tasks that both sides have."""
    counts = Counter((correct_a[task], correct_b[task]) for task in correct_a if task in correct_b)
    return PairedAnswers(
        counts[True, True], counts[True, False], counts[False, True], counts[False, False]
    )


CAVEAT = (
    "This compares these two models on these tasks. It does not say that one config is better than"
    " the other: another seed of the same config is another model."
)


def pair_runs(a: Run, b: Run) -> dict[str, Any] | None:
    """Compare the last evaluations of two runs task by task, `effect` is B less A; None where they
    share no task.
    """
    if not a.eval_lines or not b.eval_lines:
        return None
    step_a = a.eval_lines[-1]["step"]
    step_b = b.eval_lines[-1]["step"]
    pairs = pair_answers(
        correct_by_task(a.eval_rollouts(step_a)), correct_by_task(b.eval_rollouts(step_b))
    )
    if not pairs.tasks:
        return None
    return {
        "step_a": step_a,
        "step_b": step_b,
        "tasks": pairs.tasks,
        **asdict(pairs),
        "effect": pairs.effect,
        "interval": pairs.interval,
        "p": pairs.p,
        "caveat": CAVEAT,
    }


@dataclass(frozen=True)
class SignFlip:
    """Result of the sign-flip test."""

    up: float
    """One-sided p of a mean above 0."""
    down: float
    """One-sided p of a mean below 0."""
    both: float


def sign_flip(differences: Floats) -> SignFlip:
    """Return the exact sign-flip test on differences by seed."""
    # If an arm did nothing, each seed's difference could as well have had the other sign: p is the
    # share of the 2ⁿ ways to flip signs whose sum lies as far out as the one seen. It supposes
    # nothing but that symmetry, and is coarse: with n seeds the least p is 2⁻ⁿ one-sided and 2¹⁻ⁿ
    # two-sided, so 5 seeds can't go below .031 and .0625.
    seen = float(np.sum(differences))
    slack = 1e-9 * float(np.abs(differences).sum())  # flips that tie but for rounding count as ties
    sums = _flipped_sums(differences)
    shares = [
        np.mean(sums >= seen - slack),
        np.mean(sums <= seen + slack),
        np.mean(np.abs(sums) >= abs(seen) - slack),
    ]
    return SignFlip(*(float(share) for share in shares))


def _flipped_sums(differences: Floats) -> Floats:
    if len(differences) > MOST_EXACT:
        signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(FLIPS, len(differences)))
        signs[0] = 1.0
        return np.asarray(signs @ differences)
    sums = np.zeros(1)
    for difference in differences:
        sums = np.concatenate([sums + difference, sums - difference])
    return sums


def fewest_seeds(alpha: float) -> int:
    """Return the number of seeds that the two-sided sign-flip test needs to reach alpha; one-sided,
    give 2 alpha.
    """
    return math.ceil(1 - math.log2(alpha))


def outliers(differences: Floats, level: float = 0.02) -> list[int]:
    """Return the places of differences too far from the others for a normal spread; none below 5
    seeds.
    """
    # Grubbs 1950, one at a time: each is told from the rest by Student's t, at a level shared by
    # all: 2% of experiments without an outlier have one.
    count = len(differences)
    if count < 5:
        return []
    critical = float(stdtrit(count - 2, 1 - level / (2 * count)))
    rests = [np.delete(differences, i) for i in range(count)]
    errors = [spread_of(rest).deviation * math.sqrt(1 + 1 / (count - 1)) for rest in rests]
    distances = [abs(float(differences[i] - rest.mean())) for i, rest in enumerate(rests)]
    return [i for i in range(count) if errors[i] > 0 and distances[i] > critical * errors[i]]


def benjamini_hochberg(ps: Sequence[float]) -> list[float]:
    """Return each p adjusted for the others (1995): those at most q are discoveries at a false
    discovery rate of q.
    """
    count = len(ps)
    order = np.argsort(np.asarray(ps, dtype=np.float64), kind="stable")[::-1]
    scaled = np.asarray(ps, dtype=np.float64)[order] * count / np.arange(count, 0, -1)
    adjusted = np.empty(count)
    adjusted[order] = np.minimum(1.0, np.minimum.accumulate(scaled))
    return [float(p) for p in adjusted]


@dataclass(frozen=True)
class Chances:
    """Chances of the two verdicts; the rest is inconclusive."""

    validated: float
    invalidated: float

    @property
    def decided(self) -> float:
        return self.validated + self.invalidated


def chances(
    effect: float,
    deviation: float,
    seeds: int,
    smallest: float,
    alpha: float = 0.05,
    either: bool = False,
) -> Chances:
    """Return the chances of `low > 0` and of `high < smallest`, the second first, where the true
    effect is this.
    """
    # the sign-flip test decides, as in `interval_of`
    if deviation == 0 and seeds >= fewest_seeds(alpha):
        is_small = (abs(effect) if either else effect) < smallest
        is_nothing = effect == 0 >= smallest
        return Chances(float(not is_small and not is_nothing), float(is_small))
    if seeds < 2 or deviation == 0:
        return Chances(0.0, 0.0)
    # Given u = s/σ, which follows √(χ²/ν), the mean is normal: each chance is a normal probability
    # integrated over u.
    u, mass = deviation_ratios(seeds - 1)
    half = student_reach(seeds, alpha) * deviation * u
    error = deviation / math.sqrt(seeds)
    above = np.maximum(half, smallest - half)
    validated = ndtr((effect - above) / error)
    invalidated = ndtr((smallest - half - effect) / error)
    if either:
        validated += ndtr((-effect - above) / error)
        invalidated = np.maximum(0.0, invalidated - ndtr((half - smallest - effect) / error))
    return Chances(float(mass @ validated), float(mass @ invalidated))


@lru_cache(maxsize=256)
def deviation_ratios(df: int) -> tuple[Floats, Floats]:
    """Return nodes for u = s/σ = √(χ²/ν) and their weights (Gauss-Legendre)."""
    nodes, weights = _legendre()
    width = 10 / math.sqrt(2 * df)
    low = max(0.0, 1 - width)
    high = 1 + width
    u = low + (nodes + 1) * (high - low) / 2
    mass = weights * np.exp((df - 1) * np.log(u) - df * (u * u - 1) / 2)
    return u, mass / mass.sum()


@lru_cache(maxsize=1)
def _legendre() -> tuple[Floats, Floats]:
    return np.polynomial.legendre.leggauss(160)


def fewest(is_enough: Callable[[int], bool], least: int = 2, most: int = MOST_SEEDS) -> int | None:
    """Return the least number from `least` on that is enough, where more always is too; none up to
    `most`.
    """
    low = least - 1
    high = least
    while not is_enough(high):
        if high >= most:
            return None
        low = high
        high = min(most, 2 * high)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high
