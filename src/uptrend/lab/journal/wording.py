"""How the journal says verdicts and figures, on pages and in pictures alike; effects are told as measured."""

import math
from datetime import timedelta

from uptrend.lab.units import amount, change, interval_text, is_share, name_of
from uptrend.records import Comparison, Direction, Hypothesis, Interval, Status, Verdict
from uptrend.records.metrics import label_of

NONE = "–"
WAYS = {Direction.UP: "up", Direction.DOWN: "down", Direction.EITHER: "either way"}


def title_of(metric: str) -> str:
    """A metric as a heading."""
    label, name = label_of(metric), name_of(metric)
    return name[:1].upper() + name[1:] if label == metric and metric.startswith("eval/") else label


def sign_of(h: Hypothesis) -> int:
    """What turns an effect in the claimed direction into one as measured, and back."""
    return -1 if h.direction is Direction.DOWN else 1


def level(metric: str, value: float | None) -> str:
    """A value of a metric: 31.2%, or 0.312."""
    if value is None or not math.isfinite(value):
        return NONE
    return f"{100 * value:.1f}%" if is_share(metric) else f"{value:.3g}".replace("-", "−")


def effect(h: Hypothesis, value: float) -> str:
    """An effect as measured, with its unit: −4.2 points."""
    if math.isnan(value):
        return NONE
    return f"{change(h.metric, sign_of(h) * value)}{' points' if is_share(h.metric) else ''}"


def span(h: Hypothesis, interval: Interval | None) -> str:
    """An interval's two ends as measured: −7.3 to −1.0."""
    if interval is None or math.isnan(interval.low) or math.isnan(interval.high):
        return NONE
    return interval_text(h.metric, interval, sign_of(h))


def chance(p: float | None) -> str:
    """A p-value in a table."""
    if p is None or math.isnan(p):
        return NONE
    return "<.001" if p < 0.001 else f"{p:.3f}".removeprefix("0") if p < 0.9995 else "1"


def percent(share: float | None) -> str:
    """A share in whole per cent."""
    return NONE if share is None or math.isnan(share) else f"{100 * share:.0f}%"


def duration(seconds: float | None) -> str:
    """How long something took, for people: 1:02:03, 4 min 10 s, 12 s."""
    if seconds is None:
        return NONE
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"
    return str(timedelta(seconds=round(seconds)))


def decisive(h: Hypothesis, verdict: Verdict) -> Comparison | None:
    """The comparison that a verdict rests on: of those that say the same, the one with the greatest effect."""
    agreeing = [c for c in verdict.comparisons if c.status is verdict.status] or verdict.comparisons
    size = abs if h.direction is Direction.EITHER else float
    return max(agreeing, key=lambda c: size(c.interval.effect), default=None)


def more_seeds(verdict: Verdict) -> int | None:
    """How many seeds more would decide, where that can be told."""
    lacking = [
        c.seeds_needed - len(c.seeds)
        for c in verdict.comparisons
        if c.status is Status.INCONCLUSIVE and c.seeds_needed is not None
    ]
    return max(0, *lacking) or None if lacking else None


def headline(h: Hypothesis, verdict: Verdict) -> str:
    """The verdict first, then the claim; what is missing is said plainly."""
    if verdict.void:
        return f"DOES NOT COUNT: {h.title}"
    missing = more_seeds(verdict) if verdict.status is Status.INCONCLUSIVE else None
    after = f"; {missing} more seed{'s' * (missing > 1)} would decide" if missing else ""
    return f"{verdict.status.upper()}: {h.title}{after}"


def what_is_compared(h: Hypothesis) -> str:
    """The metric, the way it is claimed to go, and the smallest effect that matters."""
    return (
        f"Compared: {name_of(h.metric)}, claimed to go {WAYS[h.direction]}. "
        f"The smallest effect that matters: {amount(h.metric, h.smallest)}."
    )


def caveats(verdict: Verdict) -> list[str]:
    """What must be said beside a verdict, unless its sentence says so: a void, refused arms, an early stop."""
    told = verdict.sentence
    is_silent = verdict.void and verdict.void.rstrip(".") not in told
    said = [f"This verdict does not count: {verdict.void}"] if is_silent else []
    said += [f"The arm {arm} was refused: {why}" for arm, why in verdict.refused.items() if why.rstrip(".") not in told]
    if verdict.stopped_early and "confidence sequence" not in told:
        said.append("It was stopped early; intervals are those of the confidence sequence, which allows for looking.")
    return said


def confidence(verdict: Verdict) -> str:
    """How much it bears, and by which rule."""
    why = f": {verdict.because.rstrip('.')}" if verdict.because else ""
    return f"{verdict.confidence}{why}"
