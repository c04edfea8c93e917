"""`uptrend plot`: draw runs as a picture."""

import math
from functools import partial
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

DASHES = ("-", (0, (4, 2)))
HELDOUT = "eval/accuracy"
DEAD = "advantage/dead/share"
Colored = list[tuple[Run, str]]


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
    colored = [(open_run(run), COLORS[i % len(COLORS)]) for i, run in enumerate(runs)]
    metrics = [current(key) for key in metric or ()]
    known = list(
        dict.fromkeys(name for run, _ in colored for line in run.metric_lines for name in line)
    )
    for key in metrics:
        if key not in known:
            raise RecordError(
                f"No run has a metric {key}.{nearest(key, known)} All of them: uptrend explain"
            )
    asked = metrics or [*shown_metrics("plot-large"), *shown_metrics("plot-small")]
    drawn = [key for key in asked if _has_values(colored, key)]
    names = ", ".join(run.name for run, _ in colored)
    if not drawn:
        raise RecordError(f"There is nothing to draw: {names} has no value of {', '.join(asked)}.")
    if metrics and len(drawn) < len(asked):
        missing = ", ".join(key for key in asked if key not in drawn)
        typer.echo(f"Left out, as {names} has no value of it: {missing}", err=True)
    with plotting() as plt:
        figure = _metrics(plt, colored, drawn) if metrics else _overview(plt, colored, drawn)
        figure.get_layout_engine().set(w_pad=0.12, h_pad=0.12)
        if title or len(runs) == 1:
            figure.suptitle(
                title or colored[0][0].name, x=0.01, ha="left", fontsize=14, fontweight="bold"
            )
        if len(runs) > 1:
            keys = [
                figure.axes[0].plot([], [], color=color, linewidth=2.5, label=run.name)[0]
                for run, color in colored
            ]
            figure.legend(
                handles=keys, loc="outside lower center", ncols=min(len(runs), 4), fontsize=10
            )
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            save(figure, out, dpi=160)
        except OSError as error:
            raise UptrendError(f"{out} could not be written: {error.strerror}.") from None
    typer.echo(f"Drew {out}")


def _has_values(runs: Colored, key: str) -> bool:
    """Return True where a run has a finite value of a metric, or an evaluation."""
    if key == HELDOUT:
        return any(run.eval_lines for run, _ in runs)
    values = (line.get(key) for run, _ in runs for line in run.metric_lines)
    return any(isinstance(value, int | float) and math.isfinite(value) for value in values)


def _overview(plt: Any, runs: Colored, keys: list[str]) -> Any:
    """Draw reward and held-out accuracy large, the metrics that explain them small; only those with
    values.
    """
    rows = [
        [key for key in row if key in keys]
        for row in (shown_metrics("plot-large"), shown_metrics("plot-small"))
    ]
    heights = [height for row, height in zip(rows, (3.9, 2.5), strict=True) if row]
    figure = plt.figure(figsize=(11, sum(heights)), layout="constrained")
    grid = figure.add_gridspec(len(heights), 12, height_ratios=heights)
    for place, row in enumerate(filter(None, rows)):
        wide = 12 // len(row)
        for i, key in enumerate(row):
            axes = figure.add_subplot(grid[place, i * wide : (i + 1) * wide])
            {HELDOUT: _draw_heldout, DEAD: _draw_dead_groups}.get(
                key, partial(_draw_metric, keys=(key,))
            )(axes, runs)
    return figure


def _metrics(plt: Any, runs: Colored, metrics: list[str]) -> Any:
    columns = min(len(metrics), 2)
    rows = math.ceil(len(metrics) / columns)
    size = (5.5 * columns, 0.8 + 2.9 * rows)
    figure, grid = plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    for axes, key in zip(grid.flat, metrics, strict=False):
        _draw_metric(axes, runs, (key,))
        metric = find_metric(key)
        axes.set(title=key, ylabel="" if metric is None or metric.unit == "none" else metric.unit)
    for axes in grid.flat[len(metrics) :]:
        axes.set_visible(False)
    return figure


def _draw_metric(axes: Any, runs: Colored, keys: tuple[str, ...]) -> None:
    """Draw the values faintly, and their moving mean over them; of two metrics, the second
    dashed.
    """
    axes.set_title(label_of(keys[0]))
    for run, color in runs:
        for key, dashes in zip(keys, DASHES, strict=False):
            lines = [line for line in run.metric_lines if isinstance(line.get(key), int | float)]
            steps = [line["step"] for line in lines]
            values = [line[key] for line in lines]
            axes.plot(steps, values, color=color, alpha=0.25, linewidth=1)
            axes.plot(steps, smooth(values), color=color, linestyle=dashes, linewidth=2)
    _finish_axes(axes)


def _draw_dead_groups(axes: Any, runs: Colored) -> None:
    """Draw groups without a signal, by the end at which all their rewards lie."""
    _draw_metric(axes, runs, ("advantage/dead_low/share", "advantage/dead_high/share"))
    axes.set_title(label_of(DEAD))
    show_shares(axes)
    keys = [axes.plot([], [], color=INK, linestyle=dashes)[0] for dashes in DASHES]
    axes.legend(keys, ["low", "high"], fontsize=8, handlelength=1.6)


def _draw_heldout(axes: Any, runs: Colored) -> None:
    axes.set_title(f"{label_of(HELDOUT)}, 95% intervals")
    longest = max((run.eval_lines[-1]["step"] for run, _ in runs if run.eval_lines), default=1)
    for i, (run, color) in enumerate(runs):
        # Runs stand a little apart, so that bars at the same step do not hide each other.
        apart = (i - (len(runs) - 1) / 2) * 0.012 * max(1, longest)
        evaluations = heldout(run)
        steps = [e.step + apart for e in evaluations]
        heights = [e.accuracy for e in evaluations]
        # At 0 and 1 an end of the interval may lie a rounding error inside.
        below, above = [
            [max(0.0, gap) for gap in gaps]
            for gaps in (
                [e.accuracy - e.low for e in evaluations],
                [e.high - e.accuracy for e in evaluations],
            )
        ]
        errors = below, above
        axes.errorbar(
            steps, heights, errors, color=color, fmt="-o", linewidth=2, elinewidth=1.2, capsize=3
        )
        if evaluations and len(runs) <= 2:  # more labels would lie over each other
            place = {"xytext": (7, 7 - 14 * i), "textcoords": "offset points", "va": "center"}
            axes.annotate(
                f"{heights[-1]:.1%}",
                (steps[-1], heights[-1]),
                color=color,
                fontweight="bold",
                **place,
            )
        for label, found in heldout_sets(run).items():
            steps = [e.step + apart for e in found]
            heights = [e.accuracy for e in found]
            axes.plot(steps, heights, color=color, linestyle=DASHES[1], linewidth=1.5)
            axes.annotate(
                label,
                (steps[-1], heights[-1]),
                color=color,
                fontsize=8,
                xytext=(7, 0),
                textcoords="offset points",
                va="center",
            )
    show_shares(axes)
    axes.margins(x=0.18)
    _finish_axes(axes)


def _finish_axes(axes: Any) -> None:
    """Use whole numbers for steps."""
    axes.set_xlabel("step", fontsize=9)
    axes.locator_params(axis="x", integer=True)
