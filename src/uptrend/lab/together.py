"""Several hypotheses judged together: a validated one must survive Benjamini and Hochberg."""

from collections.abc import Sequence
from dataclasses import replace

from uptrend.lab.confidence import MANY_SEEDS
from uptrend.records.finding import Confidence
from uptrend.records.hypothesis import Comparison, Status, Verdict
from uptrend.stats.comparison import benjamini_hochberg
from uptrend.stats.formatting import p_value

RATE = 0.05
"""The share of false ones among the validated that is accepted."""


def adjust(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The verdicts with adjusted p; a validated one whose adjusted p is above 5% becomes inconclusive."""
    counted = [one for one in verdicts if one.comparisons and not one.void]
    if len(counted) < 2:
        return list(verdicts)
    adjusted = dict(zip((id(one) for one in counted), benjamini_hochberg([_p_of(one) for one in counted]), strict=True))
    return [_adjusted(one, adjusted[id(one)], len(counted)) if id(one) in adjusted else one for one in verdicts]


def _in_alphas(comparison: Comparison) -> float:
    """A p on the scale where 5% is the level that it was judged at: shared among arms, or halved for early stops."""
    return min(1.0, comparison.p * RATE / (1 - comparison.level))


def _p_of(verdict: Verdict) -> float:
    """The hypothesis's p: its best arm's. What went against the claim, and was not validated, is no evidence for it."""
    claims = [one for one in verdict.comparisons if one.status is Status.VALIDATED or one.interval.effect > 0]
    return min((_in_alphas(one) for one in claims), default=1.0)


def _adjusted(verdict: Verdict, p: float, count: int) -> Verdict:
    survives = p <= RATE
    comparisons = tuple(
        replace(
            one,
            p_adjusted=max(p, _in_alphas(one)),
            status=one.status if survives or one.status is not Status.VALIDATED else Status.INCONCLUSIVE,
        )
        for one in verdict.comparisons
    )
    verdict = replace(verdict, comparisons=comparisons)
    few = min(len(one.seeds) for one in comparisons) < MANY_SEEDS
    asks = f" Run {MANY_SEEDS} seeds or more where several hypotheses are judged together." if few else ""
    if verdict.status is not Status.VALIDATED:
        return verdict
    if survives:
        return replace(verdict, sentence=f"{verdict.sentence} Among {count} hypotheses, adjusted p {p_value(p)}.{asks}")
    reason = f"validated by itself, and not among {count} hypotheses judged together (adjusted p {p_value(p)})"
    return replace(
        verdict,
        status=Status.INCONCLUSIVE,
        confidence=Confidence.LOW,
        because=reason,
        sentence=f"Inconclusive: {reason}. By itself: {verdict.sentence}{asks}",
    )
