"""Pictures of a hypothesis: effects with their intervals, and curves by arm; PNG for entries, SVG
for the page.
"""

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from uptrend.lab.journal.stored import ACCURACY, Curves, Point
from uptrend.lab.journal.verdicts import WAYS, sign_of, title_of
from uptrend.lab.measure import curve_of, is_share
from uptrend.present.drawing import COLORS, INK, plotting, save, show_shares, smooth, to_svg
from uptrend.present.formatting import percent, plural
from uptrend.records import Direction, Hypothesis, Verdict
from uptrend.records.metrics import name_of

# Inches of one picture on the page.
PANEL = (4.2, 2.9)


def place_of(hypothesis: Hypothesis, arm: str) -> int:
    """Return the place of an arm's color: the last, gray, is the control's."""
    names = [other.name for other in hypothesis.treated]
    return names.index(arm) % (len(COLORS) - 1) if arm in names else len(COLORS) - 1


def kinds(hypothesis: Hypothesis, curves: Sequence[Curves]) -> dict[str, str]:
    """Return the kinds of curves there are to draw, and the metric of each."""
    named = {"accuracy": ACCURACY, "reward": "reward/mean", "metric": curve_of(hypothesis.metric)}
    return {kind: metric for kind, metric in named.items() if any(getattr(c, kind) for c in curves)}


def arms_with(
    hypothesis: Hypothesis, curves: Sequence[Curves], kind: str
) -> dict[str, list[tuple[Point, ...]]]:
    """Return the curves of one kind, one per seed, by arm, the control first; arms without any are
    left out.
    """
    arms = sorted(hypothesis.arms, key=lambda arm: not arm.is_control)
    found = {
        arm.name: [getattr(c, kind) for c in curves if c.arm == arm.name and getattr(c, kind)]
        for arm in arms
    }
    return {arm: lines for arm, lines in found.items() if lines}


def draw_curves(axes: Any, hypothesis: Hypothesis, curves: Sequence[Curves], kind: str) -> None:
    """Draw curves of one kind: a thin line per seed, a thick one for their mean."""
    metric = kinds(hypothesis, curves)[kind]
    scale = 100 if is_share(metric) else 1
    for arm, lines in arms_with(hypothesis, curves, kind).items():
        color = COLORS[place_of(hypothesis, arm)]
        for line in lines:
            axes.plot(
                [s for s, _ in line],
                [scale * v for _, v in line],
                color=color,
                alpha=0.28,
                linewidth=0.8,
            )
        tables = [dict(line) for line in lines]
        # those that all seeds have
        steps = sorted(set.intersection(*(set(table) for table in tables)))
        values = [scale * (sum(table[step] for table in tables) / len(tables)) for step in steps]
        # of held-out accuracy there are few points, and each is a mean over tasks already
        if kind != "accuracy":
            values = smooth(values)
        axes.plot(
            steps, values, color=color, linewidth=2.4, label=f"{arm} ({plural(len(lines), 'seed')})"
        )
    axes.set_xlabel("step")
    if is_share(metric):
        show_shares(axes, whole=100)


