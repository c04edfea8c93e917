"""Verdicts and their figures as the journal shows them, on pages and in pictures; effects are as measured."""

import math

from uptrend.lab.measure import amount, change, interval_text, is_share, name_of
from uptrend.records import Comparison, Direction, Hypothesis, Interval, Status, Verdict
from uptrend.records.metrics import label_of
from uptrend.stats import formatting
from uptrend.stats.formatting import NONE, plural

WAYS = {Direction.UP: "up", Direction.DOWN: "down", Direction.EITHER: "either way"}


def title_of(metric: str) -> str:
    """Return a metric as a heading."""
    label, name = label_of(metric), name_of(metric)
    return name[:1].upper() + name[1:] if label == metric and metric.startswith("eval/") else label


def sign_of(h: Hypothesis) -> int:
    """Return the factor between an effect in the claimed direction and one as measured."""
    return -1 if h.direction is Direction.DOWN else 1


def level(metric: str, value: float | None) -> str:
    """Format a value of a metric: 31.2%, or 0.312."""
    return formatting.level(value, is_share(metric))


def effect(h: Hypothesis, value: float) -> str:
    """Format an effect as measured, with its unit: −4.2 points."""
    unit = " points" if is_share(h.metric) and not math.isnan(value) else ""
    return f"{change(h.metric, sign_of(h) * value)}{unit}"


def span(h: Hypothesis, interval: Interval | None) -> str:
    """Format an interval's two ends as measured: −7.3 to −1.0."""
    return NONE if interval is None else interval_text(h.metric, interval, sign_of(h))


def decisive(h: Hypothesis, verdict: Verdict) -> Comparison | None:
    """Return the comparison that a verdict rests on: of those that agree with it, the one with the greatest effect."""
    agreeing = [c for c in verdict.comparisons if c.status is verdict.status] or verdict.comparisons
    size = abs if h.direction is Direction.EITHER else float
    return max(agreeing, key=lambda c: size(c.interval.effect), default=None)


def more_seeds(verdict: Verdict) -> int | None:
    """Return the number of seeds more that would decide, where that can be told."""
    lacking = [
        c.seeds_needed - len(c.seeds)
        for c in verdict.comparisons
        if c.status is Status.INCONCLUSIVE and c.seeds_needed is not None
    ]
    return max(0, *lacking) or None if lacking else None


def headline(h: Hypothesis, verdict: Verdict) -> str:
    """Return verdict, claim, and the seeds that are missing."""
    if verdict.void:
        return f"DOES NOT COUNT: {h.title}"
    missing = more_seeds(verdict) if verdict.status is Status.INCONCLUSIVE else None
    after = f"; {plural(missing, 'more seed')} would decide" if missing else ""
    return f"{verdict.status.upper()}: {h.title}{after}"


def what_is_compared(h: Hypothesis) -> str:
    """Name the metric, the way it is claimed to go, and the smallest effect that matters."""
    return (
        f"Compared: {name_of(h.metric)}, claimed to go {WAYS[h.direction]}. "
        f"The smallest effect that matters: {amount(h.metric, h.smallest)}."
    )


def caveats(verdict: Verdict) -> list[str]:
    """Return what its sentence leaves out of a verdict: a void, refused arms, an early stop."""
    told = verdict.sentence
    is_silent = verdict.void and verdict.void.rstrip(".") not in told
    said = [f"This verdict does not count: {verdict.void}"] if is_silent else []
    said += [f"The arm {arm} was refused: {why}" for arm, why in verdict.refused.items() if why.rstrip(".") not in told]
    if verdict.stopped_early and "confidence sequence" not in told:
        said.append("It was stopped early; intervals are those of the confidence sequence, which allows for looking.")
    return said


def confidence(verdict: Verdict) -> str:
    """Return a verdict's confidence and the rule behind it."""
    why = f": {verdict.because.rstrip('.')}" if verdict.because else ""
    return f"{verdict.confidence}{why}"
