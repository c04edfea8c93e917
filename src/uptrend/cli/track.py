"""`uptrend track`: send a run's records to a tracker afterwards."""

import contextlib
import sys
from dataclasses import replace
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from uptrend.bridge.trackers import make_tracker, select_trackers
from uptrend.bridge.tracking import Sender
from uptrend.cli.console import AsJson, RunArgument, open_run, print_json
from uptrend.config import Track, build
from uptrend.doctor.report import latest_report
from uptrend.records import RecordError


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
    table = {
        key: value for key, value in opened.config.get("track", {}).items() if key != "webhook"
    }
    track = build(Track, {**table, "to": to}, "track")
    track = replace(track, project=project or track.project, name=name or track.name)
    names = select_trackers(track)
    report = latest_report(opened)
    sent = list[dict[str, Any]]()
    bar = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # Trackers print; stdout is for the answer.
    with (
        contextlib.redirect_stdout(sys.stderr),
        Progress(
            *bar, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()
        ) as progress,
    ):
        for each in names:
            task = progress.add_task(each, total=len(opened.metric_lines) + len(opened.eval_lines))
            advance = lambda task=task: progress.advance(task)  # noqa: E731
            sender = Sender(
                opened.path, each, make_tracker(each, track), track, on_line_sent=advance
            )
            done = {"tracker": each, "project": track.project}
            try:
                sender.send()
                sender.finish(report)
                sent.append(
                    {**done, "id": sender.id, "place": sender.location, "sent": dict(sender.counts)}
                )
            except Exception as error:  # of any kind: it comes from the tracker
                sent.append({**done, "error": f"{type(error).__name__}: {error}"})
    if as_json:
        print_json({"run": str(opened.path), "trackers": sent})
    for one in sent:
        if "error" in one:
            typer.echo(f"error: {one['tracker']}: {one['error']}", err=True)
        elif not as_json:
            counts = ", ".join(f"{count} {what}" for what, count in one["sent"].items())
            typer.echo(f"{one['tracker']}: {counts}\n{one['place']}")
    if any("error" in one for one in sent):
        raise typer.Exit(2)
