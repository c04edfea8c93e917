"""Estimates with their intervals: fractions of tasks, and effects over seeds.

Over seeds, each seed gives one paired difference, arm less control. These are independent and near
enough to normal (a run's accuracy is a mean over tasks), so mean ± reach · deviation covers the
mean over all seeds on these tasks. The reach depends on the number of seeds and on alpha:
`student_reach` for one look after all seeds, `sequence_reach` for any number of looks.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, betaln, chdtri, ndtri, stdtrit

from uptrend.records.hypothesis import Interval
from uptrend.records.view import Floats

# Bootstrap draws, always the same ones. A percentile's standard error is then about 1.5% of the
# width of a 95% interval.
BOOTSTRAP_DRAWS = 2000
# Prior variance of the effect size in the confidence sequence; it sets where the sequence is tight.
# The reach is least at g = 5.5, 3.6, 2.6 and 2.0 for 5, 6, 7 and 8 seeds (alpha .05), and at 8.3,
# 5.1, 3.6 and 2.7 for alpha .025, as with two arms. 4 is within 4% of the least in all of these,
# and infinite below 4 seeds at either alpha: three runs never end an experiment, however alike they
# are.
PRIOR_VARIANCE = 4.0
# Share of the largest value below which a number is rounding of float64.
ROUNDING = 1e-12


def normal_reach(alpha: float = 0.05) -> float:
    """Return the standard errors that a two-sided normal interval reaches to either side."""
    return float(ndtri(1 - alpha / 2))


def normal_interval(effect: float, error: float, alpha: float = 0.05) -> tuple[float, float]:
    """Return the ends of the normal interval of an estimate with a standard error."""
    half = normal_reach(alpha) * error
    return effect - half, effect + half


def wilson(successes: int, trials: int, alpha: float = 0.05) -> tuple[float, float]:
    """Return Wilson's score interval of a fraction (JASA 22, 1927), which holds at 0, at 1 and for
    few trials.
    """
    if trials == 0:
        return 0.0, 1.0
    p = successes / trials
    z = normal_reach(alpha)
    spread = z * math.sqrt(p * (1 - p) / trials + z * z / (4 * trials * trials))
    center = p + z * z / (2 * trials)
    scale = 1 + z * z / trials
    low = (center - spread) / scale
    high = (center + spread) / scale
    return max(0.0, low), min(1.0, high)


def pass_at_k(correct: int, attempts: int, k: int) -> float:
    """Return the unbiased estimate of pass@k (Chen et al. 2021, arXiv 2107.03374, eq. 1)."""
    if not (0 <= correct <= attempts and 1 <= k <= attempts):
        raise ValueError(
            f"pass@{k} needs at least {k} attempts, and at most all of them correct; here {correct}"
            f" of {attempts} are."
        )
    return 1 - math.comb(attempts - correct, k) / math.comb(attempts, k)


def all_right(a: float, b: float, k: int) -> float:
    """Return the chance that k attempts at one task are all right, for pass rates from Beta(a, b).

    It is E[pᵏ] = B(a + k, b) / B(a, b), a moment of the beta distribution.
    """
    return float(np.exp(betaln(a + k, b) - betaln(a, b)))


def bootstrap_mean(values: Floats, alpha: float = 0.05) -> tuple[float, float]:
    """Return the percentile-bootstrap interval of a mean (Efron 1979); equal values always give the
    same one.
    """
    rng = np.random.default_rng(0)
    drawn = rng.integers(len(values), size=(BOOTSTRAP_DRAWS, len(values)))
    means = values[drawn].mean(axis=1)
    low, high = np.quantile(means, (alpha / 2, 1 - alpha / 2))
    return float(low), float(high)


@dataclass(frozen=True)
class Spread:
    """Paired differences in three figures."""

    seeds: int
    mean: float
    deviation: float
    """Their deviation between seeds (n − 1); 0 where all are equal but for rounding."""


def spread_of(differences: Floats) -> Spread:
    """Return mean and deviation of the differences by seed."""
    mean = float(np.mean(differences))
    deviation = float(np.std(differences, ddof=1)) if len(differences) > 1 else 0.0
    is_rounding = deviation <= ROUNDING * float(np.abs(differences).max())
    return Spread(len(differences), mean, 0.0 if is_rounding else deviation)


def likely_deviation(spread: Spread) -> float:
    """Return the median-unbiased estimate of the true deviation; s itself is too small more often.

    Power computed from it is as often too high as too low.
    """
    # ν s² / σ² follows χ² with ν = n − 1 degrees of freedom (any textbook), so s² is divided by the
    # median of χ²/ν.
    df = spread.seeds - 1
    if df <= 0:
        return 0.0
    return spread.deviation / math.sqrt(chdtri(df, 0.5) / df)


def student_reach(seeds: int, alpha: float) -> float:
    """Return the deviations that Student's interval (1908) reaches to either side; infinite below
    two seeds.
    """
    if seeds < 2:
        return math.inf
    return float(stdtrit(seeds - 1, 1 - alpha / 2)) / math.sqrt(seeds)


def student_quantile(count: int, alpha: float) -> float:
    """Return Student's t quantile for a mean of `count` values: the reach in standard errors."""
    return student_reach(count, alpha) * math.sqrt(count)


