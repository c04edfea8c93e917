"""Words that text, Markdown and page share."""

from collections.abc import Mapping
from typing import Any

from uptrend.records import Experiment, Finding, Fix, Report, Trend

TRAINERS = {"uptrend": "Uptrend", "trl": "TRL", "verifiers": "verifiers", "prime-rl": "prime-rl"}
HEADLINES = {
    Trend.LEARNING: "The training reward rises.",
    Trend.FLAT: "The training reward does not rise.",
    Trend.FALLING: "The training reward falls.",
    Trend.TOO_SHORT: "Too short, or too noisy, to tell whether it learns.",
}
SHOWN = 6
"""How many pieces of evidence a person is shown of one finding; JSON has all."""


def title(report: Report) -> str:
    """What was looked at."""
    whose = f", {TRAINERS.get(report.trainer, report.trainer)}" if report.trainer != "unknown" else ""
    return f"{report.source}{whose}, {report.steps} {'point' if report.steps == 1 else 'points'}"


def changes(fix: Fix | None) -> list[tuple[str, str]]:
    """The config differences of a fix: trainer and a line of its config."""
    if fix is None:
        return []
    return [(TRAINERS.get(who, who), assignments(keys)) for who, keys in fix.changes.items() if keys]


def assignments(keys: Mapping[str, Any]) -> str:
    """Config keys with their values, in one line."""
    return ", ".join(f"{key} = {_value(value)}" for key, value in keys.items())


def decides(experiment: Experiment | None) -> str:
    """How to find out, in one line; empty where nothing is known."""
    if experiment is None:
        return ""
    if experiment.probe:
        return f"{experiment.claim} Settle it: uptrend preflight RECIPE --only {experiment.probe}"
    arms = "; ".join(f"{name}: {assignments(keys) or 'as it is'}" for name, keys in experiment.arms.items())
    return f"{experiment.claim} Arms: {arms}" if arms else experiment.claim


def symptoms(finding: Finding) -> str:
    """The ids that are folded under a finding."""
    return ", ".join(symptom.id for symptom in finding.explains)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else f'"{value}"' if isinstance(value, str) else str(value)
