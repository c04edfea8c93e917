"""Figures as people read them: shares in points, other metrics in their own unit, p without its zero."""

import math

from uptrend.records.metrics import find_metric
from uptrend.records.verdict import Interval


def name_of(metric: str) -> str:
    """A metric in words: held-out accuracy."""
    kind, _, part = metric.removeprefix("eval/").partition("/")
    if not metric.startswith("eval/"):
        return metric
    return f"the held-out reward's part {part}" if kind == "part" else f"held-out {kind}"


def change(metric: str, value: float) -> str:
    """A difference with its sign, without its unit: +6.3, for points, or +0.063."""
    if math.isinf(value):
        return "+∞" if value > 0 else "−∞"
    text = f"{100 * value:+.1f}" if is_share(metric) else f"{value:+.3g}"
    return "0.0" if text in ("+0.0", "-0.0") else text.replace("-", "−")


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
    return f"{change(metric, ends[0])} to {change(metric, ends[1])}"


def p_text(p: float) -> str:
    """p .009, p < .001, p 1."""
    if p < 0.001:
        return "p < .001"
    text = f"{p:.3f}" if p < 0.0995 else f"{p:.2f}"
    return f"p {text.removeprefix('0')}" if p < 0.995 else "p 1"


def least_text(p: float) -> str:
    """A p that can't be undercut, to three digits: .0625."""
    return f"{float(f'{p:.3g}')}".removeprefix("0")


def level_text(level: float) -> str:
    """95%, 97.5%, 98.3%."""
    return f"{round(100 * level, 1):g}%"