def bayes_factor(spread: Spread, null: float = 0.0, g: float = PRIOR_VARIANCE) -> float:
    """Return the evidence against a mean of `null`, which holds at every look."""
    # For a normal mean with unknown deviation, mix the effect size (mean / deviation) over N(0, g)
    # and the deviation over its right Haar measure. With n seeds, ν = n − 1 and t = √n (x̄ − μ) /
    # s, the factor against the mean μ is
    #
    #     BF(μ) = (1 + ng)^(−1/2) · [(1 + t²/ν) / (1 + t²/(ν(1 + ng)))]^((ν+1)/2),
    #
    # a martingale in n for the true μ (Lai 1976; Wang and Ramdas 2024, Anytime-valid t-tests and
    # confidence sequences for Gaussian means with unknown variance). By Ville's inequality it ever
    # reaches 1/alpha with a chance of at most alpha.
    n = spread.seeds
    if n < 2:
        return 1.0
    r = 1 + n * g
    if spread.deviation == 0:
        # The limit of the factor for t² → 0 or ∞.
        return 1.0 if spread.mean == null else float(r ** ((n - 1) / 2))
    x = (spread.mean - null) ** 2 * n / spread.deviation**2 / (n - 1)  # t²/ν
    log_factor = -math.log(r) / 2 + n / 2 * (math.log1p(x) - math.log1p(x / r))
    return math.exp(log_factor)


def sequence_reach(seeds: int, alpha: float, g: float = PRIOR_VARIANCE) -> float:
    """Return the deviations that the confidence sequence reaches to either side; infinite for few
    seeds.
    """
    # The set of means μ whose `bayes_factor` stays below 1/alpha: the interval may be looked at
    # after every seed. At its ends, with x = t²/ν and r = 1 + ng,
    #
    #     r^(−1/2) · [(1 + x) / (1 + x/r)]^(n/2) = 1/alpha,
    #
    # so (1 + x) / (1 + x/r) = (√r / alpha)^(2/n) = c, and x = (c − 1) / (1 − c/r). The quotient
    # stays below r: for c ≥ r no mean is excluded. As x = n (x̄ − μ)² / (s² (n − 1)), the reach
    # |x̄ − μ| / s is √(x (n − 1) / n).
    if seeds < 2:
        return math.inf
    r = 1 + seeds * g
    c = (math.sqrt(r) / alpha) ** (2 / seeds)
    if c >= r:
        return math.inf
    x = (c - 1) / (1 - c / r)
    return math.sqrt(x * (seeds - 1) / seeds)


def interval_of(spread: Spread, reach: float, alpha: float) -> Interval:
    """Return mean ± reach · deviation; where all differences are equal, the sign-flip test's
    interval.
    """
    half = reach * spread.deviation
    if spread.deviation == 0:
        # An interval without width is not believed: a coarse metric can give equal differences. The
        # exact sign-flip test excludes every other effect once 2^(1−n) ≤ alpha, and none before.
        excludes_others = math.isfinite(reach) and 2.0 ** (1 - spread.seeds) <= alpha
        half = 0.0 if excludes_others else math.inf
    return Interval(spread.mean, spread.mean - half, spread.mean + half)


