"""Reports for people and programs: text for the terminal, Markdown, a page, and JSON.

A run directory has one, in its findings.json, dated by its step. Everything that shows findings
gets it here, so that all show the same ones.
"""

import contextlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from uptrend.present import formatting
from uptrend.present.drawing import COLORS, plotting, to_svg
from uptrend.present.formatting import assignments, duration, number, percent, plural, render
from uptrend.records import (
    Basis,
    Confidence,
    Differential,
    Evidence,
    Experiment,
    Finding,
    Fix,
    NextStep,
    RecordError,
    Report,
    Rival,
    Run,
    Severity,
    Standing,
    Suspect,
    TrendKind,
    dialects,
    view_of,
)
from uptrend.records.directory import LINES_FILES
from uptrend.records.files import write_atomically
from uptrend.records.finding import dated
from uptrend.records.lines import plain

REPORT_SCHEMA = 2
TRAINER_LABELS = {"uptrend": "Uptrend", **dialects.TRAINER_NAMES}
FINDING_STYLES = {
    TrendKind.LEARNING: "bold green",
    TrendKind.FLAT: "bold red",
    TrendKind.FALLING: "bold red",
    TrendKind.TOO_SHORT: "yellow",
    Severity.CRITICAL: "bold red",
    Severity.WARNING: "yellow",
    Severity.NOTE: "cyan",
}
# What text and pages show at most; JSON has all.
MAX_EVIDENCE_SHOWN = 6
MAX_COLUMNS_SHOWN = 8
MAX_NEEDS_SHOWN = 3
# Spaces before a line on the terminal, and the characters that are left to it on a narrow one.
MARGIN_WIDTH = 3
MIN_TEXT_WIDTH = 20


def to_table(reports: Sequence[Report]) -> dict[str, Any]:
    """Return the longest run's report as JSON, and under `runs` the report of each run."""
    runs = [_run_table(report) for report in reports]
    # A log may hold several runs, of which short ones are often false starts: the longest stands
    # for the file.
    longest = max(range(len(reports)), key=lambda i: (reports[i].steps, i))
    return {"schema": REPORT_SCHEMA, **runs[longest], "runs": runs}


def _run_table(report: Report) -> dict[str, Any]:
    symptoms: list[dict[str, Any]] = []
    for cause in report.findings:
        symptoms += [finding_table(symptom, cause.id) for symptom in cause.explains]
    trend = {key: plain(value) for key, value in vars(report.trend).items() if key != "kind"}
    return {
        "source": report.source,
        "trainer": report.trainer,
        "name": report.name,
        "steps": report.steps,
        "step": report.step,
        "trend": str(report.trend.kind),
        **trend,
        "findings": [*map(finding_table, report.findings), *symptoms],
        "differential": plain(asdict(report.differential)) if report.differential else None,
        "cannot_tell": [dict(vars(lack)) for lack in report.cannot_tell],
        "normal": [dict(vars(sign)) for sign in report.normal],
        "missing": list(report.missing),
        "notes": list(report.notes),
        "unknown": list(report.unknown),
    }


def finding_table(finding: Finding, cause: str | None = None) -> dict[str, Any]:
    """Return a finding as JSON; a symptom names its cause."""
    evidence: list[dict[str, Any]] = []
    for piece in finding.evidence:
        row = plain(vars(piece))
        evidence.append({**row, "metric": piece.metric or None, "rollout": piece.rollout or None})
    experiment = None
    if finding.experiment is not None:
        experiment = {
            **plain(vars(finding.experiment)),
            "probe": finding.experiment.probe or None,
            "steps": finding.experiment.steps or None,
        }
    fix = None
    if finding.fix is not None:
        fix = {
            "sentence": finding.fix.sentence,
            "changes": plain(finding.fix.changes),
            "in_force": plain(finding.fix.in_force),
        }
    return {
        "id": finding.id,
        "severity": str(finding.severity),
        "basis": str(finding.basis),
        "confidence": str(finding.confidence),
        "measured": finding.measured,
        "since": finding.since,
        "summary": finding.summary,
        "evidence": evidence,
        "rivals": [plain(vars(rival)) for rival in finding.rivals],
        "experiment": experiment,
        "fix": fix,
        "explains": [symptom.id for symptom in finding.explains],
        "symptom_of": cause,
        "page": finding.page,
    }


