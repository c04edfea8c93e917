"""Pictures of a hypothesis: effects with their intervals, and curves by arm; PNG for entries, SVG
for the page.
"""

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from uptrend.doctor.trend import REWARD_METRIC
from uptrend.lab.journal.stored import ACCURACY_METRIC, Curves, Point
from uptrend.lab.journal.verdicts import DIRECTION_WORDS, sign_of, title_of
from uptrend.lab.measure import curve_of, is_share
from uptrend.present.drawing import COLORS, INK, plotting, save, show_shares, smooth, to_svg
from uptrend.present.formatting import percent, plural
from uptrend.records import Direction, Hypothesis, Verdict
from uptrend.records.metrics import name_of

# Width and height in inches of one picture on the page.
PANEL_SIZE_IN = (4.2, 2.9)
# Pattern of a line at the smallest effect that matters: dashes of 4 line widths, gaps of 3.
DASH_PATTERN = (0, (4, 3))


def color_of(hypothesis: Hypothesis, arm: str) -> int:
    """Return the index of an arm's color: the last, gray, is the control's."""
    names = [other.name for other in hypothesis.treated]
    gray = len(COLORS) - 1
    return names.index(arm) % gray if arm in names else gray


def curve_metrics(hypothesis: Hypothesis, curves: Sequence[Curves]) -> dict[str, str]:
    """Return the metric of each kind of curve there is to draw; kinds are fields of `Curves`."""
    metrics = {
        "accuracy": ACCURACY_METRIC,
        "reward": REWARD_METRIC,
        "metric": curve_of(hypothesis.metric),
    }
    drawn: dict[str, str] = {}
    for kind, metric in metrics.items():
        if any(getattr(run, kind) for run in curves):
            drawn[kind] = metric
    return drawn


def arms_with(
    hypothesis: Hypothesis, curves: Sequence[Curves], kind: str
) -> dict[str, list[tuple[Point, ...]]]:
    """Return the curves of one kind, one per seed, by arm, the control first; arms without any are
    left out.
    """
    by_arm: dict[str, list[tuple[Point, ...]]] = {}
    for arm in sorted(hypothesis.arms, key=lambda arm: not arm.is_control):
        of_arm = [getattr(run, kind) for run in curves if run.arm == arm.name]
        lines = [line for line in of_arm if line]
        if lines:
            by_arm[arm.name] = lines
    return by_arm


def draw_curves(axes: Any, hypothesis: Hypothesis, curves: Sequence[Curves], kind: str) -> None:
    """Draw curves of one kind: a thin line per seed, a thick one for their mean."""
    metric = curve_metrics(hypothesis, curves)[kind]
    scale = 100 if is_share(metric) else 1
    for arm, lines in arms_with(hypothesis, curves, kind).items():
        color = COLORS[color_of(hypothesis, arm)]
        for line in lines:
            steps = [step for step, _ in line]
            values = [scale * value for _, value in line]
            axes.plot(steps, values, color=color, alpha=0.28, linewidth=0.8)

        value_by_step = [dict(line) for line in lines]
        common_steps = sorted(set(value_by_step[0]).intersection(*value_by_step))
        means: list[float] = []
        for step in common_steps:
            total = sum(values_of_seed[step] for values_of_seed in value_by_step)
            means.append(scale * (total / len(lines)))
        # Of held-out accuracy there are few points, and each is a mean over tasks already.
        if kind != "accuracy":
            means = smooth(means)
        label = f"{arm} ({plural(len(lines), 'seed')})"
        axes.plot(common_steps, means, color=color, linewidth=2.4, label=label)
    axes.set_xlabel("step")
    if is_share(metric):
        show_shares(axes, whole=100)


