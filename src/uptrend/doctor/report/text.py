"""The report in a terminal."""

from rich.console import Console
from rich.text import Text

from uptrend.doctor.report.sections import changes, decides, evidence, held_out, lacking, symptoms, title
from uptrend.records import Finding, Report, Severity, TrendKind

COLORS = {Severity.CRITICAL: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}
STYLES = {
    TrendKind.LEARNING: "bold green",
    TrendKind.FLAT: "bold red",
    TrendKind.FALLING: "bold red",
    TrendKind.TOO_SHORT: "yellow",
}
MARGIN = 3


def print_report(report: Report, console: Console, verbose: bool = False) -> None:
    """The trend, the causes in order, and what could not be told; notes in short unless all is asked for."""
    _line(console, title(report), "dim", 0)
    _line(console, report.trend.kind.upper(), STYLES[report.trend.kind], 0)
    _line(console, report.trend.sentence)
    _line(console, held_out(report))
    told = {finding.summary for finding in report.findings}
    for note in report.notes:
        _line(console, "" if note in told else f"read: {note}", "dim")
    if not report.findings:
        _line(console, "Nothing was found." if report.steps else "Without a curve there is nothing to look at.")
    for place, finding in enumerate(report.findings, 1):
        console.print()
        _print_finding(place, finding, report.trainer, console, verbose)
    _print_rest(report, console, verbose)


def _print_finding(place: int, finding: Finding, whose: str, console: Console, verbose: bool) -> None:
    head = (f"{place}. {finding.id}", COLORS[finding.severity])
    console.print(Text.assemble(head, (f"  {finding.severity}, {finding.confidence} confidence", "dim")))
    _line(console, finding.summary)
    for shown in evidence(finding):
        _line(console, f"· {shown}", "dim")
    if finding.explains:
        _line(console, f"explains: {symptoms(finding)}")
    if verbose or finding.severity is not Severity.NOTE:
        _print_advice(finding, whose, console, verbose)
    _line(console, finding.page, "dim")


def _print_advice(finding: Finding, whose: str, console: Console, verbose: bool) -> None:
    if finding.fix is not None:
        _line(console, f"fix: {finding.fix.sentence}")
    for trainer, line in changes(finding.fix, whose, only=not verbose):
        _line(console, f"{trainer}: {line}", "green", MARGIN + 2)
    for rival in finding.rivals:
        _line(console, f"or {rival.id}: {rival.tells_apart}", "dim")
    if finding.experiment is not None:
        _line(console, f"decide: {decides(finding.experiment, whose)}")


def _print_rest(report: Report, console: Console, verbose: bool) -> None:
    console.print()
    if verbose:
        for lack in report.cannot_tell:
            _line(console, f"cannot tell {lack.id}: {lack.needs}", "dim")
    else:
        _line(console, lacking(report), "dim")
    if report.unknown:
        named = ", ".join(report.unknown if verbose else report.unknown[:8])
        more = "" if verbose or len(report.unknown) <= 8 else f" and {len(report.unknown) - 8} more"
        _line(console, f"columns not known: {named}{more}", "dim")
    if not verbose and (report.cannot_tell or any(f.severity is Severity.NOTE for f in report.findings)):
        _line(console, "--verbose lists all of it, and what to do about notes.", "dim")


def _line(console: Console, line: str, style: str = "", margin: int = MARGIN) -> None:
    """A paragraph behind a margin, without blanks at its ends, which a log or a pipe would keep."""
    if not line:
        return
    for part in Text(line, style=style).wrap(console, max(20, console.width - margin)):
        part.rstrip()
        console.print(Text.assemble(" " * margin, part), no_wrap=True, overflow="ignore", crop=False)
