"""`uptrend track`: send a run's records to a tracker afterwards."""

import contextlib
import sys
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from uptrend.bridge.trackers import make_tracker, select_trackers
from uptrend.bridge.tracking import Sender
from uptrend.cli.console import AsJson, RunArgument, open_run, print_json
from uptrend.config import Track, build
from uptrend.doctor.report import latest_report
from uptrend.records import RecordError, Run


def command(
    run: RunArgument,
    to: Annotated[
        list[str], typer.Option(help="wandb, trackio, tensorboard or mlflow; repeatable.")
    ],
    project: Annotated[
        str, typer.Option(help="Project there. Default: the run's track.project.")
    ] = "",
    name: Annotated[
        str, typer.Option(help="Name there. Default: the run's track.name, or its directory's.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Send a run to a tracker: metrics, evaluations, held-out answers, sample rollouts and
    findings.

    \b
    uptrend track quickstart --to tensorboard
    uptrend track runs/quickstart --to wandb --to mlflow \\
        --project sums --name first

    It makes a new run there. To track while training: [track] of the recipe; uptrend explain
    track.to tells more.
    """
    opened = open_run(run)
    if opened.status == "running":
        raise RecordError(
            f"{opened.path} is still running. Wait for its end; [track] of a recipe tracks from the"
            " start."
        )
    track = _track_config(opened, to, project, name)
    trackers = select_trackers(track)
    report = latest_report(opened)
    n_lines = len(opened.metric_lines) + len(opened.eval_lines)
    results: list[dict[str, Any]] = []
    bar = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    is_off = not sys.stderr.isatty()
    # Trackers print to stdout, which is for the results.
    with (
        contextlib.redirect_stdout(sys.stderr),
        Progress(*bar, console=Console(stderr=True), transient=True, disable=is_off) as progress,
    ):
        for tracker in trackers:
            task = progress.add_task(tracker, total=n_lines)
            advance = partial(progress.advance, task)
            sender = Sender(
                opened.path, tracker, make_tracker(tracker, track), track, on_line_sent=advance
            )
            result: dict[str, Any] = {"tracker": tracker, "project": track.project}
            try:
                sender.send()
                sender.finish(report)
                result |= {"id": sender.id, "place": sender.location, "sent": dict(sender.counts)}
            except Exception as error:  # a tracker's client may raise anything
                result["error"] = f"{type(error).__name__}: {error}"
            results.append(result)

    if as_json:
        print_json({"run": str(opened.path), "trackers": results})
    for result in results:
        if "error" in result:
            typer.echo(f"error: {result['tracker']}: {result['error']}", err=True)
        elif not as_json:
            counts = ", ".join(f"{count} {kind}" for kind, count in result["sent"].items())
            typer.echo(f"{result['tracker']}: {counts}\n{result['place']}")
    if any("error" in result for result in results):
        raise typer.Exit(2)


def _track_config(run: Run, to: list[str], project: str, name: str) -> Track:
    """Return the run's [track] with the trackers, project and name of this command."""
    table = {**run.config.get("track", {}), "to": to}
    table.pop("webhook", None)  # it reports a run while it trains, not afterwards
    track = build(Track, table, "track")
    return replace(track, project=project or track.project, name=name or track.name)
