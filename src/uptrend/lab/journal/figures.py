"""The pictures of a hypothesis on the page: effects with their intervals, and curves by arm."""

from collections.abc import Sequence
from html import escape

from uptrend.lab.journal.chapter import Chapter
from uptrend.lab.journal.chart import Bar, curves_chart, intervals_chart
from uptrend.lab.journal.curves import Series, by_arm
from uptrend.lab.journal.plots import kinds
from uptrend.lab.journal.verdicts import sign_of, title_of
from uptrend.lab.measure import is_share, name_of
from uptrend.records import Comparison, Direction, Hypothesis, Verdict
from uptrend.stats.formatting import percent, plural

COLORS = 6
"""How many arms have a color of their own."""


def pictures(chapter: Chapter) -> str:
    """Effects with their intervals, and every kind of curve there is."""
    h, verdict = chapter.h, chapter.verdict
    panels = [_intervals(h, verdict)] if verdict and verdict.comparisons else []
    places = {arm.name: place for place, arm in enumerate(sorted(h.arms, key=lambda arm: not arm.is_control))}
    for kind, metric in kinds(h, chapter.curves).items():
        series = [(places[s.arm] % COLORS, s) for s in by_arm(chapter.curves, kind, list(places))]
        chart = curves_chart(series, f"{title_of(metric)} by step", is_share(metric), smooth=kind != "accuracy")
        panels.append(f"<figure><figcaption>{escape(title_of(metric))}</figcaption>{chart}</figure>")
    shown = by_arm(chapter.curves, "accuracy", list(places)) or by_arm(chapter.curves, "reward", list(places))
    return f'<div class="panels">{"".join(panels)}</div>{_legend(shown, places)}' if panels else ""


def _legend(shown: Sequence[Series], places: dict[str, int]) -> str:
    items = [
        f'<li class="a{places[s.arm] % COLORS}"><i></i>{escape(s.arm)} <span class="soft">'
        f"{plural(len(s.seeds), 'seed')}</span></li>"
        for s in shown
    ]
    return f'<ul class="legend">{"".join(items)}</ul>' if items else ""


def _intervals(h: Hypothesis, verdict: Verdict) -> str:
    sign, scale = sign_of(h), 100 if is_share(h.metric) else 1
    places = {arm.name: place for place, arm in enumerate(h.treated, 1)}
    bars = [_bar(h, c, places.get(c.arm, 0) % COLORS) for c in verdict.comparisons]
    marks = [h.smallest, -h.smallest] if h.direction is Direction.EITHER else [sign * h.smallest]
    unit = " (points)" if is_share(h.metric) else ""
    levels = " or ".join(dict.fromkeys(percent(c.level, trim=True) for c in verdict.comparisons))
    chart = intervals_chart(bars, marks, f"effect on {name_of(h.metric)}{unit}", scale, "effects with their intervals")
    return f"<figure><figcaption>Effect <span>{levels} interval, a dot a seed</span></figcaption>{chart}</figure>"


def _bar(h: Hypothesis, c: Comparison, place: int) -> Bar:
    sign = sign_of(h)
    low, high = sorted((sign * c.interval.low, sign * c.interval.high))
    return Bar(place, c.arm, sign * c.interval.effect, low, high, tuple(sign * d for d in c.differences))
