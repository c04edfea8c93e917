"""`uptrend plot`: draw runs as a picture."""

import math
from collections.abc import Collection, Sequence
from itertools import cycle
from pathlib import Path
from typing import Annotated, Any

import typer

from uptrend.cli.console import complete_runs, open_run
from uptrend.config.load import nearest
from uptrend.present.drawing import COLORS, INK, plotting, save, show_shares, smooth
from uptrend.records import RecordError, Run, UptrendError
from uptrend.records.metrics import find_metric, label_of, shown_metrics
from uptrend.records.renamed import current
from uptrend.records.summary import heldout, heldout_sets

SOLID = "-"
DASHED = (0, (4, 2))
LINE_STYLES = (SOLID, DASHED)
HELDOUT_METRIC = "eval/accuracy"
DEAD_METRIC = "advantage/dead/share"
DEAD_METRICS_BY_END = {"low": "advantage/dead_low/share", "high": "advantage/dead_high/share"}
# Sizes in inches.
OVERVIEW_WIDTH = 11
LARGE_ROW_HEIGHT = 3.9
SMALL_ROW_HEIGHT = 2.5
PANEL_WIDTH = 5.5
PANEL_HEIGHT = 2.9
TITLE_HEIGHT = 0.8
FIGURE_PADDING = 0.12
# Columns of the overview's grid: rows of 1, 2, 3, 4 and 6 panels fit.
GRID_COLUMNS = 12
MAX_PANEL_COLUMNS = 2
MAX_LEGEND_COLUMNS = 4
PICTURE_DPI = 160
# Runs whose last accuracy is written beside its point: more labels would lie over each other.
MAX_LABELED_RUNS = 2
# Distance of two runs' evaluations of the same step, as a share of the longest run, so that error
# bars do not hide each other.
RUN_OFFSET_SHARE = 0.012
RunColor = tuple[Run, str]


def command(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="Run directories, or names under ./runs.", autocompletion=complete_runs
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="File to draw: .png or .svg.")] = Path(
        "uptrend.png"
    ),
    metric: Annotated[
        list[str] | None, typer.Option("--metric", help="Draw this metric; repeatable.")
    ] = None,
    title: Annotated[str | None, typer.Option("--title", help="Heading.")] = None,
) -> None:
    """Draw runs: reward, held-out accuracy, dead groups, entropy, length and KL, or the metrics you
    name.

    \b
    uptrend plot quickstart
    uptrend plot slow fast --out both.png --title "Two rates"
    uptrend plot quickstart --metric reward/mean --out r.svg
    """
    if out.suffix.lower() not in (".png", ".svg"):
        raise UptrendError(f"--out {out} should end in .png or .svg.")
    colored_runs = [(open_run(run), color) for run, color in zip(runs, cycle(COLORS), strict=False)]
    metrics = [current(key) for key in metric or ()]
    _check_recorded(colored_runs, metrics)
    keys = metrics or [*shown_metrics("plot-large"), *shown_metrics("plot-small")]
    keys_with_values = [key for key in keys if _has_values(colored_runs, key)]
    names = ", ".join(run.name for run, _ in colored_runs)
    if not keys_with_values:
        raise RecordError(f"There is nothing to draw: {names} has no value of {', '.join(keys)}.")
    if metrics and len(keys_with_values) < len(keys):
        missing = ", ".join(key for key in keys if key not in keys_with_values)
        typer.echo(f"Left out, as {names} has no value of it: {missing}", err=True)

    with plotting() as plt:
        if metrics:
            figure = _draw_panels(plt, colored_runs, keys_with_values)
        else:
            figure = _draw_overview(plt, colored_runs, keys_with_values)
        figure.get_layout_engine().set(w_pad=FIGURE_PADDING, h_pad=FIGURE_PADDING)
        heading = title
        if not heading and len(runs) == 1:
            heading = names
        if heading:
            figure.suptitle(heading, x=0.01, ha="left", fontsize=14, fontweight="bold")
        if len(runs) > 1:
            _add_legend(figure, colored_runs)
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            save(figure, out, dpi=PICTURE_DPI)
        except OSError as error:
            raise UptrendError(f"{out} could not be written: {error.strerror}.") from None
    typer.echo(f"Drew {out}")


def _check_recorded(runs: Sequence[RunColor], metrics: Sequence[str]) -> None:
    """Raise RecordError for a metric that no run records, with the nearest name."""
    recorded: dict[str, None] = {}
    for run, _ in runs:
        for line in run.metric_lines:
            recorded |= dict.fromkeys(line)
    for key in metrics:
        if key not in recorded:
            hint = nearest(key, list(recorded))
            raise RecordError(f"No run has a metric {key}.{hint} All of them: uptrend explain")


def _has_values(runs: Sequence[RunColor], key: str) -> bool:
    """Return True where a run has a finite value of a metric, or an evaluation."""
    for run, _ in runs:
        if key == HELDOUT_METRIC:
            if run.eval_lines:
                return True
            continue
        for line in run.metric_lines:
            value = line.get(key)
            if isinstance(value, int | float) and math.isfinite(value):
                return True
    return False


def _add_legend(figure: Any, runs: Sequence[RunColor]) -> None:
    handles = []
    for run, color in runs:
        (line,) = figure.axes[0].plot([], [], color=color, linewidth=2.5, label=run.name)
        handles.append(line)
    n_columns = min(len(runs), MAX_LEGEND_COLUMNS)
    figure.legend(handles=handles, loc="outside lower center", ncols=n_columns, fontsize=10)


