"""The pictures that `uptrend plot` draws; matplotlib is handed in, so that nobody else loads it."""

import math
from collections.abc import Sequence
from typing import Any

from uptrend.cli.summary import held_out
from uptrend.doctor.report.drawing import COLORS, INK, moving_mean
from uptrend.records import Run
from uptrend.records.metrics import find_metric, label_of

DASHES = {"low": "-", "high": (0, (4, 2))}

SMALL = ("learner/entropy/mean", "sampling/length/mean", "kl/reference/mean")


def overview_figure(plt: Any, runs: list[Run]) -> Any:
    """Reward and held-out accuracy large, what explains them small."""
    figure = plt.figure(figsize=(11, 6.4), layout="constrained")
    grid = figure.add_gridspec(2, 12, height_ratios=(1.6, 1))
    reward, accuracy = figure.add_subplot(grid[0, :6]), figure.add_subplot(grid[0, 6:])
    small = [figure.add_subplot(grid[1, i * 3 : i * 3 + 3]) for i in range(4)]
    _draw_metric(reward, runs, "reward/mean")
    _draw_held_out(accuracy, runs)
    _draw_dead_groups(small[0], runs)
    for axes, key in zip(small[1:], SMALL, strict=True):
        _draw_metric(axes, runs, key)
    for axes in (reward, accuracy, *small):
        axes.set_xlabel("step", fontsize=9)
    return figure


def metrics_figure(plt: Any, runs: list[Run], metrics: list[str]) -> Any:
    """One panel a metric."""
    columns = min(len(metrics), 2)
    rows = math.ceil(len(metrics) / columns)
    figure, grid = plt.subplots(
        rows, columns, figsize=(5.5 * columns, 0.8 + 2.9 * rows), layout="constrained", squeeze=False
    )
    for axes, key in zip(grid.flat, metrics, strict=False):
        _draw_metric(axes, runs, key)
        axes.set_title(key)
        metric = find_metric(key)
        axes.set_ylabel("" if metric is None or metric.unit == "none" else metric.unit)
        axes.set_xlabel("step")
    for axes in grid.flat[len(metrics) :]:
        axes.set_visible(False)
    return figure


def _draw_metric(axes: Any, runs: list[Run], key: str) -> None:
    """Draw the values faintly, and their moving mean over them."""
    axes.set_title(label_of(key))
    for run, color in zip(runs, _colors(runs), strict=True):
        steps, values = _points(run, key)
        axes.plot(steps, values, color=color, alpha=0.25, linewidth=1)
        axes.plot(steps, _smooth(values), color=color, linewidth=2, solid_capstyle="round")
    if not any(len(line.get_xdata()) for line in axes.lines):
        _say_empty(axes, "not recorded")


def _points(run: Run, key: str) -> tuple[list[int], list[float]]:
    lines = [line for line in run.metric_lines if isinstance(line.get(key), int | float)]
    return [line["step"] for line in lines], [line[key] for line in lines]


def _smooth(values: Sequence[float]) -> list[float]:
    return moving_mean(values, window=max(1, len(values) // 15))


def _draw_held_out(axes: Any, runs: list[Run]) -> None:
    axes.set_title(f"{label_of('eval/accuracy')}, 95% intervals")
    axes.yaxis.set_major_formatter("{x:.0f}%")
    evaluated = [run for run in runs if run.eval_lines]
    if not evaluated:
        _say_empty(axes, "not evaluated")
        return
    longest = max(1, *(run.eval_lines[-1]["step"] for run in evaluated))
    for i, (run, color) in enumerate(zip(runs, _colors(runs), strict=True)):
        # Runs stand a little apart, so that bars at the same step do not hide each other.
        apart = (i - (len(runs) - 1) / 2) * 0.012 * longest
        evaluations = held_out(run)
        steps = [e.step + apart for e in evaluations]
        heights = [100 * e.accuracy for e in evaluations]
        below = [100 * (e.accuracy - e.low) for e in evaluations]
        above = [100 * (e.high - e.accuracy) for e in evaluations]
        axes.errorbar(steps, heights, (below, above), color=color, fmt="none", linewidth=1.2, capsize=3)
        axes.plot(steps, heights, color=color, marker="o", markersize=5.5, linewidth=2)
        if len(runs) == 1:
            _label(axes, steps[0], heights[0], color, -7, 0)
        if len(steps) > 1 and len(runs) <= 2:  # more would lie over each other
            higher = evaluations[-1].accuracy >= max(held_out(other)[-1].accuracy for other in evaluated)
            _label(axes, steps[-1], heights[-1], color, 7, 0 if len(runs) == 1 else 6 if higher else -6)
    axes.margins(x=0.18)


def _label(axes: Any, x: float, y: float, color: str, right: int, up: int) -> None:
    """An accuracy beside its point, readable over lines."""
    axes.annotate(
        f"{y:.1f}%", (x, y), (right, up), textcoords="offset points", va="center",
        ha="left" if right > 0 else "right", color=color, fontweight="bold",
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 1},
    )  # fmt: skip


def _draw_dead_groups(axes: Any, runs: list[Run]) -> None:
    """Groups without a signal, by the end at which all their rewards lie."""
    axes.set_title(label_of("advantage/dead/share"))
    for run, color in zip(runs, _colors(runs), strict=True):
        for end, dashes in DASHES.items():
            steps, shares = _points(run, f"advantage/dead_{end}/share")
            values = [100 * share for share in _smooth(shares)]
            axes.plot(steps, values, color=color, linestyle=dashes, linewidth=1.8)
    if not any(len(line.get_xdata()) for line in axes.lines):
        _say_empty(axes, "not recorded")
        return
    axes.yaxis.set_major_formatter("{x:.0f}%")
    axes.set_ylim(bottom=0)
    for end, dashes in DASHES.items():
        axes.plot([], [], color=INK, linewidth=1.8, linestyle=dashes, label=end)
    legend = axes.legend(  # above the panel, beside its title: over no line
        fontsize=8, handlelength=1.6, handletextpad=0.4, ncols=2, columnspacing=0.9, borderaxespad=0,
        loc="lower right", bbox_to_anchor=(1.12, 1.01),
    )  # fmt: skip
    legend.set_in_layout(False)


def add_heading(figure: Any, runs: list[Run], title: str | None) -> None:
    """The heading, and which color is which run."""
    if title or len(runs) == 1:
        figure.suptitle(title or runs[0].name, x=0.01, ha="left", fontsize=14, fontweight="bold")
    if len(runs) > 1:
        handles = [
            figure.axes[0].plot([], [], color=color, linewidth=2.5, label=run.name)[0]
            for run, color in zip(runs, _colors(runs), strict=True)
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=min(len(runs), 4), fontsize=10)


def _colors(runs: Sequence[Run]) -> list[str]:
    return [COLORS[i % len(COLORS)] for i in range(len(runs))]


def _say_empty(axes: Any, why: str) -> None:
    axes.text(0.5, 0.5, why, transform=axes.transAxes, ha="center", va="center", color="#8a9099")
    axes.set_xticks([])
    axes.set_yticks([])
