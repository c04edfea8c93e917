"""`uptrend train` and `uptrend warmstart`: run a recipe, resume a run, or teach a model an expert's
rollouts or recorded conversations.
"""

from pathlib import Path
from typing import Annotated

import typer

from uptrend.bridge.convert import load_recipe
from uptrend.cli.console import Overrides, Quiet, RunsFolder, complete_recipes
from uptrend.config.load import nearest
from uptrend.doctor.catalogue import CATALOGUE
from uptrend.records import ConfigError, RunRefused
from uptrend.records.renamed import current
from uptrend.runner.observers import stop_sentence, terminal_observers
from uptrend.runner.runs import resume_run, train_recipe, warmstart
from uptrend.runner.view import print_preflight


def command(
    recipe: Annotated[
        Path | None,
        typer.Argument(
            help="Recipe: a TOML file, or prime-rl's rl.toml.",
            show_default=False,
            autocompletion=complete_recipes,
        ),
    ] = None,
    overrides: Overrides = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the run directory. Default: the recipe's name.")
    ] = None,
    runs: RunsFolder = Path("runs"),
    resumes: Annotated[
        Path | None, typer.Option("--resume", help="Resume this run from its last checkpoint.")
    ] = None,
    quiet: Quiet = False,
    no_preflight: Annotated[
        bool, typer.Option("--no-preflight", help="Start without the cheap probes.")
    ] = False,
    allow: Annotated[
        list[str] | None, typer.Option(help="Start even if the probes find this cause.")
    ] = None,
    keep_refused: Annotated[
        bool,
        typer.Option(
            "--keep-refused", help="Leave a run directory that says why a run was not started."
        ),
    ] = False,
) -> None:
    """Train a model on a recipe and record everything.

    \b
    uptrend train recipes/quickstart.toml
    uptrend train recipes/tiny.toml --set learning.lr=1e-4
    uptrend train configs/mlgym/rl_debug.toml --set model.name=smollm2-135m
    uptrend train --resume runs/quickstart

    A new run first asks the cheap probes of `uptrend preflight` and does not start on a critical
    finding: it exits with 1 and leaves nothing behind. Ctrl-C finishes the step and writes a
    checkpoint; a second Ctrl-C ends at once.
    """
    if (recipe is None) == (resumes is None):
        raise ConfigError(
            "Give either a recipe (uptrend train RECIPE) or a run (uptrend train --resume RUN)."
        )
    allowed = [current(id) for id in allow or ()]
    for id in allowed:
        if id not in CATALOGUE:
            raise ConfigError(
                f"--allow {id} is not in the catalogue.{nearest(id, CATALOGUE)} All of them:"
                " uptrend explain"
            )
    with terminal_observers(quiet=quiet) as observers:
        if resumes is not None:
            run = resume_run(resumes, overrides or (), observers)
        else:
            assert recipe is not None
            try:
                run = train_recipe(
                    load_recipe(recipe, overrides or ()),
                    runs=runs,
                    name=name,
                    observers=observers,
                    preflight=not no_preflight,
                    allows=allowed,
                    on_preflight=print_preflight,
                    keeps_refused=keep_refused,
                )
            except RunRefused as refusal:
                advice = f"To train anyway: --allow {refusal.finding.id}, or --no-preflight"
                typer.echo(f"{refusal} {advice}", err=True)
                raise typer.Exit(1) from None
    sentence = stop_sentence(run, f"uptrend train --resume {run.path}")
    if sentence:
        typer.echo(sentence)


def warmstart_command(
    recipe: Annotated[
        Path,
        typer.Argument(
            help="Recipe: a TOML file with a [warmstart] section.", autocompletion=complete_recipes
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Model folder to make. Default: models/NAME.")
    ] = None,
    overrides: Overrides = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the run directory. Default: NAME-warmstart.")
    ] = None,
    runs: RunsFolder = Path("runs"),
    quiet: Quiet = False,
) -> None:
    """Teach a model by examples, so that RL has something to improve.

    \b
    uptrend warmstart recipes/musique/warmstart.toml \\
        --out models/musique-warm
    uptrend train recipes/musique/atlas.toml \\
        --set model.name=models/musique-warm

    The taskset's expert plays training tasks with the real tools, or the conversations of
    warmstart.file are learned in its place. The loss is on the expert's or the assistant's turns
    only.
    """
    config = load_recipe(recipe, overrides or ())
    folder = out or Path("models") / config.name
    with terminal_observers(quiet=quiet, doctor=False) as observers:
        run = warmstart(config, folder, runs=runs, name=name, observers=observers)
    if run.status == "stopped":
        typer.echo(f"Stopped after step {run.last_step}; no model folder was made.")
    else:
        typer.echo(f"Model: {folder}")
