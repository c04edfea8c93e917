"""The `uptrend` command: its verbs, and how errors are told. Verbs are imported when they are called."""

import importlib
import sys
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from uptrend.records import UptrendError

VERBS = {
    "train": ("uptrend.cli.train", "command", "Train a model on a recipe, and record everything."),
    "preflight": ("uptrend.cli.preflight", "command", "Ask what could keep a recipe from learning, before it runs."),
    "warmstart": ("uptrend.cli.warmstart", "command", "Teach a model a taskset's own expert, to have a start."),
    "eval": ("uptrend.cli.evaluate", "command", "Score a model or a run's checkpoint on held-out tasks."),
    "doctor": ("uptrend.cli.doctor", "command", "Say why a run does not learn, from its records or a log."),
    "runs": ("uptrend.cli.runs", "app", "List, show and compare run directories."),
    "plot": ("uptrend.cli.plot", "plot", "Draw the curves of runs to PNG or SVG."),
    "tasks": ("uptrend.cli.tasks", "app", "List, show and validate tasksets."),
    "models": ("uptrend.cli.models", "app", "List, pull and show models."),
}


class _Verbs(TyperGroup):
    """Loads a verb's module only when it is called, so that `--help` is quick and needs no torch."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 (Click's signature)
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in VERBS:
            return None
        module, attribute, summary = VERBS[cmd_name]
        if not ctx.resilient_parsing and "--help" in sys.argv[1:2]:
            return TyperCommand(cmd_name, short_help=summary)
        found = getattr(importlib.import_module(module), attribute)
        if isinstance(found, typer.Typer):
            return typer.main.get_command(found)
        single = typer.Typer(add_completion=False, rich_markup_mode=None)  # [section] is no markup
        single.command(cmd_name)(found)
        return typer.main.get_command(single)


app = typer.Typer(cls=_Verbs, no_args_is_help=True, add_completion=False, rich_markup_mode=None)


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
    """Run a command line: an error that is the user's to mend is one or two sentences and exit code 2."""
    try:
        return commands(arguments, standalone_mode=True)
    except UptrendError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
