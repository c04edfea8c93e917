"""`uptrend plot`: runs as a picture."""

from pathlib import Path
from typing import Annotated, Any

import typer

from uptrend.cli.figure import add_heading, metrics_figure, overview_figure
from uptrend.cli.summary import open_run
from uptrend.config.load import nearest
from uptrend.doctor.report.drawing import STYLE
from uptrend.records import MissingExtra, RecordError, Run, UptrendError
from uptrend.records.renamed import current

Out = Annotated[Path, typer.Option("--out", "-o", help="Where to draw: .png or .svg.")]
Metrics = Annotated[list[str] | None, typer.Option("--metric", help="Draw this instead; repeatable.")]


def plot(
    runs: Annotated[list[Path], typer.Argument(help="Run directories, or names under ./runs.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Where to draw: .png or .svg.")] = Path("uptrend.png"),
    metric: Annotated[list[str] | None, typer.Option("--metric", help="Draw this metric; repeatable.")] = None,
    title: Annotated[str | None, typer.Option("--title", help="A heading.")] = None,
) -> None:
    """Draw runs: reward, held-out accuracy, dead groups, entropy, length and KL, or the metrics you name."""
    if out.suffix.lower() not in (".png", ".svg"):
        raise UptrendError(f"--out {out} should end in .png or .svg.")
    opened = [open_run(run) for run in runs]
    metric = [current(key) for key in metric or ()]
    for key in metric:
        _check_metric(key, opened)
    try:
        import matplotlib
    except ImportError:
        raise MissingExtra("matplotlib", "plot") from None
    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    with plt.rc_context(STYLE):
        figure = metrics_figure(plt, opened, metric) if metric else overview_figure(plt, opened)
        figure.get_layout_engine().set(w_pad=0.12, h_pad=0.12)
        add_heading(figure, opened, title)
        _save(figure, out)
        plt.close(figure)
    print(f"Drew {out}")


def _check_metric(key: str, runs: list[Run]) -> None:
    known = list(dict.fromkeys(name for run in runs for line in run.metric_lines for name in line))
    if key not in known:
        raise RecordError(f"No run has a metric {key}.{nearest(key, known)} docs/metrics.md lists them.")


def _save(figure: Any, out: Path) -> None:
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(out, dpi=160, metadata={"Date": None} if out.suffix.lower() == ".svg" else {})
    except OSError as error:
        raise UptrendError(f"{out} could not be written: {error.strerror}.") from None
