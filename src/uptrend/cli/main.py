"""The `uptrend` command: its verbs, imported when they are called, and its errors."""

import contextlib
import importlib
import os
import signal
import sys
import warnings
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from uptrend.records import ServerWarning, UptrendError
from uptrend.records.renamed import RenamedWarning

VERBS = {
    "init": ("uptrend.cli.init", "command", "Start from your own data: recipe, reward, test."),
    "train": ("uptrend.cli.train", "command", "Train a model on a recipe and record everything."),
    "preflight": ("uptrend.cli.preflight", "command", "Probe a recipe for faults before it runs."),
    "warmstart": (
        "uptrend.cli.train",
        "warmstart_command",
        "Teach a model an expert's rollouts, or conversations.",
    ),
    "eval": ("uptrend.cli.evaluate", "command", "Score a model or checkpoint on held-out tasks."),
    "doctor": ("uptrend.cli.doctor", "command", "Explain why a run does not learn."),
    "explain": ("uptrend.cli.explain", "command", "Explain a cause, a config key or a metric."),
    "lab": ("uptrend.cli.lab", "app", "Test hypotheses by experiment; keep a journal."),
    "replay": ("uptrend.cli.replay", "command", "Repeat a run's updates with one setting changed."),
    "runs": ("uptrend.cli.runs", "app", "List, show and compare run directories."),
    "rollouts": (
        "uptrend.cli.rollouts",
        "app",
        "Play recorded rollouts again; write them as Markdown.",
    ),
    "plot": ("uptrend.cli.plot", "command", "Draw the curves of runs as PNG or SVG."),
    "serve": ("uptrend.cli.serve", "command", "Open the dashboard in a browser."),
    "export": ("uptrend.cli.serve", "export", "Write a run as one page that needs no server."),
    "track": ("uptrend.cli.track", "command", "Send a run to W&B, Trackio, TensorBoard or MLflow."),
    "tasks": ("uptrend.cli.tasks", "app", "List, show and validate tasksets."),
    "sandbox": ("uptrend.cli.sandbox", "app", "See where a model's commands can run."),
    "models": ("uptrend.cli.models", "app", "List, pull, show and serve models."),
    "convert": (
        "uptrend.cli.convert",
        "command",
        "Turn TRL's or prime-rl's settings into a recipe, and back.",
    ),
}
"""Verbs by name: module, function or app in it, and one line of help."""
# Processes in the run queue beyond the number of cores from which the machine is busy.
BUSY_MARGIN = 0.5
# 128 + SIGINT, as shells have it.
INTERRUPTED_EXIT_CODE = 130