def student_interval(differences: Floats, alpha: float = 0.05) -> Interval:
    """Return Student's two-sided interval of the mean difference."""
    return interval_of(spread_of(differences), student_reach(len(differences), alpha), alpha)


def sequence_interval(spread: Spread, alpha: float = 0.05) -> Interval:
    """Return the confidence sequence after these seeds."""
    return interval_of(spread, sequence_reach(spread.seeds, alpha), alpha)


def median_interval(differences: Floats, alpha: float, lows: Floats, highs: Floats) -> Interval:
    """Return the median difference with its exact interval, from order statistics: the sign test,
    inverted.

    Each difference lies between its bounds in `lows` and `highs`, infinite where a run was cut off.
    Nothing is supposed of their distribution. With n differences the k-th least and greatest are
    the ends, where k is the greatest with 2 P(Binomial(n, ½) < k) ≤ alpha (Thompson 1936, Annals of
    Mathematical Statistics 7); without such a k, as below 6 differences at 5%, the ends are
    infinite.
    """
    median = float(np.median(differences))
    count = len(differences)
    two_sided_p = 2 * bdtr(np.arange(count), count, 0.5)
    k = int((two_sided_p <= alpha).sum())
    if k == 0:
        return Interval(median, -math.inf, math.inf)
    return Interval(median, float(np.sort(lows)[k - 1]), float(np.sort(highs)[-k]))


