"""The `uptrend` command: its verbs, and how errors are told. Verbs are imported when they are called."""

import sys
import warnings
from typing import Any, TextIO

import typer

from uptrend.cli.verbs import verbs
from uptrend.records import UptrendError
from uptrend.records.renamed import RenamedWarning

VERBS = {
    "train": ("uptrend.cli.train", "command", "Train a model on a recipe, and record everything."),
    "preflight": ("uptrend.cli.preflight", "command", "Ask what could keep a recipe from learning, before it runs."),
    "warmstart": ("uptrend.cli.warmstart", "command", "Teach a model a taskset's own expert, to have a start."),
    "eval": ("uptrend.cli.evaluate", "command", "Score a model or a run's checkpoint on held-out tasks."),
    "doctor": ("uptrend.cli.doctor", "command", "Say why a run does not learn, from its records or a log."),
    "lab": ("uptrend.cli.lab", "app", "Test hypotheses by experiments, and keep the journal."),
    "replay": ("uptrend.cli.replay", "command", "Update again from a run's recorded rollouts, one factor changed."),
    "runs": ("uptrend.cli.runs", "app", "List, show and compare run directories."),
    "plot": ("uptrend.cli.plot", "plot", "Draw the curves of runs to PNG or SVG."),
    "tasks": ("uptrend.cli.tasks", "app", "List, show and validate tasksets."),
    "models": ("uptrend.cli.models", "app", "List, pull and show models."),
}


app = typer.Typer(cls=verbs(VERBS), no_args_is_help=True, add_completion=False, rich_markup_mode=None)


@app.callback()
def uptrend() -> None:
    """RL post-training that explains itself.

    \b
    uptrend train recipes/quickstart.toml     learn arithmetic, watch it happen
    uptrend runs show runs/quickstart         what came of it
    uptrend tasks validate arithmetic         prove a taskset without a model
    """


def main(arguments: list[str] | None = None) -> Any:
    """The console script."""
    return call(app, arguments)


def call(commands: typer.Typer, arguments: list[str] | None = None) -> Any:
    """Run a command line: an error that is the user's to fix is one or two sentences and exit code 2."""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show
            return commands(arguments, standalone_mode=True)
    except UptrendError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


_shown_otherwise = warnings.showwarning


def _show(
    message: Warning | str, category: type[Warning], filename: str, lineno: int,
    file: TextIO | None = None, line: str | None = None,
) -> None:  # fmt: skip
    """Print an old name's note as one line; other warnings as Python prints them."""
    if issubclass(category, RenamedWarning):
        print(f"note: {message}", file=sys.stderr)
    else:
        _shown_otherwise(message, category, filename, lineno, file, line)
