"""`uptrend preflight`: ask the real model, tasks and learner what could keep a run from learning, before it runs."""

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from uptrend.cli.console import FailOn, Format
from uptrend.cli.preflight_text import finding_lines, print_result, print_rollouts
from uptrend.config import load_config
from uptrend.policy.known import need_train_extra
from uptrend.records import ConfigError, Severity
from uptrend.records.renamed import current
from uptrend.runner.preflight import Preflight, ask_probes
from uptrend.runner.prepare import Prepared, prepare
from uptrend.stats.formatting import duration, plural

if TYPE_CHECKING:
    from uptrend.doctor.probes.result import Result

GROUPS = 16
"""Groups that the probes play."""
GRAVE = {FailOn.CRITICAL: (Severity.CRITICAL,), FailOn.WARNING: (Severity.CRITICAL, Severity.WARNING)}


def command(
    recipe: Annotated[Path, typer.Argument(help="A recipe: a TOML file.")],
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", help="Override one value: --set learning.lr=2e-5. Repeat for more."),
    ] = None,
    only: Annotated[list[str] | None, typer.Option(help="Ask only this probe. Repeat for more.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Also learn 16 tasks by RL: minutes.")] = False,
    format: Annotated[Format, typer.Option(help="How to print the result.")] = Format.TEXT,
    fail_on: Annotated[FailOn, typer.Option(help="Exit with 1 from this severity on.")] = FailOn.CRITICAL,
) -> None:
    """Ask the real model, tasks and learner what could keep a run from learning, before it runs.

    \b
    uptrend preflight recipes/quickstart.toml
    uptrend preflight recipes/tiny.toml --only prompt-swap --only masks
    uptrend preflight recipes/tiny.toml --format json --fail-on warning

    Each probe shows its figure. Nothing is written, and nothing is learned: weights come back bit for bit.
    """
    need_train_extra()
    from uptrend.doctor.probes.run import differential

    names = _chosen(only or (), full)
    began = time.perf_counter()
    with _status("Loading the model and its tasks…", format):
        prepared = prepare(load_config(recipe, sets or ()))
    console = Console(highlight=False, markup=False, emoji=False)
    results: list[Result] = []
    for result in _ask(prepared, names, format):
        results.append(result)
        if format is Format.TEXT:
            print_result(console, result)
    report = Preflight(str(recipe), results, differential(results), time.perf_counter() - began)
    if format is Format.JSON:
        typer.echo(json.dumps(report.to_table(), indent=2, ensure_ascii=False))
    else:
        print_rollouts(console, results)
        for line in finding_lines(report.findings):
            console.print(line, soft_wrap=True)
        probes = plural(report.asked, "probe")
        rest = len(results) - report.asked
        console.print(f"{report.count} by {probes} ({rest} do not apply), {duration(report.seconds)}.")
    if report.is_grave(GRAVE[fail_on]):
        raise typer.Exit(1)


def tell_preflight(report: Preflight) -> None:
    """Print on stderr what the cheap probes before a run found."""
    typer.echo(f"preflight: {report.count} by {plural(report.asked, 'probe')}, {duration(report.seconds)}", err=True)
    for line in finding_lines([f for f in report.findings if f.severity != Severity.NOTE]):
        typer.echo(line.plain, err=True)


def _chosen(only: Sequence[str], full: bool) -> list[str]:
    from uptrend.doctor.probes import PROBES

    known = [current(name) for name in only]
    for name in known:
        if name not in PROBES:
            raise ConfigError(f"--only {name}: there is no such probe. There are {', '.join(PROBES)}.")
    return known or [name for name, probe in PROBES.items() if full or not probe.full]


def _ask(prepared: Prepared, names: Iterable[str], format: Format) -> "Iterator[Result]":
    """Run the probes, showing on stderr which one is running."""
    from uptrend.doctor.probes import PROBES

    with _status("", format) as status:
        yield from ask_probes(prepared, names, GROUPS, lambda name: status(f"{name}: {PROBES[name].asks}"))


@contextmanager
def _status(words: str, format: Format) -> "Iterator[Any]":
    """Says on stderr what is going on, where that is a terminal."""
    console = Console(stderr=True, highlight=False, markup=False)
    if format is Format.JSON or not console.is_terminal:
        yield lambda _: None
        return
    with console.status(words) as status:
        yield lambda words: status.update(words)