def mean_squares(tables: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the mean squares of seeds, tasks and rest, for tables (seeds × tasks) in the last two
    axes.
    """
    # Two-way analysis of variance with one observation per cell (Fisher 1925).
    seeds, tasks = tables.shape[-2:]
    seed_means = tables.mean(axis=-1, keepdims=True)
    task_means = tables.mean(axis=-2, keepdims=True)
    mean = seed_means.mean(axis=-2, keepdims=True)
    residual = tables - seed_means - task_means + mean

    of_seeds = tasks * ((seed_means - mean) ** 2).sum(axis=(-2, -1)) / (seeds - 1)
    of_tasks = seeds * ((task_means - mean) ** 2).sum(axis=(-2, -1)) / (tasks - 1)
    of_rest = (residual**2).sum(axis=(-2, -1)) / ((seeds - 1) * (tasks - 1))
    return of_seeds, of_tasks, of_rest


def crossed_half(tables: Floats, alpha: float = 0.05) -> Floats:
    """Return the half-width of the interval over seeds and tasks, for tables in the last two
    axes.
    """
    # With d = effect + seed + task + rest, the mean's variance is (MS_seeds + MS_tasks − MS_rest) /
    # (S·J); tasks that deviate by chance less than the rest count as not deviating. The seeds' part
    # has S − 1 degrees of freedom and the tasks' nearly J − 1, so Student's quantile is the mean of
    # the two, weighted by their variances (Cochran and Cox 1950). Measured with the tasks' share of
    # the mean's variance from none to nearly all, with 50 and 200 tasks, 6,000 tables each:
    # coverage of 94.4 to 96.9% at 5 and 8 seeds, and to 97.4% at 3. Satterthwaite's degrees of
    # freedom gave 92.7 to 99.6%: where few seeds happen to agree, they trust them too far.
    seeds, tasks = tables.shape[-2:]
    of_seeds, of_tasks, of_rest = mean_squares(tables)
    tasks_excess = np.maximum(0.0, of_tasks - of_rest)
    seeds_quantile = student_quantile(seeds, alpha)
    tasks_quantile = student_quantile(tasks, alpha)

    total = np.maximum(of_seeds + tasks_excess, 1e-300)  # no division by 0
    of_both = (seeds_quantile * of_seeds + tasks_quantile * tasks_excess) / np.sqrt(total)
    # Never less than Student's interval over the seeds alone, which takes the tasks as given.
    of_seeds_alone = seeds_quantile * np.sqrt(of_seeds)
    return np.asarray(np.maximum(of_seeds_alone, of_both) / math.sqrt(seeds * tasks))


def crossed_interval(table: Floats, alpha: float = 0.05) -> Interval | None:
    """Return the effect to expect from other seeds on other tasks of the kind; None below two seeds
    or tasks, or if all seeds have the same mean.
    """
    if min(table.shape) < 2:
        return None
    of_seeds = mean_squares(table)[0]
    # Seeds that all agree say nothing of how much others would differ; as in `interval_of`, an
    # interval without their part is not believed.
    if math.sqrt(float(of_seeds)) <= ROUNDING * float(np.abs(table).max()):
        return None
    mean = float(table.mean())
    half = float(crossed_half(table, alpha))
    return Interval(mean, mean - half, mean + half)


# Halvings after which the ends of an interval within [0, 1] are exact to float64.
BISECTIONS = 60


def chance_of_improvement(arm: Floats, control: Floats, alpha: float = 0.05) -> Interval:
    """Return the chance that a run of one arm beats a run of the other; ties count half.

    Any seed of one is compared with any of the other. Both have one row per seed and one column
    per taskset; the result is the mean over tasksets.
    """
    # As in rliable (Agarwal et al. 2021, Deep reinforcement learning at the edge of the statistical
    # precipice); with one taskset it is Mann and Whitney's U. The interval is not rliable's
    # bootstrap, which knows of no doubt where every run beat every other, and covered in 55, 86, 88
    # and 92% of 1,000 experiments with 3, 5, 8 and 16 seeds. It is Newcombe's (Statistics in
    # Medicine 25, 2006, the fifth of his methods): all chances θ with |θ̂ − θ| ≤ z √V(θ), where V
    # is Hanley and McNeil's variance. It supposes independent runs, and is too wide where those of
    # one seed resemble each other or tasksets are averaged.
    wins = np.sign(arm[:, None] - control[None, :]).mean(axis=-1) / 2 + 0.5
    chance = float(wins.mean())
    seeds = len(arm)
    z = normal_reach(alpha)

    def is_inside(theta: float) -> bool:
        # Hanley and McNeil (Radiology 143, 1982)
        of_pairs = (1 - theta) / (2 - theta) + theta / (1 + theta)
        variance = theta * (1 - theta) * (1 + (seeds - 1) * of_pairs) / seeds**2
        return abs(chance - theta) <= z * math.sqrt(variance)

    def find_end(outside: float) -> float:
        inside = chance
        for _ in range(BISECTIONS):
            middle = (inside + outside) / 2
            if is_inside(middle):
                inside = middle
            else:
                outside = middle
        return (inside + outside) / 2

    return Interval(chance, find_end(0.0), find_end(1.0))


def interquartile_mean(scores: Floats) -> Floats:
    """Return the mean of the middle half over the last axis; the quarter cut at either end is
    rounded down.
    """
    # As in rliable: scipy.stats.trim_mean with a quarter.
    count = scores.shape[-1]
    cut = count // 4
    middle_half = np.sort(scores, axis=-1)[..., cut : count - cut]
    return np.asarray(middle_half.mean(axis=-1))


def iqm_difference(arm: Floats, control: Floats, alpha: float = 0.05) -> Interval:
    """Return the arm's interquartile mean less the control's.

    Both have one row per seed and one column per taskset.
    """
    # As in rliable, but for the interval. A run is scored on all tasksets and paired with the other
    # arm's by its seed, so whole seeds are drawn again. Percentiles of such draws covered in 75,
    # 85, 89 and 91% of 1,000 experiments with 3, 5, 8 and 16 seeds. So the draws give the standard
    # error, times √(n/(n − 1)) for what drawing from n lacks, and Student's quantile the rest: 95,
    # 96, 95 and 94% of the same experiments.
    seeds = len(arm)

    def difference_of(rows: NDArray[np.int64]) -> Floats:
        flat = (*rows.shape[:-1], -1)  # the scores of all seeds and tasksets together
        arm_mean = interquartile_mean(arm[rows].reshape(flat))
        control_mean = interquartile_mean(control[rows].reshape(flat))
        return arm_mean - control_mean

    difference = float(difference_of(np.arange(seeds)))
    if seeds < 2:
        return Interval(difference, -math.inf, math.inf)
    drawn = difference_of(_drawn_seeds(seeds))
    error = float(drawn.std()) * math.sqrt(seeds / (seeds - 1))
    half = student_quantile(seeds, alpha) * error
    return Interval(difference, difference - half, difference + half)


@lru_cache(maxsize=64)
def _drawn_seeds(seeds: int) -> NDArray[np.int64]:
    return np.random.default_rng(seeds).integers(0, seeds, size=(BOOTSTRAP_DRAWS, seeds))
