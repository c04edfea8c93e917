"""`uptrend preflight`: probe the real model, tasks and learner for what could keep a run from
learning, before it runs.
"""

import time
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from uptrend.bridge.convert import load_recipe
from uptrend.cli.console import FailOn, Format, Overrides, print_json
from uptrend.doctor.check import is_at_least
from uptrend.policy.known import need_train_extra
from uptrend.present.formatting import duration, plural
from uptrend.present.terminal import terminal
from uptrend.records import ConfigError, Role, Severity
from uptrend.records.renamed import current
from uptrend.runner.preflight import Preflight, run_named_probes
from uptrend.runner.prepare import prepare, refuse_ranks, settle_chat
from uptrend.runner.view import failures, finding_lines, result_line

if TYPE_CHECKING:
    from uptrend.doctor.probes.probe import Result

# Groups that the probes play.
PROBE_GROUPS = 16
ROLE_STYLES = {Role.PROMPT: "dim", Role.MODEL: "green", Role.TOOL: "blue"}
# Style of tokens that are trained or untrained by mistake, or hidden from attention.
MISTAKE_STYLE = "bold white on red"
# Longer pieces of a rollout are shortened to this many characters of their start and of their end.
MAX_PIECE_CHARACTERS = 400
PIECE_END_CHARACTERS = 200


def command(
    recipe: Annotated[Path, typer.Argument(help="A recipe: a TOML file, or prime-rl's rl.toml.")],
    overrides: Overrides = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Ask only this probe. Repeat for more.")
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Also learn 16 tasks by RL: minutes.")
    ] = False,
    format: Annotated[Format, typer.Option(help="Output format.")] = "text",
    fail_on: Annotated[
        FailOn, typer.Option(help="Exit with 1 from this severity on.")
    ] = "critical",
) -> None:
    """Probe the real model, tasks and learner for what could keep a run from learning, before it
    runs.

    \b
    uptrend preflight recipes/quickstart.toml
    uptrend preflight recipes/tiny.toml --only prompt-swap --only masks
    uptrend preflight recipes/tiny.toml --format json --fail-on warning

    Each probe shows its figure; one that fails shows its exception, and the others go on. Nothing
    is written, and nothing is learned: weights come back bit for bit. Exit code 1: a finding. Exit
    code 2: a probe failed.
    """
    need_train_extra()
    from uptrend.doctor.probes import PROBES, differential

    names = [current(name) for name in only or ()]
    for name in names:
        if name not in PROBES:
            raise ConfigError(
                f"--only {name}: there is no such probe. There are {', '.join(PROBES)}."
            )
    if not names:
        names = [name for name, probe in PROBES.items() if full or not probe.full]
    began = time.perf_counter()
    is_text = format == "text"
    console = terminal()
    results: list[Result] = []
    # On stderr, and only in a terminal: stdout may be JSON for a program.
    with Console(stderr=True).status("Loading the model and its tasks…") as status:
        config = load_recipe(recipe, overrides or ())
        for note in config.notes:
            typer.echo(note, err=True)
        refuse_ranks("preflight")
        prepared = settle_chat(prepare(config))
        for note in prepared.notes:
            typer.echo(note, err=True)

        def show_probe(name: str) -> None:
            status.update(f"{name}: {PROBES[name].about}")

        for result in run_named_probes(prepared, names, PROBE_GROUPS, show_probe):
            results.append(result)
            if is_text:
                console.print(result_line(result), soft_wrap=True)
    report = Preflight(str(recipe), results, differential(results), time.perf_counter() - began)
    if is_text:
        for line in (*_rollout_lines(results), *finding_lines(report.findings)):
            console.print(line, soft_wrap=True)
        n_skipped = len(results) - report.n_completed - len(report.failed)
        console.print(
            f"{report.findings_in_words} by {plural(report.n_completed, 'probe')}"
            f" ({n_skipped} do not apply{failures(report)}), {duration(report.seconds)}."
        )
    else:
        print_json(report.to_table())
    if any(is_at_least(finding, Severity(fail_on)) for finding in report.findings):
        raise typer.Exit(1)
    if report.failed:
        raise typer.Exit(2)


def _rollout_lines(results: Sequence["Result"]) -> Iterator[Text]:
    """Format rollouts of the probes, colored by role and by mistakes in masks."""
    printouts = list(chain.from_iterable(result.printout for result in results))
    if printouts:
        yield Text.assemble(
            "\nRollouts: ",
            ("prompt", ROLE_STYLES[Role.PROMPT]),
            ", ",
            ("model, trained", ROLE_STYLES[Role.MODEL]),
            ", ",
            ("tool", ROLE_STYLES[Role.TOOL]),
            ", ",
            ("trained or hidden by mistake", MISTAKE_STYLE),
        )
    for pieces in printouts:
        line = Text("  ")
        for piece in pieces:
            text = piece.text.replace("\n", "⏎")
            if len(text) > MAX_PIECE_CHARACTERS:
                text = f"{text[:PIECE_END_CHARACTERS]} … {text[-PIECE_END_CHARACTERS:]}"
            is_right = piece.trained == (piece.role is Role.MODEL) and piece.attended
            line.append(text, ROLE_STYLES[piece.role] if is_right else MISTAKE_STYLE)
        yield line
