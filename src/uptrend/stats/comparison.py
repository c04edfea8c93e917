"""Tests of one arm against another, corrections for several of them, and the power of a number of
seeds.
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

# Seeds up to which the sign-flip test counts all flips: at most a million.
MAX_EXACT_SEEDS = 20
# Flips drawn beyond it, always the same ones. A p of .05 has a standard error of .0005.
DRAWN_FLIPS = 200_000
# Chosen: more seeds than any experiment has.
MAX_SEEDS = 1000


def paired_p(spread: Spread, null: float = 0.0) -> float:
    """Return the two-sided p of the paired t test (Student 1908); 1 below two seeds, the sign-flip
    test's p if all differences are equal.
    """
    if spread.seeds < 2:
        return 1.0
    if spread.deviation == 0:
        return 2.0 ** (1 - spread.seeds) if spread.mean != null else 1.0
    t = (spread.mean - null) * math.sqrt(spread.seeds) / spread.deviation
    return float(2 * stdtr(spread.seeds - 1, -abs(t)))


def sequence_p(spread: Spread, null: float = 0.0) -> float:
    """Return a p-value of `null` that is valid at every look: the inverse of the evidence."""
    # An e-value E gives the p-value 1/E by Markov's inequality, a test martingale one that holds at
    # every stop by Ville's (Shafer et al. 2011, Statistical Science 26).
    return min(1.0, 1 / bayes_factor(spread, null))


def mcnemar(only_a: int, only_b: int) -> float:
    """Return the exact two-sided p-value of a paired comparison, from the numbers of tasks that
    only one side answered correctly.
    """
    # If neither were better, each such task would fall to either side like a fair coin (McNemar
    # 1947).
    tail = float(bdtr(min(only_a, only_b), only_a + only_b, 0.5))
    return min(1.0, 2 * tail)


def paired_interval(gained: int, lost: int, tasks: int) -> tuple[float, float]:
    """Return the 95% interval of a change of accuracy on the same tasks, from the numbers of tasks
    that changed sides.
    """
    # Wald's interval with half a task more in each of the four cells (Agresti and Min 2005,
    # Statistics in Medicine 24): no change in ten tasks has an error too.
    gained_plus = gained + 0.5
    lost_plus = lost + 0.5
    count = tasks + 2
    net = gained_plus - lost_plus
    error = math.sqrt(gained_plus + lost_plus - net**2 / count) / count
    low, high = normal_interval(net / count, error)
    return max(-1.0, low), min(1.0, high)


@dataclass(frozen=True)
class PairedAnswers:
    """Counts of tasks that both of two models answered, by which of them did so correctly."""

    both: int
    only_a: int
    only_b: int
    neither: int

    @property
    def tasks(self) -> int:
        return self.both + self.only_a + self.only_b + self.neither

    @property
    def effect(self) -> float:
        """Accuracy of B minus that of A."""
        return (self.only_b - self.only_a) / self.tasks

    @property
    def interval(self) -> tuple[float, float]:
        return paired_interval(self.only_b, self.only_a, self.tasks)

    @property
    def p(self) -> float:
        return mcnemar(self.only_a, self.only_b)


def pair_answers(correct_a: Mapping[str, bool], correct_b: Mapping[str, bool]) -> PairedAnswers:
    """Compare correct answers by task, over the tasks that both sides have."""
    counts: Counter[tuple[bool, bool]] = Counter()
    for task, is_correct_a in correct_a.items():
        if task in correct_b:
            counts[is_correct_a, correct_b[task]] += 1
    return PairedAnswers(
        both=counts[True, True],
        only_a=counts[True, False],
        only_b=counts[False, True],
        neither=counts[False, False],
    )


ONE_SEED_CAVEAT = (
    "This compares these two models on these tasks. It does not say that one config is better than"
    " the other: another seed of the same config is another model."
)


def pair_runs(a: Run, b: Run) -> dict[str, Any] | None:
    """Compare the last evaluations of two runs task by task; None if they share no task.

    `effect` is the accuracy of B minus that of A.
    """
    if not a.eval_lines or not b.eval_lines:
        return None
    step_a = a.eval_lines[-1]["step"]
    step_b = b.eval_lines[-1]["step"]
    correct_a = correct_by_task(a.eval_rollouts(step_a))
    correct_b = correct_by_task(b.eval_rollouts(step_b))
    pairs = pair_answers(correct_a, correct_b)
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
        "caveat": ONE_SEED_CAVEAT,
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
    # share of the 2ⁿ ways to flip signs whose sum lies as far out as the one observed (Fisher 1935,
    # The Design of Experiments, section 21). It supposes nothing but that symmetry, and is coarse:
    # with n seeds the least p is 2⁻ⁿ one-sided and 2¹⁻ⁿ two-sided, so 5 seeds can't go below .031
    # and .0625.
    observed = float(np.sum(differences))
    slack = 1e-9 * float(np.abs(differences).sum())  # flips that tie but for rounding count as ties
    sums = _flipped_sums(differences)
    return SignFlip(
        up=float(np.mean(sums >= observed - slack)),
        down=float(np.mean(sums <= observed + slack)),
        both=float(np.mean(np.abs(sums) >= abs(observed) - slack)),
    )


def _flipped_sums(differences: Floats) -> Floats:
    """Return the sums of all ways to flip the signs, or of `DRAWN_FLIPS` random ones."""
    if len(differences) > MAX_EXACT_SEEDS:
        rng = np.random.default_rng(0)
        signs = rng.choice([-1.0, 1.0], size=(DRAWN_FLIPS, len(differences)))
        signs[0] = 1.0  # the one observed is among them, so that no p is 0
        return np.asarray(signs @ differences)
    sums = np.zeros(1)
    for difference in differences:
        sums = np.concatenate([sums + difference, sums - difference])
    return sums


def fewest_seeds(alpha: float) -> int:
    """Return the number of seeds that the two-sided sign-flip test needs to reach alpha; for the
    one-sided test pass 2 alpha.
    """
    return math.ceil(1 - math.log2(alpha))


# Seeds below which one difference can't be set apart from the others: with 4, three others give its
# deviation.
MIN_SEEDS_FOR_OUTLIERS = 5


def outliers(differences: Floats, level: float = 0.02) -> list[int]:
    """Return the indices of differences that lie too far from the others for a normal spread; none
    below 5 seeds.
    """
    # Grubbs 1950, one at a time: Student's t compares each with the rest, at a level shared by all:
    # 2% of experiments without an outlier have one.
    count = len(differences)
    if count < MIN_SEEDS_FOR_OUTLIERS:
        return []
    critical = float(stdtrit(count - 2, 1 - level / (2 * count)))
    indices = []
    for i in range(count):
        rest = np.delete(differences, i)
        error = spread_of(rest).deviation * math.sqrt(1 + 1 / (count - 1))
        distance = abs(float(differences[i] - rest.mean()))
        if error > 0 and distance > critical * error:
            indices.append(i)
    return indices


def benjamini_hochberg(ps: Sequence[float]) -> list[float]:
    """Return each p adjusted for the others: those of at most q are discoveries at a false
    discovery rate of q.
    """
    # Benjamini and Hochberg 1995, Journal of the Royal Statistical Society B 57. From the largest p
    # on: p · count / rank, and no more than that of a larger p.
    values = np.asarray(ps, dtype=np.float64)
    count = len(values)
    largest_first = np.argsort(values, kind="stable")[::-1]
    ranks = np.arange(count, 0, -1)
    scaled = values[largest_first] * count / ranks
    adjusted = np.empty(count)
    adjusted[largest_first] = np.minimum(1.0, np.minimum.accumulate(scaled))
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
    """Return the chances of `low > 0` (validated) and of `high < smallest` (invalidated, which
    comes first) for this true effect.

    With `either`, an effect in the other direction counts as much.
    """
    if deviation == 0 and seeds >= fewest_seeds(alpha):
        # The sign-flip test decides, as in `interval_of`.
        size = abs(effect) if either else effect
        is_small = size < smallest
        is_nothing = effect == 0 and smallest <= 0
        return Chances(float(not is_small and not is_nothing), float(is_small))
    if seeds < 2 or deviation == 0:
        return Chances(0.0, 0.0)

    # Given u = s/σ, which follows √(χ²/ν) independently of the mean, the mean is normal (any
    # textbook): each chance is a normal probability integrated over u.
    u, weight = deviation_ratios(seeds - 1)
    half = student_reach(seeds, alpha) * deviation * u
    error = deviation / math.sqrt(seeds)
    threshold = np.maximum(half, smallest - half)
    validated = ndtr((effect - threshold) / error)
    invalidated = ndtr((smallest - half - effect) / error)
    if either:
        validated += ndtr((-effect - threshold) / error)
        invalidated = np.maximum(0.0, invalidated - ndtr((half - smallest - effect) / error))
    return Chances(float(weight @ validated), float(weight @ invalidated))


# Deviations of u = s/σ, about 1/√(2ν), to either side of 1 that are integrated; the mass outside is
# below float64's precision.
INTEGRATED_DEVIATIONS = 10
QUADRATURE_NODES = 160


@lru_cache(maxsize=256)
def deviation_ratios(df: int) -> tuple[Floats, Floats]:
    """Return nodes for u = s/σ = √(χ²/ν) and their weights (Gauss-Legendre)."""
    nodes, node_weights = _legendre()
    width = INTEGRATED_DEVIATIONS / math.sqrt(2 * df)
    low = max(0.0, 1 - width)
    high = 1 + width
    u = low + (nodes + 1) * (high - low) / 2
    # Density of the χ distribution scaled by 1/√ν, without its constant factor.
    density = np.exp((df - 1) * np.log(u) - df * (u * u - 1) / 2)
    weight = node_weights * density
    return u, weight / weight.sum()


@lru_cache(maxsize=1)
def _legendre() -> tuple[Floats, Floats]:
    return np.polynomial.legendre.leggauss(QUADRATURE_NODES)


def fewest(is_enough: Callable[[int], bool], least: int = 2, most: int = MAX_SEEDS) -> int | None:
    """Return the least number within `least` and `most` that is enough, None if there is none.

    A number above one that is enough must be enough too.
    """
    # Double until it is enough, then bisect.
    too_few = least - 1
    enough = least
    while not is_enough(enough):
        if enough >= most:
            return None
        too_few = enough
        enough = min(most, 2 * enough)
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if is_enough(middle):
            enough = middle
        else:
            too_few = middle
    return enough