def from_finding_table(table: Mapping[str, Any]) -> Finding:
    """Return the finding that `finding_table` has written, without its symptoms, which `rank` finds
    again.
    """
    evidence: list[Evidence] = []
    for row in table["evidence"]:
        texts = {"metric": row["metric"] or "", "rollout": row["rollout"] or ""}
        evidence.append(Evidence(**{**row, **texts}))
    experiment = table["experiment"]
    if experiment:
        probe = experiment["probe"] or ""
        steps = experiment["steps"] or 0
        experiment = Experiment(**{**experiment, "probe": probe, "steps": steps})
    fix = table["fix"]
    if fix:
        fix = Fix(fix["sentence"], fix["changes"], in_force=fix.get("in_force", {}))
    return Finding(
        id=table["id"],
        severity=Severity(table["severity"]),
        basis=Basis(table["basis"]),
        summary=table["summary"],
        evidence=tuple(evidence),
        confidence=Confidence(table["confidence"]),
        measured=table["measured"],
        since=table.get("since"),
        rivals=tuple(Rival(**rival) for rival in table["rivals"]),
        experiment=experiment,
        fix=fix,
        page=table["page"],
    )


def save_report(path: Path, reports: Sequence[Report]) -> dict[str, Any]:
    """Write the report of a run into its directory, and return it as JSON."""
    table = to_table(reports)
    text = json.dumps(table, indent=1, ensure_ascii=False)
    write_atomically(path / "findings.json", text.encode())
    return table


def saved_report(run: Run, points: int | None = None) -> dict[str, Any] | None:
    """Return findings.json if it covers everything that was recorded, else None.

    `points` is the number of metrics lines, for callers that have read them.
    """
    path = run.path / "findings.json"
    if not path.exists():
        return None
    report_time = path.stat().st_mtime
    for name in LINES_FILES.values():
        lines = run.path / name
        if lines.exists() and lines.stat().st_mtime > report_time:
            return None
    report = run.report
    if points is None:
        points = len(run.metric_lines)
    return report if report is not None and report["steps"] == points else None


def latest_report(run: Run) -> dict[str, Any]:
    """Return the report on everything that was recorded: the one on disk if it is up to date, else
    a new one.
    """
    report = None
    with contextlib.suppress(OSError, RecordError):
        report = saved_report(run)
    if report is None:
        # Imported here: scipy only where a run has to be judged.
        from uptrend.doctor.diagnose import diagnose

        report = to_table([diagnose(view_of(run))])
    return report


def print_report(
    report: Report, console: Console, verbose: bool = False, lists_all: bool = False
) -> None:
    """Print the trend, the causes in order, what remains, and the causes that could not be judged;
    shortened unless `verbose`, the differential unless `lists_all`.
    """
    _print_trend(report, console)
    if not report.findings:
        _print(
            console,
            "Nothing was found."
            if report.steps
            else "Without a curve there is nothing to look at.",
        )
    n_alarms = sum(finding.severity is not Severity.NOTE for finding in report.findings)
    for rank, finding in enumerate(report.findings, 1):
        if rank == n_alarms + 1:
            _print_normal(report, console)
        console.print()
        _print_finding(rank, finding, report.trainer, console, verbose)
    if n_alarms == len(report.findings):
        _print_normal(report, console)
    if report.differential is not None:
        console.print()
        console.print(Text("What remains", style="bold"))
        for line, style in _differential_lines(report.differential, lists_all):
            _print(console, line, style)
    console.print()
    _print_lacks(report, console, verbose)
    has_notes = any(finding.severity is Severity.NOTE for finding in report.findings)
    if not verbose and (report.cannot_tell or has_notes):
        _print(console, "--verbose lists everything, and how to fix notes.", "dim")


