"""`uptrend warmstart`: supervised learning on the scripted expert's rollouts, into a model folder."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from uptrend.cli.console import Quiet, RunsFolder, Sets, stop_on_interrupt
from uptrend.cli.view import choose_view
from uptrend.config import load_config
from uptrend.runner.runs import warmstart
from uptrend.training.observer import Observer


def command(
    recipe: Annotated[Path, typer.Argument(help="Recipe: a TOML file with a [warmstart] section.")],
    out: Annotated[Path | None, typer.Option(help="Model folder to make. Default: models/NAME.")] = None,
    sets: Sets = None,
    name: Annotated[str | None, typer.Option(help="Name of the run directory. Default: NAME-warmstart.")] = None,
    runs: RunsFolder = Path("runs"),
    quiet: Quiet = False,
) -> None:
    """Teach a model the rollouts of a taskset's expert, so that RL has something to improve.

    \b
    uptrend warmstart recipes/musique/warmstart.toml \\
        --out models/musique-warm
    uptrend train recipes/musique/atlas.toml \\
        --set model.name=models/musique-warm

    The expert plays training tasks with the real tools; held-out tasks are never shown. The loss is on the expert's
    turns only. The model is evaluated before and after.
    """
    config = load_config(recipe, sets or ())
    folder = out or Path("models") / config.name
    with stop_on_interrupt() as interrupt:
        observers: list[Observer] = [choose_view(quiet=quiet, is_terminal=sys.stdout.isatty()), interrupt]
        run = warmstart(config, folder, runs=runs, name=name, observers=observers)
    if run.status == "stopped":
        typer.echo(f"Stopped after step {run.last_step}; no model folder was made.")
    else:
        typer.echo(f"Model: {folder}")
