"""Curves and intervals as SVG; colors are the page's, by the arm's class (a0 is the control)."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from uptrend.lab.journal.axes import BOTTOM, HEIGHT, RIGHT, WIDTH, Frame, below, grid, padded, svg
from uptrend.lab.journal.curves import Point, Series
from uptrend.stats.drawing import moving_mean


def curves_chart(series: Sequence[tuple[int, Series]], title: str, percent: bool, smooth: bool) -> str:
    """A thin line a seed and a thick one for their mean, by arm."""
    points = [point for _, one in series for line in one.seeds for point in line]
    frame = Frame((min(p[0] for p in points), max(p[0] for p in points)), padded(p[1] for p in points))
    lines = [_polyline(frame, line, f"seed a{place}", one.arm) for place, one in series for line in one.seeds]
    lines += [_polyline(frame, _smooth(one.mean, smooth), f"mean a{place}", one.arm) for place, one in series]
    return svg([*grid(frame, percent), *lines, below(frame, "step")], title)


def _smooth(points: Sequence[Point], smooth: bool) -> list[Point]:
    values = [value for _, value in points]
    means = moving_mean(values, max(1, len(values) // 15)) if smooth else values
    return [(step, mean) for (step, _), mean in zip(points, means, strict=True)]


def _polyline(frame: Frame, points: Sequence[Point], style: str, name: str) -> str:
    places = " ".join(f"{frame.x(step):.1f},{frame.y(value):.1f}" for step, value in points)
    return f'<polyline class="{style}" points="{places}"><title>{escape(name)}</title></polyline>'


@dataclass(frozen=True)
class Bar:
    """One arm's effect, as measured."""

    place: int
    """Which arm it is of: its color."""
    name: str
    """What it is called."""
    effect: float
    low: float
    high: float
    seeds: tuple[float, ...]
    """The effect of each seed."""


ROW = 52
"""The least height of an arm's row."""
HEAD = 22
"""The room above them, for the names of lines."""


def intervals_chart(bars: Sequence[Bar], marks: Sequence[float], name: str, scale: float, title: str) -> str:
    """Each arm's effect with its interval and a dot a seed; zero is a line, `marks` are dashed ones."""
    ends = [0.0, *marks, *(v for bar in bars for v in (bar.low, bar.high, *bar.seeds))]
    row = max(ROW, (HEIGHT - HEAD - BOTTOM) // len(bars))
    frame = Frame(padded(ends), (0.0, 1.0), HEAD + row * len(bars) + BOTTOM, left=RIGHT, top=HEAD)
    drawn = [_upright(frame, 0.0, "zero", "0")]
    drawn += [_upright(frame, mark, "least", "smallest that matters" if mark == marks[0] else "") for mark in marks]
    drawn += [_bar(frame, bar, frame.top + row * place + (row - ROW) / 2) for place, bar in enumerate(bars)]
    return svg([*drawn, below(frame, name, scale)], title, frame.height)


def _upright(frame: Frame, value: float, style: str, said: str) -> str:
    x = frame.x(value)
    anchor = "end" if x > WIDTH * 0.66 else "start" if x < WIDTH * 0.33 else "middle"
    text = f'<text class="{style}-name" x="{x:.1f}" y="14" text-anchor="{anchor}">{said}</text>' if said != "0" else ""
    return f'<path class="{style}" d="M{x:.1f} {frame.top - 2}V{frame.floor}"/>{text}'


def _bar(frame: Frame, bar: Bar, top: float) -> str:
    line, dots = top + 26, top + 38
    low, high = (frame.x(max(frame.across[0], min(frame.across[1], end))) for end in (bar.low, bar.high))
    seeds = "".join(f'<circle class="dot" cx="{frame.x(seed):.1f}" cy="{dots}" r="3"/>' for seed in bar.seeds)
    caps = f"M{low:.1f} {line - 4}v8M{high:.1f} {line - 4}v8"
    return (
        f'<g class="a{bar.place}"><text class="arm" x="{frame.left}" y="{top + 14}">{escape(bar.name)}</text>'
        f'<path class="bar" d="M{low:.1f} {line}H{high:.1f}{caps}"/>{seeds}'
        f'<circle class="effect" cx="{frame.x(bar.effect):.1f}" cy="{line}" r="5"/></g>'
    )


def strip(low: float, effect: float, high: float, reach: float, both: bool) -> str:
    """One interval on a line of its own, in units of the smallest effect that matters: for a table's cell."""
    ends = [_percent(max(-reach, min(reach, end)), reach) for end in (low, high)]
    zero, point = _percent(0.0, reach), _percent(max(-reach, min(reach, effect)), reach)
    marks = [_percent(mark, reach) for mark in ((1.0, -1.0) if both else (1.0,))]
    least = "".join(f'<line class="least" x1="{x}" x2="{x}" y1="0" y2="22"/>' for x in marks)
    return (
        f'<svg class="strip" role="img" aria-label="effect {effect:+.2f} times the smallest that matters, '
        f'from {low:+.2f} to {high:+.2f}" width="100%" height="22">'
        f'<line class="zero" x1="{zero}" x2="{zero}" y1="0" y2="22"/>{least}'
        f'<line class="bar" x1="{ends[0]}" x2="{ends[1]}" y1="11" y2="11"/>'
        f'<circle class="effect" cx="{point}" cy="11" r="4.5"/></svg>'
    )


def _percent(value: float, reach: float) -> str:
    return f"{50 + 46 * value / reach:.1f}%"
