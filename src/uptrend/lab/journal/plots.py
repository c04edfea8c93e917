"""Curves and intervals as PNG pictures; matplotlib is asked for only here, and only when a picture is due."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from uptrend.lab.journal.axes import padded
from uptrend.lab.journal.curves import Curves, Series, by_arm
from uptrend.lab.journal.verdicts import WAYS, sign_of, title_of
from uptrend.lab.units import is_share, name_of
from uptrend.records import Direction, Hypothesis, MissingExtra, Verdict
from uptrend.stats.drawing import COLORS, INK, STYLE, moving_mean
from uptrend.stats.formatting import percent

CONTROL, *ARMS = COLORS[-1], *COLORS[:-1]
"""The control is gray; arms have colors."""
KINDS = {"accuracy": "eval/accuracy", "reward": "reward/mean"}


def pyplot() -> Any:
    """matplotlib's pyplot, drawing to files."""
    try:
        import matplotlib
    except ImportError:
        raise MissingExtra("matplotlib", "plot") from None
    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    return plt


def color_of(h: Hypothesis, arm: str) -> str:
    """An arm's color in every picture of its hypothesis."""
    others = [other.name for other in h.treated]
    return CONTROL if arm not in others else ARMS[others.index(arm) % len(ARMS)]


def kinds(h: Hypothesis, curves: Sequence[Curves]) -> dict[str, str]:
    """Which curves there are to draw, and the metric of each."""
    named = KINDS | {"metric": h.metric}
    return {kind: metric for kind, metric in named.items() if any(getattr(c, kind) for c in curves)}


def draw_curves(plt: Any, h: Hypothesis, curves: Sequence[Curves], path: Path, arms: Sequence[str] = ()) -> Path:
    """A panel a kind of curve: a thin line a seed, a thick one for their mean."""
    panels = kinds(h, curves)
    shown = [arm.name for arm in h.arms if not arms or arm.name in arms]
    with plt.rc_context(STYLE):
        figure, grid = plt.subplots(
            1, len(panels), figsize=(5.2 * len(panels), 3.6), layout="constrained", squeeze=False
        )
        for axes, (kind, metric) in zip(grid.flat, panels.items(), strict=True):
            for series in by_arm(curves, kind, shown):
                _draw_series(axes, series, metric, color_of(h, series.arm), smooth=kind != "accuracy")
            axes.set_title(title_of(metric))
            axes.set_xlabel("step")
            if is_share(metric):
                axes.yaxis.set_major_formatter("{x:.0f}%")
        handles, labels = grid.flat[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(labels)))
        return _saved(plt, figure, path)


def _draw_series(axes: Any, series: Series, metric: str, color: str, smooth: bool) -> None:
    scale = 100 if is_share(metric) else 1
    for line in series.seeds:
        axes.plot(*_scaled(line, scale), color=color, alpha=0.28, linewidth=0.8)
    steps, means = _scaled(series.mean, scale)
    means = moving_mean(means, max(1, len(means) // 15)) if smooth else means
    axes.plot(steps, means, color=color, linewidth=2.4, label=f"{series.arm} ({len(series.seeds)} seeds)")


def _scaled(points: Sequence[tuple[float, float]], scale: float) -> tuple[list[float], list[float]]:
    return [step for step, _ in points], [scale * value for _, value in points]


def draw_intervals(plt: Any, h: Hypothesis, verdict: Verdict, path: Path) -> Path:
    """Each arm's effect with its interval, the seeds behind it, zero and the smallest effect that matters."""
    scale = sign_of(h) * (100 if is_share(h.metric) else 1)
    compared = verdict.comparisons
    known = [v for c in compared for v in (c.interval.low, c.interval.high, *c.differences)]
    bounds = padded([0.0, *(scale * v for v in known)], 0.3)  # an interval without an end is drawn to the edge
    with plt.rc_context(STYLE | {"axes.grid": False}):
        figure, axes = plt.subplots(figsize=(7.2, 1.3 + 0.75 * len(compared)), layout="constrained")
        axes.axvline(0, color=INK, linewidth=1)
        for side in (1, -1) if h.direction is Direction.EITHER else (1,):
            axes.axvline(side * scale * h.smallest, color=INK, linewidth=1, linestyle=(0, (4, 3)))
        axes.annotate("smallest that matters", (scale * h.smallest, 1), (4, 2), xycoords=("data", "axes fraction"),
                      textcoords="offset points", fontsize=8)  # fmt: skip
        for row, c in enumerate(compared):
            color = color_of(h, c.arm)
            ends = [max(bounds[0], min(bounds[1], scale * end)) for end in (c.interval.low, c.interval.high)]
            axes.plot([scale * d for d in c.differences], [row + 0.2] * len(c.differences), "o", color=color,
                      alpha=0.5, markersize=4, markeredgewidth=0)  # fmt: skip
            axes.plot(ends, [row, row], color=color, linewidth=3, solid_capstyle="butt")
            axes.plot(scale * c.interval.effect, row, "D", color=color, markersize=7)
        axes.set_yticks(range(len(compared)), [f"{c.arm}\n{percent(c.level, trim=True)}" for c in compared])
        axes.set_ylim(len(compared) - 0.4, -0.6)
        unit = "points" if is_share(h.metric) else h.metric
        axes.set_xlabel(f"effect on {name_of(h.metric)} ({unit}; claimed: {WAYS[h.direction]}), a dot a seed")
        return _saved(plt, figure, path)


def _saved(plt: Any, figure: Any, path: Path) -> Path:
    figure.savefig(path, dpi=100)
    plt.close(figure)
    return path
