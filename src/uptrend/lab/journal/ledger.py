"""What is known, a line a hypothesis: its verdict, and its effect beside the smallest that matters."""

import math
from collections.abc import Sequence
from html import escape

from uptrend.lab.journal.article import chip
from uptrend.lab.journal.chapter import Chapter
from uptrend.lab.journal.chart import strip
from uptrend.lab.journal.verdicts import decisive, level
from uptrend.records import Direction

NEAREST, FURTHEST = 2.0, 8.0
"""Between what the strips of the ledger reach, in units of the smallest effect that matters."""


def ledger(told: Sequence[Chapter]) -> str:
    """Every hypothesis in a line, its effect beside the smallest that matters."""
    if not told:
        return '<section><h2>What is known</h2><p class="soft">No hypotheses yet.</p></section>'
    head = "".join(f'<th scope="col">{name}</th>' for name in ("Hypothesis", "Verdict", "From → to", "Effect"))
    rows = "".join(_line(chapter, _reach(told)) for chapter in told)
    legend = (
        '<p class="legend-line">Effect: the interval of the deciding arm; as claimed is right of the solid '
        "line; the dashed line is the smallest effect that matters.</p>"
        if any(chapter.verdict for chapter in told)
        else ""
    )
    return (
        '<section><h2 id="known">What is known</h2>'
        f'<table class="ledger"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{legend}</section>'
    )


def _line(chapter: Chapter, reach: float) -> str:
    h, verdict = chapter.h, chapter.verdict
    ends = _ends(chapter)
    best = decisive(h, verdict) if verdict else None
    levels = f"{level(h.metric, best.control_mean)} → {level(h.metric, best.arm_mean)}" if best else ""
    drawn = strip(*ends, reach, both=h.direction is Direction.EITHER) if ends else ""
    return (
        f'<tr><td class="what"><a href="#{escape(h.id)}"><span class="id">{escape(h.id.upper())}</span>'
        f"{escape(h.title)}</a></td><td>{chip(h.status)}</td><td>{levels}</td>"
        f'<td class="where {h.status}">{drawn}</td></tr>'
    )


def _ends(chapter: Chapter) -> tuple[float, float, float] | None:
    """The best arm's interval and its effect, in units of the smallest effect that matters."""
    best = decisive(chapter.h, chapter.verdict) if chapter.verdict else None
    if best is None:
        return None
    unit, interval = chapter.h.smallest, best.interval
    return interval.low / unit, interval.effect / unit, interval.high / unit


def _reach(told: Sequence[Chapter]) -> float:
    """How far the strips reach either way, so that every interval is seen unless it is very wide."""
    ends = [abs(end) for chapter in told for end in _ends(chapter) or () if math.isfinite(end)]
    return min(FURTHEST, max(NEAREST, *ends, 0.0))
