"""A report for people and programs: text for the terminal, Markdown, a page, and JSON.

A run directory has one, in its findings.json, dated by its step. Whoever shows findings asks for it
here, so that all show the same ones.
"""

import contextlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from uptrend.present import formatting
from uptrend.present.drawing import COLORS, plotting, to_svg
from uptrend.present.formatting import assignments, number, plural, render
from uptrend.records import (
    Basis,
    Confidence,
    Evidence,
    Experiment,
    Finding,
    Fix,
    RecordError,
    Report,
    Rival,
    Run,
    Severity,
    TrendKind,
    dialects,
    view_of,
)
from uptrend.records.directory import LINES_FILES
from uptrend.records.files import write_atomically
from uptrend.records.finding import dated
from uptrend.records.lines import plain

SCHEMA = 2
TRAINERS = {"uptrend": "Uptrend", **dialects.TRAINER_NAMES}
FINDING_STYLES = {
    TrendKind.LEARNING: "bold green",
    TrendKind.FLAT: "bold red",
    TrendKind.FALLING: "bold red",
    TrendKind.TOO_SHORT: "yellow",
    Severity.CRITICAL: "bold red",
    Severity.WARNING: "yellow",
    Severity.NOTE: "cyan",
}
# Pieces of evidence, and unknown columns, that are shown; JSON has all.
EVIDENCE_SHOWN = 6
COLUMNS_SHOWN = 8
MARGIN = 3


def to_table(reports: Sequence[Report]) -> dict[str, Any]:
    """Return the longest run's report as JSON, and under `runs` the report of each run."""
    runs = [_run_table(report) for report in reports]
    # A log may hold several runs, of which short ones are often false starts: the longest stands
    # for the file.
    longest = max(range(len(reports)), key=lambda i: (reports[i].steps, i))
    return {"schema": SCHEMA, **runs[longest], "runs": runs}


def _run_table(report: Report) -> dict[str, Any]:
    symptoms = [
        finding_table(symptom, cause.id) for cause in report.findings for symptom in cause.explains
    ]
    return {
        **{key: getattr(report, key) for key in ("source", "trainer", "name", "steps", "step")},
        "trend": str(report.trend.kind),
        **{key: plain(value) for key, value in vars(report.trend).items() if key != "kind"},
        "findings": [*map(finding_table, report.findings), *symptoms],
        "cannot_tell": [dict(vars(lack)) for lack in report.cannot_tell],
        "missing": list(report.missing),
        "notes": list(report.notes),
        "unknown": list(report.unknown),
    }


def finding_table(finding: Finding, cause: str | None = None) -> dict[str, Any]:
    """Return a finding as JSON; a symptom names its cause."""
    experiment = finding.experiment
    fix = finding.fix
    return {
        "id": finding.id,
        "severity": str(finding.severity),
        "basis": str(finding.basis),
        "confidence": str(finding.confidence),
        "measured": finding.measured,
        "summary": finding.summary,
        "evidence": [
            {**plain(vars(e)), "metric": e.metric or None, "rollout": e.rollout or None}
            for e in finding.evidence
        ],
        "rivals": [plain(vars(rival)) for rival in finding.rivals],
        "experiment": (
            experiment
            and {
                **plain(vars(experiment)),
                "probe": experiment.probe or None,
                "steps": experiment.steps or None,
            }
        ),
        "fix": (
            fix
            and {
                "sentence": fix.sentence,
                "changes": plain(fix.changes),
                "in_force": plain(fix.in_force),
            }
        ),
        "explains": [symptom.id for symptom in finding.explains],
        "symptom_of": cause,
        "page": finding.page,
    }


def from_finding_table(table: Mapping[str, Any]) -> Finding:
    """Return the finding that `finding_table` has written, without its symptoms: `rank` folds them
    again.
    """
    experiment = table["experiment"]
    fix = table["fix"]
    return Finding(
        id=table["id"],
        severity=Severity(table["severity"]),
        basis=Basis(table["basis"]),
        summary=table["summary"],
        evidence=tuple(
            Evidence(**{**e, "metric": e["metric"] or "", "rollout": e["rollout"] or ""})
            for e in table["evidence"]
        ),
        confidence=Confidence(table["confidence"]),
        measured=table["measured"],
        rivals=tuple(Rival(**rival) for rival in table["rivals"]),
        experiment=experiment
        and Experiment(
            **{**experiment, "probe": experiment["probe"] or "", "steps": experiment["steps"] or 0}
        ),
        fix=fix and Fix(fix["sentence"], fix["changes"], in_force=fix.get("in_force", {})),
        page=table["page"],
    )


def save_report(path: Path, reports: Sequence[Report]) -> dict[str, Any]:
    """Write the report of a run into its directory, and return it as JSON."""
    table = to_table(reports)
    write_atomically(
        path / "findings.json", json.dumps(table, indent=1, ensure_ascii=False).encode()
    )
    return table