def _draw_overview(plt: Any, runs: Sequence[RunColor], keys: Collection[str]) -> Any:
    """Draw reward and held-out accuracy large, the metrics that explain them small; only those with
    values.
    """
    rows = []
    heights = []
    for place, height in {"plot-large": LARGE_ROW_HEIGHT, "plot-small": SMALL_ROW_HEIGHT}.items():
        row = [key for key in shown_metrics(place) if key in keys]
        if row:
            rows.append(row)
            heights.append(height)
    figure = plt.figure(figsize=(OVERVIEW_WIDTH, sum(heights)), layout="constrained")
    grid = figure.add_gridspec(len(rows), GRID_COLUMNS, height_ratios=heights)
    for row_index, row in enumerate(rows):
        width = GRID_COLUMNS // len(row)
        for index, key in enumerate(row):
            left = index * width
            axes = figure.add_subplot(grid[row_index, left : left + width])
            if key == HELDOUT_METRIC:
                _draw_heldout(axes, runs)
            elif key == DEAD_METRIC:
                _draw_dead_groups(axes, runs)
            else:
                _draw_metric(axes, runs, [key])
    return figure


def _draw_panels(plt: Any, runs: Sequence[RunColor], metrics: Sequence[str]) -> Any:
    """Draw one panel per metric, all of the same size."""
    columns = min(len(metrics), MAX_PANEL_COLUMNS)
    rows = math.ceil(len(metrics) / columns)
    size = (PANEL_WIDTH * columns, TITLE_HEIGHT + PANEL_HEIGHT * rows)
    figure, grid = plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    for axes, key in zip(grid.flat, metrics, strict=False):
        _draw_metric(axes, runs, [key])
        metric = find_metric(key)
        unit = "" if metric is None or metric.unit == "none" else metric.unit
        axes.set(title=key, ylabel=unit)
    for axes in grid.flat[len(metrics) :]:
        axes.set_visible(False)
    return figure


def _draw_metric(axes: Any, runs: Sequence[RunColor], keys: Sequence[str]) -> None:
    """Draw the values faintly, and their moving mean over them; of two metrics, the second
    dashed.
    """
    axes.set_title(label_of(keys[0]))
    for run, color in runs:
        for key, style in zip(keys, LINE_STYLES, strict=False):
            lines = [line for line in run.metric_lines if isinstance(line.get(key), int | float)]
            steps = [line["step"] for line in lines]
            values = [line[key] for line in lines]
            axes.plot(steps, values, color=color, alpha=0.25, linewidth=1)
            axes.plot(steps, smooth(values), color=color, linestyle=style, linewidth=2)
    _label_steps(axes)


def _draw_dead_groups(axes: Any, runs: Sequence[RunColor]) -> None:
    """Draw groups without a signal, by the end at which all their rewards lie."""
    _draw_metric(axes, runs, list(DEAD_METRICS_BY_END.values()))
    axes.set_title(label_of(DEAD_METRIC))
    show_shares(axes)
    handles = [axes.plot([], [], color=INK, linestyle=style)[0] for style in LINE_STYLES]
    axes.legend(handles, list(DEAD_METRICS_BY_END), fontsize=8, handlelength=1.6)


def _draw_heldout(axes: Any, runs: Sequence[RunColor]) -> None:
    axes.set_title(f"{label_of(HELDOUT_METRIC)}, 95% intervals")
    last_steps = [run.eval_lines[-1]["step"] for run, _ in runs if run.eval_lines]
    longest = max([1, *last_steps])
    for index, (run, color) in enumerate(runs):
        offset = (index - (len(runs) - 1) / 2) * RUN_OFFSET_SHARE * longest
        evaluations = heldout(run)
        steps = [evaluation.step + offset for evaluation in evaluations]
        accuracies = [evaluation.accuracy for evaluation in evaluations]
        # At 0 and 1 an end of the interval may be on the wrong side by a rounding error.
        below = [max(0.0, evaluation.accuracy - evaluation.low) for evaluation in evaluations]
        above = [max(0.0, evaluation.high - evaluation.accuracy) for evaluation in evaluations]
        axes.errorbar(
            steps,
            accuracies,
            (below, above),
            color=color,
            fmt="-o",
            linewidth=2,
            elinewidth=1.2,
            capsize=3,
        )
        if evaluations and len(runs) <= MAX_LABELED_RUNS:
            axes.annotate(
                f"{accuracies[-1]:.1%}",
                (steps[-1], accuracies[-1]),
                color=color,
                fontweight="bold",
                xytext=(7, 7 - 14 * index),
                textcoords="offset points",
                va="center",
            )
        for label, set_evaluations in heldout_sets(run).items():
            steps = [evaluation.step + offset for evaluation in set_evaluations]
            accuracies = [evaluation.accuracy for evaluation in set_evaluations]
            axes.plot(steps, accuracies, color=color, linestyle=DASHED, linewidth=1.5)
            axes.annotate(
                label,
                (steps[-1], accuracies[-1]),
                color=color,
                fontsize=8,
                xytext=(7, 0),
                textcoords="offset points",
                va="center",
            )
    show_shares(axes)
    axes.margins(x=0.18)
    _label_steps(axes)


def _label_steps(axes: Any) -> None:
    """Use whole numbers for steps."""
    axes.set_xlabel("step", fontsize=9)
    axes.locator_params(axis="x", integer=True)
