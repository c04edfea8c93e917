"""The report as Markdown, for a pull request or a journal."""

from collections.abc import Sequence

from uptrend.doctor.report.sections import changes, decides, evidence, held_out, symptoms, title
from uptrend.records import Finding, Report
from uptrend.stats.formatting import markdown_table


def to_markdown(reports: Sequence[Report]) -> str:
    """One section a run."""
    return "\n".join(_report(report) for report in reports)


def _report(report: Report) -> str:
    trend = report.trend
    lines = [
        f"# {title(report)}",
        "",
        f"**{trend.kind}**: {trend.sentence} {held_out(report)}".rstrip(),
        "",
    ]
    lines += [f"> {note}" for note in report.notes] + [""] * bool(report.notes)
    for place, finding in enumerate(report.findings, 1):
        lines += _finding(place, finding, report.trainer)
    if not report.findings:
        lines += ["Nothing was found.", ""]
    if report.cannot_tell:
        lacks = markdown_table(("cause", "needs"), [(lack.id, lack.needs) for lack in report.cannot_tell])
        lines += ["## Cannot tell", "", lacks, ""]
    if report.unknown:
        lines += ["Columns not known: " + ", ".join(f"`{name}`" for name in report.unknown) + ".", ""]
    return "\n".join(lines)


def _finding(place: int, finding: Finding, whose: str) -> list[str]:
    lines = [
        f"## {place}. `{finding.id}` ({finding.severity}, {finding.confidence} confidence)",
        "",
        finding.summary,
        "",
    ]
    shown = evidence(finding)
    lines += [f"- {text}" for text in shown] + [""] * bool(shown)
    if finding.explains:
        lines += [f"Explains: {symptoms(finding)}.", ""]
    if finding.rivals:
        lines += ["It could also be:", ""]
        lines += [f"- {rival.id}: {rival.tells_apart}" for rival in finding.rivals] + [""]
    if finding.experiment is not None:
        lines += [f"To decide: {decides(finding.experiment, whose)}", ""]
    if finding.fix is not None:
        lines += [f"Fix: {finding.fix.sentence}", ""]
        named = changes(finding.fix, whose)
        lines += [f"- {trainer}: `{line}`" for trainer, line in named] + [""] * bool(named)
    return [*lines, f"[{finding.page}]({finding.page})", ""]