def saved_report(run: Run, points: int | None = None) -> dict[str, Any] | None:
    """Return findings.json where it knows all that was recorded, `points` metrics lines by default
    all; else None.
    """
    path = run.path / "findings.json"
    lines = [run.path / name for name in LINES_FILES.values()]
    if not path.exists() or path.stat().st_mtime < max(
        (f.stat().st_mtime for f in lines if f.exists()), default=0.0
    ):
        return None
    report = run.report
    points = len(run.metric_lines) if points is None else points
    return report if report is not None and report["steps"] == points else None


def latest_report(run: Run) -> dict[str, Any]:
    """Return the report on all that was recorded: the one on disk where it is up to date, else a
    new one.
    """
    report = None
    with contextlib.suppress(OSError, RecordError):
        report = saved_report(run)
    if report is None:
        # Imported here: scipy only where a run has to be judged.
        from uptrend.doctor.diagnose import diagnose

        report = to_table([diagnose(view_of(run))])
    return report


def print_report(report: Report, console: Console, verbose: bool = False) -> None:
    """Print the trend, the causes in order, and what could not be told; shortened unless
    `verbose`.
    """
    _print(console, _title(report), "dim", 0)
    kind = report.trend.kind
    headline = report.trend.in_words
    _print(
        console,
        headline.upper(),
        FINDING_STYLES[kind if headline == kind else TrendKind.TOO_SHORT],
        0,
    )
    _print(console, report.trend.sentence)
    _print(console, _heldout_text(report))
    summaries = {finding.summary for finding in report.findings}
    for note in report.notes:
        _print(console, "" if note in summaries else f"read: {note}", "dim")
    if not report.findings:
        _print(
            console,
            (
                "Nothing was found."
                if report.steps
                else "Without a curve there is nothing to look at."
            ),
        )
    for place, finding in enumerate(report.findings, 1):
        console.print()
        _print_finding(place, finding, report.trainer, console, verbose)
    console.print()
    for line in report.missing:
        _print(console, line, "dim")
    if verbose:
        for lack in report.cannot_tell:
            _print(console, f"cannot tell {lack.id}: {lack.needs}", "dim")
    elif report.cannot_tell:
        counted = Counter(lack.needs for lack in report.cannot_tell).most_common()
        named = "; ".join(f"{needs} ({count})" for needs, count in counted[:3])
        more = "; …" if len(counted) > 3 else ""
        _print(console, f"cannot tell {len(report.cannot_tell)} causes: {named}{more}", "dim")
    if report.unknown:
        shown = report.unknown if verbose else report.unknown[:COLUMNS_SHOWN]
        more = (
            f" and {len(report.unknown) - len(shown)} more"
            if len(shown) < len(report.unknown)
            else ""
        )
        _print(console, f"columns not known: {', '.join(shown)}{more}", "dim")
    if not verbose and (
        report.cannot_tell or any(f.severity is Severity.NOTE for f in report.findings)
    ):
        _print(console, "--verbose lists everything, and how to fix notes.", "dim")


def _print_finding(
    place: int, finding: Finding, trainer: str, console: Console, verbose: bool
) -> None:
    head = (f"{place}. {finding.id}", FINDING_STYLES[finding.severity])
    console.print(
        Text.assemble(head, (f"  {finding.severity}, {finding.confidence} confidence", "dim"))
    )
    _print(console, finding.summary)
    for shown in [*_evidence(finding), *([finding.measured] * bool(finding.measured))]:
        _print(console, f"· {shown}", "dim")
    if finding.explains:
        _print(console, f"explains: {', '.join(symptom.id for symptom in finding.explains)}")
    if verbose or finding.severity is not Severity.NOTE:
        if finding.fix is not None:
            _print(console, f"fix: {finding.fix.sentence}")
        for name, line in _changes(finding.fix, trainer):
            _print(console, f"{name}: {line}", "green", MARGIN + 2)
        for rival in finding.rivals:
            _print(console, f"or {rival.id}: {rival.tells_apart}", "dim")
        if finding.experiment is not None:
            _print(console, f"decide: {_experiment(finding.experiment, trainer)}")
    _print(console, finding.page, "dim")


def _print(console: Console, line: str, style: str = "", margin: int = MARGIN) -> None:
    """Print a paragraph behind a margin; no spaces at line ends, which a log or a pipe would
    keep.
    """
    for part in (
        Text(line, style=style).wrap(console, max(20, console.width - margin)) if line else ()
    ):
        part.rstrip()
        console.print(
            Text.assemble(" " * margin, part), no_wrap=True, overflow="ignore", crop=False
        )


