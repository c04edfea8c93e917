"""`uptrend doctor`: explain why a run does not learn, from its directory or from any trainer's log.
No torch.
"""

import contextlib
import json
import os
import select
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from io import StringIO
from itertools import chain
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from uptrend.cli.console import AsJson, FailOn, write_text
from uptrend.doctor.check import is_at_least
from uptrend.doctor.report import print_report, save_report, to_html, to_markdown, to_table
from uptrend.doctor.trend import REWARD_METRIC
from uptrend.present.terminal import terminal
from uptrend.records import ConfigError, RecordError, Report, Severity
from uptrend.runner import reports_of, reports_of_text

# Argument that stands for the standard input.
STDIN = Path("-")
# Bytes of the standard input that are read, and seconds that a pipe has to deliver them. A paste
# has a few thousand; a program that never ends, such as `tail -f`, is cut.
MAX_STDIN_BYTES = 8_000_000
STDIN_TIMEOUT_S = 10.0
_CHUNK_BYTES = 1 << 16
# A log above this size takes seconds to read.
LARGE_LOG_MB = 20.0
# Columns of a log that the error on a missing reward names.
MAX_COLUMNS_NAMED = 8
# Width of a report that is written into a file.
PAGE_WIDTH = 100
ReportFormat = Literal["text", "json", "markdown", "html"]


def command(
    paths: Annotated[
        list[Path],
        typer.Argument(
            help="Runs, logs and folders of other trainers, or - for what is pasted or piped.",
            readable=False,
            allow_dash=True,
        ),
    ],
    format: Annotated[ReportFormat, typer.Option("--format", "-f", help="Output format.")] = "text",
    json_: AsJson = False,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the report to this file.")
    ] = None,
    fail_on: Annotated[
        FailOn | None, typer.Option(help="Exit with 1 if a finding is at least this severe.")
    ] = None,
    column_maps: Annotated[
        list[str] | None,
        typer.Option(
            "--map", help="COLUMN=METRIC: read a log's column as this metric. Repeat for more."
        ),
    ] = None,
    reward_key: Annotated[str, typer.Option(help="The log's column that is the reward.")] = "",
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="List every cause that could not be judged.")
    ] = False,
    lists_all: Annotated[
        bool, typer.Option("--all", help="List every cause of the differential and every test.")
    ] = False,
    no_save: Annotated[
        bool, typer.Option("--no-save", help="Write no findings.json into an Uptrend run.")
    ] = False,
) -> None:
    """Explain why a run does not learn.

    \b
    uptrend doctor runs/quickstart          a run of Uptrend
    uptrend doctor outputs/checkpoint-500   a run of TRL
    uptrend doctor train.log metrics.jsonl  console and table
    uptrend doctor events.out.tfevents.*    TensorBoard
    uptrend doctor -                        pasted or piped lines
    uptrend doctor runs/quickstart --json \\
        --fail-on critical                  for scripts
    uptrend doctor log.csv --map my_kl=kl \\
        --reward-key points                 names of your own

    A run that does not learn gets a differential: the causes that remain with their probability,
    and the test that splits them best, as a command.

    One pasted line is enough where it proves something. Formats are recognized by content: TRL,
    verl, prime-rl, verifiers, tinker, TensorBoard, W&B, JSON lines, CSV, tables, consoles.
    `uptrend explain ID` prints a cause's page. Exit code 2: something could not be read, or no
    reward was found in it.
    """
    if json_:
        format = "json"
    for path in paths:
        if out is not None and out.exists() and path.exists() and out.samefile(path):
            raise RecordError(
                f"--out {out} is a file to read. Choose another one: it would be overwritten."
            )
    metrics_by_column = dict(_read_map(text) for text in column_maps or ())
    if reward_key:
        metrics_by_column[reward_key] = REWARD_METRIC

    reports: list[Report] = []
    errors: list[str] = []
    for path in paths:
        try:
            path_reports = _diagnose(path, metrics_by_column)
        except RecordError as error:
            errors.append(str(error))
            continue
        except OSError as error:
            errors.append(f"{error.filename or path} could not be read: {error.strerror or error}.")
            continue
        reports += path_reports
        # A log without a reward is still judged by its other curves; of a paste the user may have
        # left the reward out.
        for report in path_reports if path != STDIN else ():
            if report.steps and not report.curve and report.trainer != "uptrend":
                unknown = ", ".join(report.unknown[:MAX_COLUMNS_NAMED])
                errors.append(
                    f"{report.source} has no reward: name it by --reward-key. Columns not known:"
                    f" {unknown}."
                )

    if reports:
        _write(reports, format, out, verbose, lists_all)
        if not no_save:
            _save(reports)
    for message in errors:
        typer.echo(f"error: {message}", err=True)
    if errors:
        raise typer.Exit(2)
    if fail_on is not None:
        findings = chain.from_iterable(report.findings for report in reports)
        if any(is_at_least(finding, Severity(fail_on)) for finding in findings):
            raise typer.Exit(1)


