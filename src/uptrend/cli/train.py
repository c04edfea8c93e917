"""`uptrend train`: run a recipe, or go on with a run."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from uptrend.cli.interrupt import patiently
from uptrend.cli.preflight import tell_preflight
from uptrend.cli.view import choose_view
from uptrend.config import load_config
from uptrend.config.load import nearest
from uptrend.records import ConfigError, Run
from uptrend.records.renamed import current
from uptrend.runner.live_doctor import LiveDoctor
from uptrend.runner.runs import resume, train
from uptrend.training.observer import Observer

Recipe = Annotated[Path | None, typer.Argument(help="A recipe: a TOML file.", show_default=False)]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override one value: --set learning.lr=2e-5. Repeat for more."),
]
Name = Annotated[str | None, typer.Option(help="The run directory's name; the recipe's own otherwise.")]
Runs = Annotated[Path, typer.Option(help="The folder that run directories go to.")]
Resume = Annotated[Path | None, typer.Option(help="Go on with this run directory from its last checkpoint.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Say only the outcome.")]


def command(
    recipe: Recipe = None,
    sets: Set = None,
    name: Name = None,
    runs: Runs = Path("runs"),
    resumes: Annotated[
        Path | None, typer.Option("--resume", help="Go on with this run directory from its last checkpoint.")
    ] = None,
    quiet: Quiet = False,
    no_preflight: Annotated[
        bool, typer.Option("--no-preflight", help="Train at once, whatever the cheap probes would say.")
    ] = False,
    allow: Annotated[
        list[str] | None,
        typer.Option(help="Begin though the cheap probes find this cause: --allow kl.strangles. Repeat for more."),
    ] = None,
) -> None:
    """Train a model on a recipe, and record everything.

    \b
    uptrend train recipes/quickstart.toml
    uptrend train recipes/arithmetic/baseline.toml --set learning.lr=1e-5 --name faster
    uptrend train --resume runs/quickstart

    A new run first asks the cheap probes of `uptrend preflight`, and does not begin on a critical finding.
    Ctrl-C finishes the step, writes a checkpoint and says how to go on; a second one ends at once.
    """
    if (recipe is None) == (resumes is None):
        raise ConfigError(
            "Give either a recipe (uptrend train RECIPE) or a run to go on with (uptrend train --resume RUN)."
        )
    with patiently() as patience:
        view = choose_view(quiet=quiet, is_terminal=sys.stdout.isatty())
        observers: list[Observer] = [view, LiveDoctor(view.say), patience]
        if resumes is not None:
            run = resume(resumes, sets or (), observers)
        else:
            assert recipe is not None
            config = load_config(recipe, sets or ())
            run = train(
                config, runs=runs, name=name, observers=observers, preflight=not no_preflight,
                allows=_allowed(allow or ()), on_preflight=tell_preflight,
            )  # fmt: skip
    _tell_stop(run)


def _tell_stop(run: Run) -> None:
    """Say who stopped a run, and how it goes on; the preflight's refusal is an exit code of 1."""
    stop = run.stopped
    if stop is None:
        return
    if stop.by == "preflight":
        typer.echo(f"Not begun: {stop.sentence} To train nevertheless: --no-preflight", err=True)
        raise typer.Exit(1)
    if stop.by == "doctor":
        typer.echo(
            f"The doctor stopped it after step {run.last_step}: {stop.sentence} Its last checkpoint has the fault too. "
            f"Fix the recipe and begin anew, or go on nevertheless: uptrend train --resume {run.path}"
        )
    elif run.checkpoints:
        typer.echo(f"Stopped after step {run.last_step}. Go on with: uptrend train --resume {run.path}")
    else:
        typer.echo("Stopped before the first step: there is nothing to go on from.")


def _allowed(ids: Sequence[str]) -> list[str]:
    """Return the causes that --allow names, or say which one nobody knows."""
    from uptrend.doctor.catalogue import CATALOGUE

    known = [current(id) for id in ids]
    for id in known:
        if id not in CATALOGUE:
            raise ConfigError(f"--allow {id} is not in the catalogue.{nearest(id, CATALOGUE)} See docs/findings/.")
    return known