def _print_trend(report: Report, console: Console) -> None:
    _print(console, _title(report), "dim", 0)
    headline = report.trend.in_words
    # A qualified trend has the color of one that is not known.
    is_plain = headline == report.trend.kind
    style = FINDING_STYLES[report.trend.kind if is_plain else TrendKind.TOO_SHORT]
    _print(console, headline.upper(), style, 0)
    _print(console, report.trend.sentence)
    _print(console, _heldout_text(report))
    summaries = {finding.summary for finding in report.findings}
    for note in report.notes:
        if note not in summaries:
            _print(console, f"read: {note}", "dim")


def _differential_lines(differential: Differential, lists_all: bool) -> Iterator[tuple[str, str]]:
    """Yield the causes that remain and what to do next, each line with its style."""
    remaining = differential.with_standing(Standing.SUPPORTED, Standing.POSSIBLE)
    listed = differential.suspects if lists_all else likeliest(differential)
    for suspect in listed:
        style = SUSPECT_STYLES[suspect.standing]
        yield f"{percent(suspect.probability, 0)} {suspect.id}, {suspect.standing}", style
        # A finding has said the same above.
        if lists_all or suspect.standing is not Standing.SUPPORTED:
            yield f"  {' '.join(suspect.evidence)}", "dim"
    n_listed = sum(suspect.standing is not Standing.EXCLUDED for suspect in listed)
    counts: list[str] = []
    if len(remaining) > n_listed:
        n_more = len(remaining) - n_listed
        counts.append(f"{n_more} more {'is' if n_more == 1 else 'are'} possible")
    n_excluded = len(differential.with_standing(Standing.EXCLUDED))
    if n_excluded:
        counts.append(f"{n_excluded} {'is' if n_excluded == 1 else 'are'} excluded")
    counts.append(f"{percent(differential.elsewhere, 0)} for none of these, or no fault")
    hint = "" if lists_all else " (--all lists them)"
    yield f"{', '.join(counts)}{hint}", "dim"
    for step in differential.next_steps if lists_all else differential.next_steps[:1]:
        yield f"next: {step.sentence} Cost: {cost_in_words(step)}.", ""
        yield f"  {step.command}", "green"


# Causes of a differential that a terminal shows, and the probability below which one is left out.
MAX_SUSPECTS_SHOWN = 5
MIN_PROBABILITY_SHOWN = 0.03
SUSPECT_STYLES = {Standing.SUPPORTED: "yellow", Standing.POSSIBLE: "", Standing.EXCLUDED: "dim"}


def likeliest(differential: Differential) -> list[Suspect]:
    """Return the few causes that remain and are worth a look."""
    remaining = differential.with_standing(Standing.SUPPORTED, Standing.POSSIBLE)
    return [
        suspect
        for suspect in remaining[:MAX_SUSPECTS_SHOWN]
        if suspect.standing is Standing.SUPPORTED or suspect.probability >= MIN_PROBABILITY_SHOWN
    ]


def cost_in_words(step: NextStep) -> str:
    """Return what a test costs: steps of training, and the time that these took."""
    steps = plural(step.steps, "step")
    return steps if step.seconds is None else f"{steps}, about {duration(step.seconds)}"


def _print_normal(report: Report, console: Console) -> None:
    """Print values that look like faults and are none: between alarms and notes."""
    if not report.normal:
        return
    console.print()
    _print(console, "Normal here", "bold green", 0)
    for sign in report.normal:
        _print(console, sign.text)
        _print(console, sign.otherwise, "dim")


