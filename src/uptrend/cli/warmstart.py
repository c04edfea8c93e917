"""`uptrend warmstart`: supervised learning on the scripted expert's rollouts, into a model folder."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from uptrend.cli.interrupt import patiently
from uptrend.cli.view import choose_view
from uptrend.config import load_config
from uptrend.runner.runs import warmstart
from uptrend.training.observer import Observer


def command(
    recipe: Annotated[Path, typer.Argument(help="A recipe: a TOML file; its [warmstart] says how much.")],
    out: Annotated[Path | None, typer.Option(help="The model folder to make; models/NAME otherwise.")] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", help="Override one value: --set warmstart.tasks=200. Repeat for more."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="The run directory's name; NAME-warmstart otherwise.")] = None,
    runs: Annotated[Path, typer.Option(help="The folder that run directories go to.")] = Path("runs"),
    quiet: Annotated[bool, typer.Option("--quiet", help="Say only the outcome.")] = False,
) -> None:
    """Teach a model the rollouts of a taskset's own expert, so that RL has something to improve on.

    \b
    uptrend warmstart recipes/musique/warmstart.toml --out models/musique-warm
    uptrend train recipes/musique/atlas.toml --set model.name=models/musique-warm

    The expert plays training tasks through the real tools; held-out tasks are never shown. What it says is
    learned, what it reads is only seen. The model is evaluated before and after.
    """
    config = load_config(recipe, sets or ())
    folder = out or Path("models") / config.name
    with patiently() as patience:
        observers: list[Observer] = [choose_view(quiet=quiet, is_terminal=sys.stdout.isatty()), patience]
        run = warmstart(config, folder, runs=runs, name=name, observers=observers)
    if run.status == "stopped":
        typer.echo(f"Stopped after step {run.last_step}; no model folder was made.")
    else:
        typer.echo(f"Model: {folder}")