def to_markdown(reports: Sequence[Report]) -> str:
    """Return Markdown, for a pull request or a journal, with one section per run."""
    return render("doctor/templates/report.md", sections=[_section(report) for report in reports])


def to_html(reports: Sequence[Report]) -> str:
    """Return a page that needs nothing else (no script, font or network), with one section per
    run.
    """
    sections = [{**_section(report), "picture": _picture(report.curve)} for report in reports]
    return render("doctor/templates/report.html", sections=sections)


def _section(report: Report) -> dict[str, Any]:
    rows = [(lack.id, lack.needs) for lack in report.cannot_tell]
    return {
        "report": report,
        "title": _title(report),
        "held_out": _heldout_text(report),
        "lacks": formatting.markdown_table(("cause", "needs"), rows),
        "findings": [
            {
                "is": finding,
                "evidence": _evidence(finding),
                "symptoms": ", ".join(symptom.id for symptom in finding.explains),
                "changes": _changes(finding.fix, report.trainer),
                "experiment": _experiment(finding.experiment, report.trainer),
            }
            for finding in report.findings
        ],
    }


def _picture(curve: Sequence[tuple[int, float]]) -> str:
    if len(curve) < 2:
        return ""
    with plotting() as plt:
        figure, axes = plt.subplots(figsize=(8, 2), layout="constrained")
        axes.plot(
            [step for step, _ in curve],
            [reward for _, reward in curve],
            color=COLORS[0],
            linewidth=1.8,
        )
        axes.set(xlabel="step", ylabel="training reward")
        axes.locator_params(axis="x", integer=True)
        return to_svg(figure, "training reward by step")


def _title(report: Report) -> str:
    trainer = TRAINERS.get(report.trainer, report.trainer) if report.trainer != "unknown" else ""
    name = report.name if report.name != Path(report.source).name else ""
    points = (
        f"{plural(report.steps, 'point')}, {dated(report.step)}"
        if report.steps
        else dated(report.step)
    )
    return ", ".join(filter(None, [report.source, name, trainer, points]))


def _heldout_text(report: Report) -> str:
    if not (change := report.trend.held_out):
        return ""
    ends = (
        f", 95% interval {formatting.interval(*change['interval'])}" if change["interval"] else ""
    )
    tasks = f" on {plural(change['tasks'], 'task')}" if change["tasks"] else ""
    levels = f"{number(change['first'])} → {number(change['last'])}"
    return f"Held out{tasks}: {levels} (change {formatting.change(change['effect'])}{ends})."


def changes_for_trainer(
    changes: Mapping[str, Mapping[str, Any]], trainer: str
) -> Mapping[str, Mapping[str, Any]]:
    """Return the changes in the words of a run's own trainer; in all words where the trainer is not
    known.
    """
    # Nobody edits five configs, and another trainer's key would be refused, or ignored.
    return {who: keys for who, keys in changes.items() if who == trainer or trainer not in TRAINERS}


def _changes(fix: Fix | None, trainer: str) -> list[tuple[str, str]]:
    """Return a fix as pairs of trainer and config line."""
    if fix is None:
        return []
    notes = {name: f" ({'; '.join(lines)})" for name, lines in fix.notes.items()}
    lines = [
        (TRAINERS.get(name, name), assignments(keys) + notes.get(name, ""))
        for name, keys in changes_for_trainer(fix.changes, trainer).items()
        if keys
    ]
    in_force = assignments(fix.in_force)
    if in_force and in_force not in fix.sentence:
        lines.append(("in force already", in_force))
    return lines


def _evidence(finding: Finding) -> list[str]:
    """Return the evidence that the summary does not repeat, and how many pieces are left out."""
    # Checks often put their first piece of evidence into the summary, too.
    new = [e for e in finding.evidence if e.text.rstrip(".") not in finding.summary]
    shown = [e.text + (f" [{e.rollout}]" if e.rollout else "") for e in new[:EVIDENCE_SHOWN]]
    return shown + ([f"and {len(new) - EVIDENCE_SHOWN} more"] if len(new) > EVIDENCE_SHOWN else [])


def _experiment(experiment: Experiment | None, trainer: str) -> str:
    """Return the deciding experiment in one line; empty where there is none. A probe needs an
    Uptrend recipe.
    """
    if experiment is None:
        return ""
    if experiment.probe:
        probe = (
            f" Settle it: uptrend preflight RECIPE --only {experiment.probe}"
            if trainer == "uptrend"
            else ""
        )
        return experiment.claim + probe
    arms = "; ".join(
        f"{name}: {assignments(keys) or 'unchanged'}" for name, keys in experiment.arms.items()
    )
    label = "Arms" if trainer == "uptrend" else "Arms, in Uptrend's keys"
    return f"{experiment.claim} {label}: {arms}" if arms else experiment.claim