def draw_intervals(axes: Any, hypothesis: Hypothesis, verdict: Verdict) -> None:
    """Draw each arm's effect with its interval, a dot per seed, zero and the smallest effect that
    matters.
    """
    scale = sign_of(hypothesis) * (100 if is_share(hypothesis.metric) else 1)
    compared = verdict.comparisons
    shown = [
        scale * v
        for c in compared
        for v in (c.interval.low, c.interval.high, *c.differences)
        if math.isfinite(v)
    ]
    low = min(0.0, *shown)
    high = max(0.0, *shown)
    room = 0.3 * (high - low) or 1.0
    axes.axvline(0, color=INK, linewidth=1)
    for side in (1, -1) if hypothesis.direction is Direction.EITHER else (1,):
        axes.axvline(
            side * scale * hypothesis.smallest, color=INK, linewidth=1, linestyle=(0, (4, 3))
        )
    above = {"transform": axes.get_xaxis_transform(), "ha": "center", "va": "bottom", "fontsize": 8}
    axes.text(scale * hypothesis.smallest, 1, "smallest that matters", **above)
    for row, c in enumerate(compared):
        color = COLORS[place_of(hypothesis, c.arm)]
        # An interval without an end is drawn to the edge.
        ends = [
            max(low - room, min(high + room, scale * end))
            for end in (c.interval.low, c.interval.high)
        ]
        dots = [scale * difference for difference in c.differences]
        axes.plot(
            dots,
            [row + 0.22] * len(dots),
            "o",
            color=color,
            alpha=0.5,
            markersize=4,
            markeredgewidth=0,
        )
        axes.plot(ends, [row, row], color=color, linewidth=3, solid_capstyle="butt")
        axes.plot(scale * c.interval.effect, row, "D", color=color, markersize=7)
    axes.set_ylim(len(compared) - 0.55, -0.6)
    names = [f"{textwrap.fill(c.arm, 16)}\n{percent(c.level, trim=True)}" for c in compared]
    axes.set_yticks(range(len(compared)), names)
    axes.grid(visible=False)
    unit = "points" if is_share(hypothesis.metric) else hypothesis.metric
    claimed = f"claimed: {WAYS[hypothesis.direction]}; one dot per seed"
    axes.set_xlabel(f"effect on {name_of(hypothesis.metric)} ({unit})\n{claimed}", fontsize=9)


def save_curves(path: Path, hypothesis: Hypothesis, curves: Sequence[Curves]) -> Path:
    """Write a picture with one panel per kind of curve."""
    panels = kinds(hypothesis, curves)
    with plotting() as plt:
        size = (5.2 * len(panels), 3.6)
        figure, grid = plt.subplots(
            1, len(panels), figsize=size, layout="constrained", squeeze=False
        )
        for axes, (kind, metric) in zip(grid.flat, panels.items(), strict=True):
            draw_curves(axes, hypothesis, curves, kind)
            axes.set_title(title_of(metric))
        handles, labels = grid.flat[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(labels)))
        return save(figure, path)


def save_intervals(path: Path, hypothesis: Hypothesis, verdict: Verdict) -> Path:
    """Write a picture of the effects."""
    with plotting() as plt:
        figure, axes = plt.subplots(
            figsize=(7.2, 1.3 + 0.75 * len(verdict.comparisons)), layout="constrained"
        )
        draw_intervals(axes, hypothesis, verdict)
        return save(figure, path)


def panels(
    hypothesis: Hypothesis, verdict: Verdict | None, curves: Sequence[Curves]
) -> list[tuple[str, str]]:
    """Return titles and SVG of a hypothesis's pictures on the page: effects, and every kind of
    curve there is.
    """
    made = list[tuple[str, str]]()
    with plotting() as plt:
        if verdict and verdict.comparisons:
            height = max(PANEL[1], 0.8 + 0.7 * len(verdict.comparisons))
            figure, axes = plt.subplots(figsize=(PANEL[0], height), layout="constrained")
            draw_intervals(axes, hypothesis, verdict)
            made.append(("Effect", to_svg(figure, "effects with their intervals")))
        for kind, metric in kinds(hypothesis, curves).items():
            figure, axes = plt.subplots(figsize=PANEL, layout="constrained")
            draw_curves(axes, hypothesis, curves, kind)
            made.append((title_of(metric), to_svg(figure, f"{title_of(metric)} by step")))
    return made


def strip(ends: Sequence[float], reach: float, both: bool) -> str:
    """Draw one interval (low, effect, high) on a line, in units of the smallest effect that
    matters: a table's cell.
    """
    low, effect, high = (max(-reach, min(reach, end)) for end in ends)
    with plotting() as plt:
        figure = plt.figure(figsize=(2.6, 0.26))
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        axes.axvline(0, color=INK, linewidth=1)
        for mark in (1, -1) if both else (1,):
            axes.axvline(mark, color=INK, linewidth=1, linestyle=(0, (4, 3)), alpha=0.6)
        axes.plot([low, high], [0, 0], color=INK, linewidth=2.5, solid_capstyle="butt")
        axes.plot(effect, 0, "o", color=INK, markersize=7)
        axes.set_xlim(-1.08 * reach, 1.08 * reach)
        said = (
            f"effect {ends[1]:+.2f} times the smallest that matters, from {ends[0]:+.2f} to"
            f" {ends[2]:+.2f}"
        )
        return to_svg(figure, said)
