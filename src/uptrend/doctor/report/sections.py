"""Parts of a report that text, Markdown and page share."""

from collections import Counter
from pathlib import Path

from uptrend.records import Experiment, Finding, Fix, Report, TrendKind
from uptrend.stats import formatting
from uptrend.stats.formatting import assignments, number, plural

TRAINERS = {"uptrend": "Uptrend", "trl": "TRL", "verifiers": "verifiers", "prime-rl": "prime-rl", "verl": "verl"}
HEADLINES = {
    TrendKind.LEARNING: "Learning",
    TrendKind.FLAT: "Not learning: flat",
    TrendKind.FALLING: "Not learning: falling",
    TrendKind.TOO_SHORT: "Too short to tell",
}
SHOWN = 6
"""Pieces of evidence shown of one finding; JSON has all."""


def title(report: Report) -> str:
    """Name the run: source, name, trainer and points."""
    whose = f", {TRAINERS.get(report.trainer, report.trainer)}" if report.trainer != "unknown" else ""
    named = f", {report.name}" if report.name and report.name != Path(report.source).name else ""
    return f"{report.source}{named}{whose}, {plural(report.steps, 'point')}"


def held_out(report: Report) -> str:
    """Return the held-out change in a sentence; empty where there is none."""
    change = report.trend.held_out
    if not change:
        return ""
    ends = f", 95% interval {formatting.interval(*change['interval'])}" if change["interval"] else ""
    tasks = f" on {plural(change['tasks'], 'task')}" if change["tasks"] else ""
    levels = f"{number(change['first'])} → {number(change['last'])}"
    return f"Held out{tasks}: {levels} (change {formatting.change(change['effect'])}{ends})."


def changes(fix: Fix | None, whose: str, only: bool = False) -> list[tuple[str, str]]:
    """Return the config differences of a fix, trainer and a line of its config: the run's own trainer first.

    With `only`, the others are left out where its own has a line: nobody edits five configs.
    """
    if fix is None:
        return []
    own = {whose: fix.changes[whose]} if fix.changes.get(whose) else {}
    told = own if only and own else {**own, **fix.changes}
    noted = {who: f" ({'; '.join(notes)})" for who, notes in fix.notes.items()}
    return [(TRAINERS.get(who, who), assignments(keys) + noted.get(who, "")) for who, keys in told.items() if keys]


def evidence(finding: Finding) -> list[str]:
    """Return the evidence to show: nothing that the summary has said already, and how much is left out."""
    new = [e for e in finding.evidence if e.text.rstrip(".") not in finding.summary]
    shown = [e.text + (f" [{e.rollout}]" if e.rollout else "") for e in new[:SHOWN]]
    return shown + ([f"and {len(new) - SHOWN} more"] if len(new) > SHOWN else [])


def lacking(report: Report) -> str:
    """Return in a line how many causes could not be told, and what is missing for most of them."""
    if not report.cannot_tell:
        return ""
    counted = Counter(lack.needs for lack in report.cannot_tell).most_common()
    named = "; ".join(f"{needs} ({count})" for needs, count in counted[:3])
    return f"cannot tell {len(report.cannot_tell)} causes: {named}{'; …' if len(counted) > 3 else ''}"


def decides(experiment: Experiment | None, whose: str) -> str:
    """Return the deciding experiment in one line; empty where there is none. A probe needs a recipe of Uptrend's."""
    if experiment is None:
        return ""
    if experiment.probe:
        asked = f" Settle it: uptrend preflight RECIPE --only {experiment.probe}" if whose == "uptrend" else ""
        return experiment.claim + asked
    arms = "; ".join(f"{name}: {assignments(keys) or 'as it is'}" for name, keys in experiment.arms.items())
    keys = "Arms" if whose == "uptrend" else "Arms, in Uptrend's keys"
    return f"{experiment.claim} {keys}: {arms}" if arms else experiment.claim


def symptoms(finding: Finding) -> str:
    """Return the ids that are folded under a finding."""
    return ", ".join(symptom.id for symptom in finding.explains)