def draw_intervals(axes: Any, hypothesis: Hypothesis, verdict: Verdict) -> None:
    """Draw each arm's effect with its interval, a dot per seed, zero and the smallest effect that
    matters.
    """
    comparisons = verdict.comparisons
    scale = sign_of(hypothesis)
    if is_share(hypothesis.metric):
        scale *= 100

    # An interval without an end is drawn past all finite values.
    values = [0.0]
    for comparison in comparisons:
        interval = comparison.interval
        for value in (interval.low, interval.high, *comparison.differences):
            if math.isfinite(value):
                values.append(scale * value)
    margin = 0.3 * (max(values) - min(values)) or 1.0
    left = min(values) - margin
    right = max(values) + margin

    axes.axvline(0, color=INK, linewidth=1)
    smallest = scale * hypothesis.smallest
    sides = (1, -1) if hypothesis.direction is Direction.EITHER else (1,)
    for side in sides:
        axes.axvline(side * smallest, color=INK, linewidth=1, linestyle=DASH_PATTERN)
    axes.text(
        smallest,
        1,
        "smallest that matters",
        transform=axes.get_xaxis_transform(),
        ha="center",
        va="bottom",
        fontsize=8,
    )

    names: list[str] = []
    for row, comparison in enumerate(comparisons):
        color = COLORS[color_of(hypothesis, comparison.arm)]
        interval = comparison.interval
        low = max(left, min(right, scale * interval.low))
        high = max(left, min(right, scale * interval.high))
        seed_effects = [scale * difference for difference in comparison.differences]
        axes.plot(
            seed_effects,
            [row + 0.22] * len(seed_effects),
            "o",
            color=color,
            alpha=0.5,
            markersize=4,
            markeredgewidth=0,
        )
        axes.plot([low, high], [row, row], color=color, linewidth=3, solid_capstyle="butt")
        axes.plot(scale * interval.effect, row, "D", color=color, markersize=7)
        level = percent(comparison.level, trim=True)
        names.append(f"{textwrap.fill(comparison.arm, 16)}\n{level}")

    axes.set_ylim(len(comparisons) - 0.55, -0.6)
    axes.set_yticks(range(len(comparisons)), names)
    axes.grid(visible=False)
    unit = "points" if is_share(hypothesis.metric) else hypothesis.metric
    effect = f"effect on {name_of(hypothesis.metric)} ({unit})"
    claim = f"claimed: {DIRECTION_WORDS[hypothesis.direction]}; one dot per seed"
    axes.set_xlabel(f"{effect}\n{claim}", fontsize=9)


def save_curves(path: Path, hypothesis: Hypothesis, curves: Sequence[Curves]) -> Path:
    """Write a picture with one panel per kind of curve."""
    metrics = curve_metrics(hypothesis, curves)
    with plotting() as plt:
        n_panels = len(metrics)
        size = (5.2 * n_panels, 3.6)
        figure, grid = plt.subplots(1, n_panels, figsize=size, layout="constrained", squeeze=False)
        for axes, (kind, metric) in zip(grid.flat, metrics.items(), strict=True):
            draw_curves(axes, hypothesis, curves, kind)
            axes.set_title(title_of(metric))
        handles, labels = grid.flat[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(labels)))
        return save(figure, path)


def save_intervals(path: Path, hypothesis: Hypothesis, verdict: Verdict) -> Path:
    """Write a picture of the effects."""
    with plotting() as plt:
        height = 1.3 + 0.75 * len(verdict.comparisons)
        figure, axes = plt.subplots(figsize=(7.2, height), layout="constrained")
        draw_intervals(axes, hypothesis, verdict)
        return save(figure, path)


def panels(
    hypothesis: Hypothesis, verdict: Verdict | None, curves: Sequence[Curves]
) -> list[tuple[str, str]]:
    """Return titles and SVG of a hypothesis's pictures on the page: effects, and every kind of
    curve there is.
    """
    pictures: list[tuple[str, str]] = []
    width, min_height = PANEL_SIZE_IN
    with plotting() as plt:
        if verdict and verdict.comparisons:
            height = max(min_height, 0.8 + 0.7 * len(verdict.comparisons))
            figure, axes = plt.subplots(figsize=(width, height), layout="constrained")
            draw_intervals(axes, hypothesis, verdict)
            pictures.append(("Effect", to_svg(figure, "effects with their intervals")))
        for kind, metric in curve_metrics(hypothesis, curves).items():
            figure, axes = plt.subplots(figsize=PANEL_SIZE_IN, layout="constrained")
            draw_curves(axes, hypothesis, curves, kind)
            title = title_of(metric)
            pictures.append((title, to_svg(figure, f"{title} by step")))
    return pictures


def strip(ends: Sequence[float], reach: float, either: bool) -> str:
    """Draw one interval (low, effect, high) on a line, in units of the smallest effect that
    matters: a table's cell. `either` marks this effect on both sides of zero.
    """
    low, effect, high = [max(-reach, min(reach, end)) for end in ends]
    with plotting() as plt:
        figure = plt.figure(figsize=(2.6, 0.26))
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        axes.axvline(0, color=INK, linewidth=1)
        for smallest in (1, -1) if either else (1,):
            axes.axvline(smallest, color=INK, linewidth=1, linestyle=DASH_PATTERN, alpha=0.6)
        axes.plot([low, high], [0, 0], color=INK, linewidth=2.5, solid_capstyle="butt")
        axes.plot(effect, 0, "o", color=INK, markersize=7)
        axes.set_xlim(-1.08 * reach, 1.08 * reach)
        label = (
            f"effect {ends[1]:+.2f} times the smallest that matters, from {ends[0]:+.2f} to"
            f" {ends[2]:+.2f}"
        )
        return to_svg(figure, label)
