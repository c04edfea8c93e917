"""`uptrend doctor`: explain why a run does not learn, from its directory or from any trainer's log.
No torch.
"""

import contextlib
import json
from contextlib import nullcontext
from io import StringIO
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from uptrend.cli.console import FailOn, write_text
from uptrend.doctor.check import is_at_least
from uptrend.doctor.report import print_report, save_report, to_html, to_markdown, to_table
from uptrend.doctor.trend import REWARD_METRIC
from uptrend.present.terminal import terminal
from uptrend.records import ConfigError, RecordError, Report, Severity
from uptrend.runner import reports_of

LARGE = 20.0  # MB from which a log takes seconds to read
ReportFormat = Literal["text", "json", "markdown", "html"]


def command(
    paths: Annotated[
        list[Path],
        typer.Argument(help="Runs, or logs and folders of other trainers.", readable=False),
    ],
    format: Annotated[ReportFormat, typer.Option("--format", "-f", help="Output format.")] = "text",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the report to this file.")
    ] = None,
    fail_on: Annotated[
        FailOn | None, typer.Option(help="Exit with 1 if a finding is at least this severe.")
    ] = None,
    named: Annotated[
        list[str] | None,
        typer.Option(
            "--map", help="COLUMN=METRIC: read a log's column as this metric. Repeat for more."
        ),
    ] = None,
    reward_key: Annotated[str, typer.Option(help="The log's column that is the reward.")] = "",
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="List every cause that could not be told.")
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
    uptrend doctor runs/quickstart --format json \\
        --fail-on critical                  for scripts
    uptrend doctor log.csv --map my_kl=kl \\
        --reward-key points                 names of your own

    Formats are told by content: TRL, verl, prime-rl, verifiers, tinker, TensorBoard, W&B, JSON
    lines, CSV, consoles. `uptrend explain ID` prints a cause's page. Exit code 2: something could
    not be read, or no reward was found in it.
    """
    if (
        out is not None
        and out.exists()
        and any(path.exists() and out.samefile(path) for path in paths)
    ):
        raise RecordError(
            f"--out {out} is a file to read. Choose another one: it would be overwritten."
        )
    reports = list[Report]()
    broken = list[str]()
    meanings = dict(_pair(given) for given in named or ()) | (
        {reward_key: REWARD_METRIC} if reward_key else {}
    )
    for path in paths:
        try:
            if path.suffix == ".toml" and path.is_file():
                raise RecordError(f"{path} is a recipe and no log: uptrend preflight {path}")
            size = path.stat().st_size / 1e6 if path.is_file() else 0.0
            # On stderr, and only in a terminal.
            with (
                Console(stderr=True).status(f"Reading {path} ({size:.0f} MB)…")
                if size > LARGE
                else nullcontext()
            ):
                found = reports_of(path, meanings)
            reports += found
            # Judged by its other curves all the same.
            broken += [
                f"{r.source} has no reward: name it by --reward-key. Columns not known:"
                f" {', '.join(r.unknown[:8])}."
                for r in found
                if r.steps and not r.curve and r.trainer != "uptrend"
            ]
        except RecordError as error:
            broken.append(str(error))
        except OSError as error:
            broken.append(f"{error.filename or path} could not be read: {error.strerror or error}.")
    if reports:
        _write(reports, format, out, verbose)
        for path in () if no_save else {Path(report.source) for report in reports}:
            own = [report for report in reports if Path(report.source) == path]
            if (path / "run.json").exists():
                with contextlib.suppress(RecordError):  # a read-only run was still reported
                    save_report(path, own)
    for message in broken:
        typer.echo(f"error: {message}", err=True)
    if broken:
        raise typer.Exit(2)
    if fail_on is not None and any(
        is_at_least(f, Severity(fail_on)) for report in reports for f in report.findings
    ):
        raise typer.Exit(1)


def _pair(given: str) -> tuple[str, str]:
    column, sign, metric = given.rpartition("=")
    if not (sign and column and metric):
        raise ConfigError(f"--map {given} should be COLUMN=METRIC, such as --map my_kl=kl.")
    return column, metric


def _write(reports: list[Report], format: ReportFormat, out: Path | None, verbose: bool) -> None:
    if format == "json":
        text = json.dumps(to_table(reports), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    elif format == "markdown":
        text = to_markdown(reports)
    elif format == "html":
        text = to_html(reports)
    else:
        # Straight to a terminal, for its colors and width; through a page of 100 columns into a
        # file.
        page = StringIO()
        console = terminal() if out is None else terminal(file=page, width=100)
        for place, report in enumerate(reports):
            if place:
                console.rule()
            print_report(report, console, verbose)
        text = page.getvalue()
    write_text(text, out)