def _print_lacks(report: Report, console: Console, verbose: bool) -> None:
    """Print the evidence that is missing, the causes that could not be judged, and the columns that
    are not known.
    """
    for line in report.missing:
        _print(console, line, "dim")

    if verbose:
        for lack in report.cannot_tell:
            _print(console, f"cannot tell {lack.id}: {lack.needs}", "dim")
    elif report.cannot_tell:
        counts = Counter(lack.needs for lack in report.cannot_tell).most_common()
        needs = "; ".join(f"{need} ({count})" for need, count in counts[:MAX_NEEDS_SHOWN])
        more = "; …" if len(counts) > MAX_NEEDS_SHOWN else ""
        _print(console, f"cannot tell {len(report.cannot_tell)} causes: {needs}{more}", "dim")

    if report.unknown:
        columns = report.unknown if verbose else report.unknown[:MAX_COLUMNS_SHOWN]
        n_left = len(report.unknown) - len(columns)
        more = f" and {n_left} more" if n_left else ""
        _print(console, f"columns not known: {', '.join(columns)}{more}", "dim")


def _print_finding(
    rank: int, finding: Finding, trainer: str, console: Console, verbose: bool
) -> None:
    heading = (f"{rank}. {finding.id}", FINDING_STYLES[finding.severity])
    confidence = (f"  {finding.severity}, {finding.confidence} confidence", "dim")
    console.print(Text.assemble(heading, confidence))
    _print(console, finding.summary)
    for text in _evidence(finding):
        _print(console, f"· {text}", "dim")
    if finding.measured:
        _print(console, f"· {finding.measured}", "dim")
    if finding.explains:
        _print(console, f"explains: {', '.join(symptom.id for symptom in finding.explains)}")
    if verbose or finding.severity is not Severity.NOTE:
        if finding.fix is not None:
            _print(console, f"fix: {finding.fix.sentence}")
        for name, line in _changes(finding.fix, trainer):
            _print(console, f"{name}: {line}", "green", MARGIN_WIDTH + 2)
        for rival in finding.rivals:
            _print(console, f"or {rival.id}: {rival.tells_apart}", "dim")
        if finding.experiment is not None:
            _print(console, f"decide: {_experiment(finding.experiment, trainer)}")
    _print(console, finding.page, "dim")


def _print(console: Console, text: str, style: str = "", margin: int = MARGIN_WIDTH) -> None:
    """Print a paragraph behind a margin, and nothing for an empty one."""
    if not text:
        return
    width = max(MIN_TEXT_WIDTH, console.width - margin)
    for line in Text(text, style=style).wrap(console, width):
        line.rstrip()  # spaces at line ends would stay in a log or a pipe
        console.print(
            Text.assemble(" " * margin, line), no_wrap=True, overflow="ignore", crop=False
        )


def to_markdown(reports: Sequence[Report]) -> str:
    """Return Markdown, for a pull request or a journal, with one section per run."""
    return render("doctor/templates/report.md", sections=[_section(report) for report in reports])


def to_html(reports: Sequence[Report]) -> str:
    """Return a page that needs nothing else (no script, font or network), with one section per
    run.
    """
    sections: list[dict[str, Any]] = []
    for report in reports:
        sections.append({**_section(report), "picture": _picture(report.curve)})
    return render("doctor/templates/report.html", sections=sections)


def _section(report: Report) -> dict[str, Any]:
    lacks = [(lack.id, lack.needs) for lack in report.cannot_tell]
    findings: list[dict[str, Any]] = []
    for finding in report.findings:
        row = {
            "is": finding,
            "evidence": _evidence(finding),
            "symptoms": ", ".join(symptom.id for symptom in finding.explains),
            "changes": _changes(finding.fix, report.trainer),
            "experiment": _experiment(finding.experiment, report.trainer),
        }
        findings.append(row)
    differential = report.differential
    remaining: list[dict[str, str]] = []
    for suspect in likeliest(differential) if differential else ():
        remaining.append(
            {
                "id": suspect.id,
                "standing": str(suspect.standing),
                "probability": percent(suspect.probability, 0),
                "evidence": " ".join(suspect.evidence),
            }
        )
    return {
        "report": report,
        "remaining": remaining,
        "next_steps": [
            (step, cost_in_words(step))
            for step in (differential.next_steps if differential else ())
        ][:1],
        "title": _title(report),
        "held_out": _heldout_text(report),
        "lacks": formatting.markdown_table(("cause", "needs"), lacks),
        "findings": findings,
    }


