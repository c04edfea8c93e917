"""Words that text, Markdown and page share."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from uptrend.records import Experiment, Finding, Fix, Report, TrendKind

TRAINERS = {"uptrend": "Uptrend", "trl": "TRL", "verifiers": "verifiers", "prime-rl": "prime-rl", "verl": "verl"}
HEADLINES = {
    TrendKind.LEARNING: "Learning",
    TrendKind.FLAT: "Not learning: flat",
    TrendKind.FALLING: "Not learning: falling",
    TrendKind.TOO_SHORT: "Too short to tell",
}
SHOWN = 6
"""How many pieces of evidence a person is shown of one finding; JSON has all."""


def title(report: Report) -> str:
    """What was looked at."""
    whose = f", {TRAINERS.get(report.trainer, report.trainer)}" if report.trainer != "unknown" else ""
    named = f", {report.name}" if report.name and report.name != Path(report.source).name else ""
    return f"{report.source}{named}{whose}, {report.steps} {'point' if report.steps == 1 else 'points'}"


def held_out(report: Report) -> str:
    """The held-out change in a sentence; empty where there is none."""
    change = report.trend.held_out
    if not change:
        return ""
    low, high = change["interval"] or (None, None)
    interval = "" if low is None else f", 95% interval {low:+.3g} to {high:+.3g}"
    tasks = f" on {change['tasks']} tasks" if change["tasks"] else ""
    return f"Held out{tasks}: {change['first']:.3g} → {change['last']:.3g} (change {change['effect']:+.3g}{interval})."


def changes(fix: Fix | None, whose: str, only: bool = False) -> list[tuple[str, str]]:
    """The config differences of a fix, trainer and a line of its config: that of the run's own trainer first.

    With `only`, the others are left out where its own has a line: nobody edits five configs.
    """
    if fix is None:
        return []
    own = {whose: fix.changes[whose]} if fix.changes.get(whose) else {}
    told = own if only and own else {**own, **fix.changes}
    noted = {who: f" ({'; '.join(notes)})" for who, notes in fix.notes.items()}
    return [(TRAINERS.get(who, who), assignments(keys) + noted.get(who, "")) for who, keys in told.items() if keys]


def evidence(finding: Finding) -> list[str]:
    """What a person is shown of the evidence: nothing that the summary has said already, and how much is left out."""
    new = [e for e in finding.evidence if e.text.rstrip(".") not in finding.summary]
    shown = [e.text + (f" [{e.rollout}]" if e.rollout else "") for e in new[:SHOWN]]
    return shown + ([f"and {len(new) - SHOWN} more"] if len(new) > SHOWN else [])


def lacking(report: Report) -> str:
    """What could not be told, in a line: how many causes, and what is missing for most of them."""
    if not report.cannot_tell:
        return ""
    counted = Counter(lack.needs for lack in report.cannot_tell).most_common()
    named = "; ".join(f"{needs} ({count})" for needs, count in counted[:3])
    return f"cannot tell {len(report.cannot_tell)} causes: {named}{'; …' if len(counted) > 3 else ''}"


def assignments(keys: Mapping[str, Any]) -> str:
    """Config keys with their values, in one line."""
    return ", ".join(f"{key} = {_value(value)}" for key, value in keys.items())


def decides(experiment: Experiment | None, whose: str) -> str:
    """How to find out, in one line; empty where nothing is known. A probe needs a recipe, which others have not."""
    if experiment is None:
        return ""
    if experiment.probe:
        asked = f" Settle it: uptrend preflight RECIPE --only {experiment.probe}" if whose == "uptrend" else ""
        return experiment.claim + asked
    arms = "; ".join(f"{name}: {assignments(keys) or 'as it is'}" for name, keys in experiment.arms.items())
    keys = "Arms" if whose == "uptrend" else "Arms, in Uptrend's keys"
    return f"{experiment.claim} {keys}: {arms}" if arms else experiment.claim


def symptoms(finding: Finding) -> str:
    """The ids that are folded under a finding."""
    return ", ".join(symptom.id for symptom in finding.explains)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.3g}" if isinstance(value, float) else f'"{value}"' if isinstance(value, str) else str(value)
