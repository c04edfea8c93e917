"""`uptrend preflight`: ask the real model, tasks and learner what could keep a run from learning, before it runs."""

import json
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from uptrend.cli.launch import Prepared, prepare
from uptrend.cli.preflight_text import finding_lines, print_result, print_rollouts
from uptrend.config import load_config
from uptrend.doctor.report.table import finding_table
from uptrend.policy.known import need_train_extra
from uptrend.records import ConfigError, Finding, RunDirectory, Severity
from uptrend.train.observer import Stop

if TYPE_CHECKING:
    from uptrend.doctor.probes.result import Result

GROUPS, FEW_GROUPS = 16, 2
"""Groups that are played: by the command, and ahead of training, where seconds count."""
VERSION = 1
"""Of what --format json prints."""


class Format(StrEnum):
    """How the result is printed."""

    TEXT = "text"
    JSON = "json"


class FailOn(StrEnum):
    """From which severity on the exit code is 1."""

    WARNING = "warning"
    CRITICAL = "critical"


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
    for result in _ask(prepared, names, GROUPS, format):
        results.append(result)
        if format is Format.TEXT:
            print_result(console, result)
    findings = differential(results)
    seconds = time.perf_counter() - began
    if format is Format.JSON:
        typer.echo(json.dumps(plain(str(recipe), results, findings, seconds), indent=2, ensure_ascii=False))
    else:
        print_rollouts(console, results)
        for line in finding_lines(findings):
            console.print(line, soft_wrap=True)
        asked = sum(not r.skipped for r in results)
        probes = "1 probe" if asked == 1 else f"{asked} probes"
        console.print(f"{_count(findings)} by {probes} ({len(results) - asked} do not apply), {seconds:.0f} s.")
    if _is_grave(findings, fail_on):
        raise typer.Exit(1)


def check_first(prepared: Prepared, directory: RunDirectory, allows: Collection[str] = ()) -> Stop | None:
    """The cheap probes ahead of a run: figures go to its events; a critical finding that is not allowed stops it."""
    from uptrend.doctor.probes import PROBES
    from uptrend.doctor.probes.run import differential

    began = time.perf_counter()
    names = [name for name, probe in PROBES.items() if probe.cheap]
    results = list(_ask(prepared, names, FEW_GROUPS, Format.TEXT))
    findings, seconds = differential(results), time.perf_counter() - began
    directory.event("preflight", **plain(prepared.config.name, results, findings, seconds))
    asked = sum(not r.skipped for r in results)
    typer.echo(f"preflight: {_count(findings)} by {asked} probes, {seconds:.1f} s", err=True)
    for line in finding_lines([f for f in findings if f.severity != Severity.NOTE]):
        typer.echo(line.plain, err=True)
    grave = next((f for f in findings if f.severity == Severity.CRITICAL and f.id not in allows), None)
    return None if grave is None else Stop(f"preflight: {grave.id}: {grave.summary}")


def plain(recipe: str, results: Sequence["Result"], findings: Sequence[Finding], seconds: float) -> dict[str, Any]:
    """As --format json prints it, and as a run's events keep it."""
    return {
        "version": VERSION,
        "recipe": recipe,
        "passed": not _is_grave(findings, FailOn.CRITICAL),
        "seconds": round(seconds, 2),
        "probes": [
            {
                "name": r.name, "ok": r.ok, "figure": r.figure, "skipped": r.skipped,
                "seconds": round(r.seconds, 2), "findings": [f.id for f in r.findings],
            }
            for r in results
        ],
        "findings": [
            *(finding_table(cause) for cause in findings),
            *(finding_table(symptom, cause.id) for cause in findings for symptom in cause.explains),
        ],
    }  # fmt: skip


def _chosen(only: Sequence[str], full: bool) -> list[str]:
    from uptrend.doctor.probes import PROBES

    for name in only:
        if name not in PROBES:
            raise ConfigError(f"--only {name}: there is no such probe. There are {', '.join(PROBES)}.")
    return list(only) or [name for name, probe in PROBES.items() if full or not probe.full]


def _ask(prepared: Prepared, names: Iterable[str], groups: int, format: Format) -> "Iterator[Result]":
    """Each probe's result, with what is being asked on stderr while it is."""
    from uptrend.doctor.probes import PROBES
    from uptrend.doctor.probes.bench import Bench
    from uptrend.doctor.probes.run import run_probes

    bench = Bench(prepared.config, prepared.policy, prepared.pool, prepared.held_out, groups)
    with _status("", format) as status:
        yield from run_probes(bench, names, lambda name: status(f"{name}: {PROBES[name].asks}"))


@contextmanager
def _status(words: str, format: Format) -> "Iterator[Any]":
    """Says on stderr what is going on, where that is a terminal."""
    console = Console(stderr=True, highlight=False, markup=False)
    if format is Format.JSON or not console.is_terminal:
        yield lambda _: None
        return
    with console.status(words) as status:
        yield lambda words: status.update(words)


def _is_grave(findings: Sequence[Finding], fail_on: FailOn) -> bool:
    grave = {Severity.CRITICAL} if fail_on is FailOn.CRITICAL else {Severity.CRITICAL, Severity.WARNING}
    return any(f.severity in grave for f in findings)


def _count(findings: Sequence[Finding]) -> str:
    counts = {s: sum(f.severity == s for f in findings) for s in Severity}
    told = [f"{n} {s.value}{'s' if n > 1 and s != Severity.CRITICAL else ''}" for s, n in counts.items() if n]
    return ", ".join(told) + " found" if told else "nothing found"