def _diagnose(path: Path, metrics_by_column: Mapping[str, str]) -> list[Report]:
    """Diagnose the runs of a path, with a status line on stderr while a large log is read."""
    if path == STDIN:
        return _diagnose_stdin(metrics_by_column)
    if path.suffix == ".toml" and path.is_file():
        raise RecordError(f"{path} is a recipe and no log: uptrend preflight {path}")
    size_mb = path.stat().st_size / 1e6 if path.is_file() else 0.0
    if size_mb <= LARGE_LOG_MB:
        return reports_of(path, metrics_by_column)
    with Console(stderr=True).status(f"Reading {path} ({size_mb:.0f} MB)…"):
        return reports_of(path, metrics_by_column)


def _diagnose_stdin(metrics_by_column: Mapping[str, str]) -> list[Report]:
    """Diagnose what is pasted into a terminal or piped; a note says if it was cut."""
    if sys.stdin is None or sys.stdin.closed:
        raise RecordError("There is no standard input to read: name a file instead of -.")
    if sys.stdin.isatty():
        typer.echo("Paste lines that a trainer printed, then press Ctrl-D.", err=True)
    data, note = _read_stdin(sys.stdin.fileno(), waits=sys.stdin.isatty())
    reports = reports_of_text(data, metrics_by_column)
    if note:
        reports = [replace(report, notes=(note, *report.notes)) for report in reports]
    return reports


def _read_stdin(descriptor: int, waits: bool) -> tuple[bytes, str]:
    """Return what a descriptor delivers within the limits, and a note if it delivers more.

    A person who pastes may take their time: `waits` sets no limit of time.
    """
    content = bytearray()
    deadline = time.monotonic() + STDIN_TIMEOUT_S
    while True:
        if not waits and not _is_readable(descriptor, deadline - time.monotonic()):
            note = f"The input did not end within {STDIN_TIMEOUT_S:.0f} seconds"
            break
        chunk = os.read(descriptor, _CHUNK_BYTES)
        if not chunk:
            return bytes(content), ""
        content += chunk
        if len(content) > MAX_STDIN_BYTES:
            note = f"The input is longer than {MAX_STDIN_BYTES / 1e6:.0f} MB"
            break
    if not content:
        raise RecordError(f"{note}, and nothing arrived: paste or pipe what a trainer printed.")
    return bytes(content[:MAX_STDIN_BYTES]), f"{note}: only its beginning was read."


def _is_readable(descriptor: int, timeout_s: float) -> bool:
    """Return True once there is something to read or the end was reached; False after a timeout."""
    if timeout_s <= 0:
        return False
    try:
        return bool(select.select([descriptor], [], [], timeout_s)[0])
    except (OSError, ValueError):
        # Windows can wait for sockets alone: there a read waits instead.
        return True


def _save(reports: Sequence[Report]) -> None:
    """Save reports in the directories of their runs; logs of other trainers are left alone."""
    reports_by_source: dict[Path, list[Report]] = {}
    for report in reports:
        reports_by_source.setdefault(Path(report.source), []).append(report)
    for source, source_reports in reports_by_source.items():
        if (source / "run.json").exists():
            with contextlib.suppress(RecordError):  # a read-only run was still reported
                save_report(source, source_reports)


def _read_map(text: str) -> tuple[str, str]:
    column, sign, metric = text.rpartition("=")
    if not (sign and column and metric):
        raise ConfigError(f"--map {text} should be COLUMN=METRIC, such as --map my_kl=kl.")
    return column, metric


def _write(
    reports: list[Report], format: ReportFormat, out: Path | None, verbose: bool, lists_all: bool
) -> None:
    if format == "json":
        text = json.dumps(to_table(reports), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    elif format == "markdown":
        text = to_markdown(reports)
    elif format == "html":
        text = to_html(reports)
    else:
        # Directly to a terminal, which has colors and a width; a file gets a page.
        page = StringIO()
        console = terminal() if out is None else terminal(file=page, width=PAGE_WIDTH)
        for index, report in enumerate(reports):
            if index:
                console.rule()
            print_report(report, console, verbose, lists_all)
        text = page.getvalue()  # empty where the report went to the terminal
    write_text(text, out)
