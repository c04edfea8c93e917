"""How much a verdict bears, by rules that docs/verdicts.md states."""

from collections.abc import Sequence

import numpy as np

from uptrend.lab.rules import alpha_of, towards
from uptrend.records.finding import Confidence
from uptrend.records.hypothesis import Comparison, Direction, Hypothesis, Status
from uptrend.stats.comparison import outliers, sign_flip
from uptrend.stats.formatting import p_value
from uptrend.stats.intervals import spread_of

MANY_SEEDS = 8
ENOUGH_SEEDS = 5


def confidence_of(
    h: Hypothesis, status: Status, deciding: Sequence[Comparison], blemishes: Sequence[str]
) -> tuple[Confidence, str]:
    """The confidence, and which rule gave it; of several arms that decide together the weakest counts."""
    if status is Status.INCONCLUSIVE:
        return Confidence.LOW, "neither criterion is met"
    graded = [_of_one(h, comparison, blemishes) for comparison in deciding]
    ranked = sorted(graded, key=lambda one: list(Confidence).index(one[0]))
    # One arm is enough to validate, and all are needed to invalidate.
    return ranked[0] if status is Status.VALIDATED else ranked[-1]


def _of_one(h: Hypothesis, comparison: Comparison, blemishes: Sequence[str]) -> tuple[Confidence, str]:
    seeds = len(comparison.seeds)
    p = _sign_flip_of_claim(h, comparison)
    if seeds < ENOUGH_SEEDS:
        return Confidence.LOW, f"{seeds} paired seeds; {ENOUGH_SEEDS} are the least for medium"
    differences = np.array(comparison.differences)
    if spread_of(differences).deviation == 0:
        return Confidence.LOW, "the difference is the same in all seeds, so that its spread is unknown"
    if outliers(differences):
        return Confidence.LOW, "one seed stands apart from the others, which no interval over seeds allows for"
    if p > h.alpha:
        return Confidence.LOW, f"the exact sign-flip test does not agree (p {p_value(p)} one-sided)"
    lacking = _lacking(h, comparison, p, seeds) + list(blemishes)
    if lacking:
        return Confidence.MEDIUM, "; ".join(lacking)
    tasks = ", so does the interval over tasks" if comparison.tasks_too else "; the metric has no tasks to cross"
    return Confidence.HIGH, f"{seeds} paired seeds, the exact sign-flip test agrees{tasks}, nothing was left out"


def _lacking(h: Hypothesis, comparison: Comparison, p: float, seeds: int) -> list[str]:
    """What keeps a verdict from high confidence."""
    said = []
    if seeds < MANY_SEEDS:
        said.append(f"{seeds} paired seeds; {MANY_SEEDS} are the least for high")
    elif 2 * p > alpha_of(h):
        said.append(f"the exact sign-flip test agrees one-sided only (p {p_value(p)})")
    if comparison.tasks_too is not None and not _tasks_agree(h, comparison):
        said.append("it holds on these tasks; over tasks too the interval does not decide")
    return said


def _tasks_agree(h: Hypothesis, comparison: Comparison) -> bool:
    assert comparison.tasks_too is not None
    seen = towards(h, comparison.tasks_too)
    return seen["high"] < h.smallest if comparison.status is Status.INVALIDATED else seen["low"] > 0


def _sign_flip_of_claim(h: Hypothesis, comparison: Comparison) -> float:
    """One-sided: of no effect where one was validated, of the smallest that matters where it was excluded."""
    if comparison.status is Status.VALIDATED:
        return comparison.sign_flip
    differences = np.array(comparison.differences)
    if h.direction is Direction.EITHER and differences.mean() < 0:
        differences = -differences
    return sign_flip(differences - h.smallest).down