def _picture(curve: Sequence[tuple[int, float]]) -> str:
    if len(curve) < 2:
        return ""
    steps = [step for step, _ in curve]
    rewards = [reward for _, reward in curve]
    with plotting() as plt:
        figure, axes = plt.subplots(figsize=(8, 2), layout="constrained")
        axes.plot(steps, rewards, color=COLORS[0], linewidth=1.8)
        axes.set(xlabel="step", ylabel="training reward")
        axes.locator_params(axis="x", integer=True)
        return to_svg(figure, "training reward by step")


def _title(report: Report) -> str:
    parts = [report.source]
    if report.name != Path(report.source).name:
        parts.append(report.name)
    if report.trainer != "unknown":
        parts.append(TRAINER_LABELS.get(report.trainer, report.trainer))
    if report.steps:
        parts.append(plural(report.steps, "point"))
    parts.append(dated(report.step))
    return ", ".join(filter(None, parts))


def _heldout_text(report: Report) -> str:
    heldout = report.trend.held_out
    if not heldout:
        return ""
    tasks = f" on {plural(heldout['tasks'], 'task')}" if heldout["tasks"] else ""
    levels = f"{number(heldout['first'])} → {number(heldout['last'])}"
    change = formatting.change(heldout["effect"])
    interval = ""
    if heldout["interval"]:
        interval = f", 95% interval {formatting.interval(*heldout['interval'])}"
    return f"Held out{tasks}: {levels} (change {change}{interval})."


def changes_for_trainer(
    changes: Mapping[str, Mapping[str, Any]], trainer: str
) -> Mapping[str, Mapping[str, Any]]:
    """Return the changes of a run's own trainer; of all trainers if it is not known."""
    # No one edits five configs, and another trainer's key would be refused, or ignored.
    if trainer not in TRAINER_LABELS:
        return dict(changes)
    return {trainer: changes[trainer]} if trainer in changes else {}


def _changes(fix: Fix | None, trainer: str) -> list[tuple[str, str]]:
    """Return a fix as pairs of trainer and config line."""
    if fix is None:
        return []
    lines: list[tuple[str, str]] = []
    for name, settings in changes_for_trainer(fix.changes, trainer).items():
        if not settings:
            continue
        notes = fix.notes.get(name, ())
        note = f" ({'; '.join(notes)})" if notes else ""
        lines.append((TRAINER_LABELS.get(name, name), assignments(settings) + note))
    in_force = assignments(fix.in_force)
    if in_force and in_force not in fix.sentence:
        lines.append(("in force already", in_force))
    return lines


def _evidence(finding: Finding) -> list[str]:
    """Return the evidence that the summary does not repeat, and the number of pieces left out."""
    lines: list[str] = []
    for piece in finding.evidence:
        # Checks often put their first piece of evidence into the summary, too.
        if piece.text.rstrip(".") in finding.summary:
            continue
        rollout = f" [{piece.rollout}]" if piece.rollout else ""
        lines.append(piece.text + rollout)
    n_left = len(lines) - MAX_EVIDENCE_SHOWN
    if n_left > 0:
        lines[MAX_EVIDENCE_SHOWN:] = [f"and {n_left} more"]
    return lines


def _experiment(experiment: Experiment | None, trainer: str) -> str:
    """Return the deciding experiment in one line; empty if there is none.

    A probe is offered for Uptrend only, because it needs a recipe.
    """
    if experiment is None:
        return ""
    if experiment.probe:
        if trainer != "uptrend":
            return experiment.claim
        command = f"uptrend preflight RECIPE --only {experiment.probe}"
        return f"{experiment.claim} Settle it: {command}"
    if not experiment.arms:
        return experiment.claim
    arms: list[str] = []
    for name, settings in experiment.arms.items():
        arms.append(f"{name}: {assignments(settings) or 'unchanged'}")
    label = "Arms" if trainer == "uptrend" else "Arms, in Uptrend's keys"
    return f"{experiment.claim} {label}: {'; '.join(arms)}"
