"""`uptrend replay`: a run's rollouts learned from again, with something of the update changed."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from uptrend.cli.console import terminal
from uptrend.cli.interrupt import patiently
from uptrend.cli.options import Format
from uptrend.cli.replay_summary import compare_with_source, print_replay
from uptrend.cli.summary import open_run
from uptrend.cli.view import choose_view
from uptrend.runner.replays import replay
from uptrend.training.observer import Observer


def command(
    run: Annotated[str, typer.Argument(help="A run directory, or a name under ./runs.")],
    step: Annotated[int, typer.Option(min=0, help="The step whose weights to begin with; 0 for the run's start.")],
    steps: Annotated[
        int | None, typer.Option(min=1, help="How many steps to replay; all that follow without it.")
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change one value of the update: --set learning.loss=dr_grpo. Repeat for more."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="The run directory's name; RUN-replay otherwise.")] = None,
    runs: Annotated[Path, typer.Option(help="The folder that run directories go to.")] = Path("runs"),
    format: Annotated[Format, typer.Option("--format", "-f", help="How to tell it.")] = Format.TEXT,
    quiet: Annotated[bool, typer.Option("--quiet", help="Say only the outcome.")] = False,
) -> None:
    """Update again from a run's recorded rollouts, with one factor of the update changed.

    \b
    uptrend replay runs/tiny --step 0 --steps 20
    uptrend replay runs/tiny --step 0 --steps 20 --set learning.loss=dr_grpo --name tiny-dr-grpo
    uptrend replay runs/tiny --step 100 --set learning.kl.beta=0.1 --format json

    Nothing is sampled but the held-out evaluations before and after. Without --set it must give the run's own
    weights. Only the first step is on-policy; the table says how far the later ones are from it.
    """
    with patiently() as patience:
        observers: list[Observer] = [patience]
        if format is Format.TEXT:
            observers.insert(0, choose_view(quiet=quiet, is_terminal=sys.stdout.isatty()))
        done = replay(open_run(run), step, steps=steps, overrides=sets or (), runs=runs, name=name, observers=observers)
    told = compare_with_source(done)
    if format is Format.JSON:
        sys.stdout.write(json.dumps(told, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
        return
    print_replay(told, terminal())
    if done.status == "stopped":
        typer.echo(f"Stopped after step {done.last_step}. To make it again from its start: --name {done.name}")
