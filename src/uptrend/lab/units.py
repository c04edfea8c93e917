"""Metrics and their differences in words: shares in points, other metrics in their own unit."""

from uptrend.records.hypothesis import Interval
from uptrend.records.metrics import find_metric
from uptrend.stats import formatting


def name_of(metric: str) -> str:
    """A metric in words: held-out accuracy."""
    kind, _, part = metric.removeprefix("eval/").partition("/")
    if not metric.startswith("eval/"):
        return metric
    return f"the held-out reward's part {part}" if kind == "part" else f"held-out {kind}"


def change(metric: str, value: float) -> str:
    """A difference with its sign, without its unit: +6.3, for points, or +0.063."""
    return formatting.change(value, is_share(metric))


def amount(metric: str, value: float) -> str:
    """A size with its unit: 5 points."""
    return f"{100 * value:g} points" if is_share(metric) else f"{value:g}"


def is_share(metric: str) -> bool:
    """Return True for a share, which is shown in percent and compared in points."""
    row = find_metric(metric)
    return row is not None and row.is_share


def effect_text(metric: str, effect: float) -> str:
    """An effect with its unit: +6.3 points of held-out accuracy."""
    return f"{change(metric, effect)}{' points' if is_share(metric) else ''} of {name_of(metric)}"


def interval_text(metric: str, interval: Interval, sign: float) -> str:
    """Its two ends as measured, the lesser first: +2.1 to +10.5."""
    ends = sorted((sign * interval.low, sign * interval.high))
    return formatting.interval(ends[0], ends[1], is_share(metric))
