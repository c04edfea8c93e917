"""The report in a terminal."""

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from uptrend.doctor.report.wording import HEADLINES, SHOWN, changes, decides, symptoms, title
from uptrend.records import Finding, Report, Severity, Trend

COLOURS = {Severity.CRITICAL: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}
VERDICTS = {Trend.LEARNING: "bold green", Trend.FLAT: "bold red", Trend.FALLING: "bold red", Trend.TOO_SHORT: "yellow"}


def print_report(report: Report, console: Console, verbose: bool = False) -> None:
    """The verdict, the causes in order, and what could not be told."""
    console.print(Text(title(report), style="dim"))
    verdict = report.verdict
    console.print(Text.assemble((verdict.trend.upper(), VERDICTS[verdict.trend]), " ", HEADLINES[verdict.trend]))
    _line(console, verdict.sentence)
    for note in report.notes:
        _line(console, f"read: {note}", "dim")
    if not report.findings:
        _line(console, "Nothing was found.")
    for place, finding in enumerate(report.findings, 1):
        console.print()
        _print_finding(place, finding, console)
    _print_rest(report, console, verbose)


def _print_finding(place: int, finding: Finding, console: Console) -> None:
    head = (f"{place}. {finding.id}", COLOURS[finding.severity])
    console.print(Text.assemble(head, (f"  {finding.severity}, {finding.confidence} confidence", "dim")))
    _line(console, finding.summary)
    for evidence in finding.evidence[:SHOWN]:
        where = f" [{evidence.rollout}]" if evidence.rollout else ""
        _line(console, f"· {evidence.text}{where}", "dim")
    if len(finding.evidence) > SHOWN:
        _line(console, f"· and {len(finding.evidence) - SHOWN} more", "dim")
    if finding.explains:
        _line(console, f"explains: {symptoms(finding)}")
    for rival in finding.rivals:
        _line(console, f"or {rival.id}: {rival.tells_apart}", "dim")
    if finding.experiment is not None:
        _line(console, f"decide: {decides(finding.experiment)}")
    if finding.fix is not None:
        _line(console, f"fix: {finding.fix.sentence}")
    for trainer, line in changes(finding.fix):
        _line(console, f"  {trainer}: {line}", "green")
    _line(console, finding.page, "dim")


def _print_rest(report: Report, console: Console, verbose: bool) -> None:
    if report.cannot_tell:
        console.print()
        if verbose:
            for lack in report.cannot_tell:
                _line(console, f"cannot tell {lack.id}: {lack.needs}", "dim")
        else:
            reasons = sorted({lack.needs for lack in report.cannot_tell})
            shown = "; ".join(reasons[:3]) + ("; …" if len(reasons) > 3 else "")
            _line(console, f"cannot tell {len(report.cannot_tell)} causes ({shown}). --verbose lists them.", "dim")
    if report.unknown:
        named = ", ".join(report.unknown if verbose else report.unknown[:8])
        more = "" if verbose or len(report.unknown) <= 8 else f" and {len(report.unknown) - 8} more"
        _line(console, f"columns not known: {named}{more}", "dim")


def _line(console: Console, line: str, style: str = "") -> None:
    if line:
        console.print(Padding(Text(line, style=style), (0, 0, 0, 3), expand=False))
