"""The `uptrend` command: its verbs, imported when they are called, and its errors."""

import importlib
import sys
import warnings
from typing import Any

import typer
from typer.core import TyperGroup

from uptrend.records import UptrendError
from uptrend.records.renamed import RenamedWarning

VERBS = {
    "train": ("uptrend.cli.train", "command", "Train a model on a recipe and record everything."),
    "preflight": ("uptrend.cli.preflight", "command", "Probe a recipe for faults before it runs."),
    "warmstart": ("uptrend.cli.train", "teach", "Teach a model a taskset's expert rollouts."),
    "eval": ("uptrend.cli.evaluate", "command", "Score a model or checkpoint on held-out tasks."),
    "doctor": ("uptrend.cli.doctor", "command", "Explain why a run does not learn."),
    "lab": ("uptrend.cli.lab", "app", "Test hypotheses by experiment; keep a journal."),
    "replay": ("uptrend.cli.replay", "command", "Repeat a run's updates with one setting changed."),
    "runs": ("uptrend.cli.runs", "app", "List, show and compare run directories."),
    "plot": ("uptrend.cli.plot", "command", "Draw the curves of runs as PNG or SVG."),
    "tasks": ("uptrend.cli.tasks", "app", "List, show and validate tasksets."),
    "models": ("uptrend.cli.models", "app", "List, pull and show models."),
    "convert": ("uptrend.cli.convert", "command", "Turn TRL's or prime-rl's settings into a recipe, and back."),
}
"""Verbs by name: module, function or app in it, and one line of help."""


class Verbs(TyperGroup):
    """Group that imports a verb when it is called: `--help` stays fast and needs no torch."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 (Click's signature)
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 (Click's signature)
        if cmd_name not in VERBS:
            return None
        module, attribute, _ = VERBS[cmd_name]
        found = getattr(importlib.import_module(module), attribute)
        if not isinstance(found, typer.Typer):
            single = typer.Typer(add_completion=False, rich_markup_mode=None)  # [section] is no markup
            single.command(cmd_name)(found)
            found = single
        return typer.main.get_command(found)

    # Click would import every verb for its first line of help: torch and scipy with them.
    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 (Click's signature)
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, _, summary) in VERBS.items()])


app = typer.Typer(cls=Verbs, no_args_is_help=True, add_completion=False, rich_markup_mode=None)


@app.callback()
def uptrend() -> None:
    """RL post-training that explains itself.

    \b
    uptrend train recipes/quickstart.toml  learn arithmetic
    uptrend runs show quickstart           see how it went
    uptrend doctor runs/quickstart         see what limits it
    uptrend tasks validate arithmetic      check a taskset
    """


def main(arguments: list[str] | None = None) -> Any:
    """Run the console script."""
    return call(app, arguments)


def call(commands: typer.Typer, arguments: list[str] | None = None) -> Any:
    """Run a command line; an error that the user can fix is printed in a sentence and exits with 2."""
    show_by_default = warnings.showwarning

    def show_warning(*warning: Any, **options: Any) -> None:
        # An old name is news for the person who typed it: one line, without our file and line number.
        if issubclass(warning[1], RenamedWarning):
            print(f"note: {warning[0]}", file=sys.stderr)
        else:
            show_by_default(*warning, **options)

    try:
        with warnings.catch_warnings():
            warnings.showwarning = show_warning
            return commands(arguments, standalone_mode=True)
    except UptrendError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