class Verbs(TyperGroup):
    """Group that imports a verb when it is called: `--help` stays fast and needs no torch."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        # Click lists and suggests the keys. The values stay None: `get_command` imports a verb.
        self.commands = dict.fromkeys(VERBS)  # type: ignore[assignment]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 (Click's signature)
        if cmd_name not in VERBS:
            return None
        module, attribute, _ = VERBS[cmd_name]
        verb = getattr(importlib.import_module(module), attribute)
        if isinstance(verb, typer.Typer):
            return typer.main.get_command(verb)
        # Help texts hold [sections]: no markup.
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        single.command(cmd_name)(verb)
        return typer.main.get_command(single)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as error:
            if _is_unknown_option(error):
                hint = _setting_hint(error.option_name, error.ctx.command)  # type: ignore[attr-defined]
                error.message += hint  # type: ignore[attr-defined]
            raise

    # Click would import every verb for its first line of help: torch and scipy with them.
    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 (Click's signature)
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, _, summary) in VERBS.items()])

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        from typer.core import CompletionItem  # type: ignore[attr-defined]

        items = []
        for name, (_, _, summary) in VERBS.items():
            if name.startswith(incomplete):
                items.append(CompletionItem(name, help=summary))
        return items


def _is_unknown_option(error: Exception) -> bool:
    """Return True for Click's NoSuchOption, recognized by its attributes: the class is Typer's own
    in some versions and Click's in others.
    """
    return bool(getattr(error, "option_name", "")) and hasattr(error, "possibilities")


def _setting_hint(option: str, verb: Any) -> str:
    """Return the `--set` that an unknown option may mean; empty for a verb that takes none."""
    if all("--set" not in parameter.opts for parameter in verb.params):
        return ""
    from uptrend.config.load import dotted_keys
    from uptrend.records.dialects import meanings

    name = option.lstrip("-").replace("-", "_")
    keys = [key for key in dotted_keys() if key == name or key.endswith(f".{name}")]
    if not keys:
        keys = list(meanings(name))  # another trainer's word
    if not keys:
        return ""
    settings = [f"--set {key}=VALUE" for key in keys]
    return f". Did you mean {' or '.join(settings)}?"


app = typer.Typer(cls=Verbs, no_args_is_help=True, rich_markup_mode=None)


def _print_version(is_set: bool) -> None:
    if is_set:
        typer.echo(f"uptrend {sys.modules['uptrend'].__version__}")
        raise typer.Exit


@app.callback()
def uptrend(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """RL post-training that explains itself.

    \b
    uptrend train recipes/quickstart.toml  learn arithmetic
    uptrend runs show quickstart           see how it went
    uptrend serve                          see it in a browser
    uptrend doctor runs/quickstart         see what limits it
    uptrend tasks validate arithmetic      check a taskset
    """


def main(arguments: list[str] | None = None) -> Any:
    """Run the console script."""
    if hasattr(os, "getloadavg"):
        load = os.getloadavg()[0]
        cores = os.cpu_count() or 1
        if load > cores + BUSY_MARGIN:
            # OpenMP threads busy-wait. On a busy machine they starve the threads they wait for, and
            # steps take many times as long; on a quiet one busy-waiting speeds up small models.
            # OpenMP reads this variable when torch loads.
            os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    return call(app, arguments)


def call(commands: typer.Typer, arguments: list[str] | None = None) -> Any:
    """Run a command line; an error that the user can fix is printed in a sentence and exits with 2.

    Of several processes that train together only the first prints; an error is printed by the first
    process that has one.
    """
    default_showwarning = warnings.showwarning

    def show_warning(*arguments: Any, **options: Any) -> None:
        message, category = arguments[:2]
        # For the user who typed an old name or runs a server: one line, without the file and line
        # number of this package.
        if issubclass(category, RenamedWarning | ServerWarning):
            print(f"note: {message}", file=sys.stderr)
        else:
            default_showwarning(*arguments, **options)

    try:
        with warnings.catch_warnings(), contextlib.ExitStack() as stack:
            warnings.showwarning = show_warning
            warnings.simplefilter("always", ServerWarning)
            if os.environ.get("RANK", "0") != "0":
                warnings.simplefilter("ignore")
                null = stack.enter_context(open(os.devnull, "w"))
                stack.enter_context(contextlib.redirect_stdout(null))
                stack.enter_context(contextlib.redirect_stderr(null))
            return commands(arguments, standalone_mode=True)
    # Here the `with` block has ended, so stdout and stderr are redirected no more: ranks other than
    # 0 can print too.
    except UptrendError as error:
        if _claim_error_report():
            print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except Exception:
        if not _claim_error_report():
            sys.exit(1)
        raise
    except KeyboardInterrupt:
        if _claim_error_report():
            print("interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED_EXIT_CODE)


def _claim_error_report() -> bool:
    """Claim the printing of an error for this process; return False if another process has claimed
    it.

    The first call in any of the processes wins, so call it once. Among several processes, this one
    ignores SIGTERM from then on.
    """
    if int(os.environ.get("WORLD_SIZE") or 1) < 2:
        return True
    # The launcher sends SIGTERM to all processes when one has failed; this one still has to print.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    from uptrend.training.ranks import is_first_to_report

    return is_first_to_report()
