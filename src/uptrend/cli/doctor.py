"""`uptrend doctor`: say why a run does not learn, from its directory or from anybody's log. No torch."""

import contextlib
import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from uptrend.cli.console import terminal
from uptrend.cli.options import FailOn
from uptrend.doctor.rank import at_least
from uptrend.doctor.report import print_report, to_html, to_markdown, to_table
from uptrend.records import RecordError, Report, Severity
from uptrend.records.directory import write_whole
from uptrend.runner import reports_of


class ReportFormat(StrEnum):
    """How to tell it."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"
    HTML = "html"


Paths = Annotated[
    list[Path], typer.Argument(help="Run directories, logs or folders of other trainers.", readable=False)
]


def command(
    paths: Paths,
    format: Annotated[ReportFormat, typer.Option("--format", "-f", help="How to tell it.")] = ReportFormat.TEXT,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write it there instead.")] = None,
    fail_on: Annotated[
        FailOn | None, typer.Option("--fail-on", help="Exit with 1 where a finding is as bad as this.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="List all that could not be told.")] = False,
    no_save: Annotated[bool, typer.Option("--no-save", help="Write no findings.json into an Uptrend run.")] = False,
) -> None:
    """Say why a run does not learn.

    \b
    uptrend doctor runs/quickstart                      a run of Uptrend's
    uptrend doctor outputs/checkpoint-500               TRL: trainer_state.json, completions
    uptrend doctor train.log metrics.jsonl curves.csv   consoles and tables
    uptrend doctor events.out.tfevents.* wandb/offline-run-*
    uptrend doctor runs/quickstart --format json --fail-on critical

    Formats and metric names that are known: docs/formats.md. The JSON: docs/doctor.md.

    Exit codes: 0 told, 1 a finding as bad as --fail-on, 2 something could not be read.
    """
    reports, broken = _read_all(paths)
    if reports:
        _tell(reports, format, out, verbose)
        if not no_save:
            for source in {report.source for report in reports}:
                _save(Path(source), reports)
    for message in broken:
        typer.echo(f"error: {message}", err=True)
    if broken:
        raise typer.Exit(2)
    if fail_on is not None and any(at_least(f, Severity(fail_on)) for report in reports for f in report.findings):
        raise typer.Exit(1)


def _read_all(paths: list[Path]) -> tuple[list[Report], list[str]]:
    """What could be read is told, whatever else could not."""
    reports, broken = list[Report](), list[str]()
    for path in paths:
        try:
            reports += reports_of(path)
        except RecordError as error:
            broken.append(str(error))
        except OSError as error:
            broken.append(f"{error.filename or path} could not be read: {error.strerror or error}.")
    return reports, broken


def _tell(reports: list[Report], format: ReportFormat, out: Path | None, verbose: bool) -> None:
    if format is ReportFormat.TEXT and out is None:
        console = terminal()
        for place, report in enumerate(reports):
            if place:
                console.rule()
            print_report(report, console, verbose)
        return
    text = _text(reports, format, verbose)
    if out is not None:
        write_whole(out, text.encode())
        typer.echo(f"Wrote {out}", err=True)
    else:
        sys.stdout.write(text)


def _text(reports: list[Report], format: ReportFormat, verbose: bool) -> str:
    if format is ReportFormat.JSON:
        return json.dumps(to_table(reports), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    if format is ReportFormat.MARKDOWN:
        return to_markdown(reports)
    if format is ReportFormat.HTML:
        return to_html(reports)
    from io import StringIO

    from rich.console import Console

    page = StringIO()
    for report in reports:
        print_report(report, Console(file=page, width=100), verbose)
    return page.getvalue()


def _save(path: Path, reports: list[Report]) -> None:
    """Beside the records that it is about; where that can't be written, the telling was enough."""
    own = [report for report in reports if Path(report.source) == path]
    if (path / "run.json").exists():
        with contextlib.suppress(RecordError):
            write_whole(path / "findings.json", json.dumps(to_table(own), indent=1, ensure_ascii=False).encode())
