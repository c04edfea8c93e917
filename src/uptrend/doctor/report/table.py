"""The report as a JSON object: a contract, told in docs/doctor.md. A renamed key is in records/renamed.toml."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from uptrend.records import Evidence, Experiment, Finding, Fix, Report

SCHEMA = 2


def to_table(reports: Sequence[Report]) -> dict[str, Any]:
    """The longest run's report, and under `runs` the report of each run that was read."""
    assert reports
    runs = [_report(report) for report in reports]
    longest = max(range(len(reports)), key=lambda i: (reports[i].steps, i))
    return {"schema": SCHEMA, **runs[longest], "runs": runs}


def _report(report: Report) -> dict[str, Any]:
    trend = report.trend
    return {
        "source": report.source,
        "trainer": report.trainer,
        "name": report.name,
        "steps": report.steps,
        "trend": str(trend.kind),
        "sentence": trend.sentence,
        "effect": plain(trend.effect),
        "interval": plain(trend.interval),
        "power": plain(trend.power),
        "held_out": plain(trend.held_out),
        "findings": [
            *(finding_table(cause) for cause in report.findings),
            *(finding_table(symptom, cause.id) for cause in report.findings for symptom in cause.explains),
        ],
        "cannot_tell": [{"id": lack.id, "needs": lack.needs} for lack in report.cannot_tell],
        "notes": list(report.notes),
        "unknown": list(report.unknown),
    }


def finding_table(finding: Finding, cause: str | None = None) -> dict[str, Any]:
    """One finding as a JSON object; a symptom names its cause."""
    return {
        "id": finding.id,
        "severity": str(finding.severity),
        "confidence": str(finding.confidence),
        "summary": finding.summary,
        "evidence": [_evidence(evidence) for evidence in finding.evidence],
        "rivals": [{"id": rival.id, "tells_apart": rival.tells_apart} for rival in finding.rivals],
        "experiment": _experiment(finding.experiment),
        "fix": _fix(finding.fix),
        "explains": [symptom.id for symptom in finding.explains],
        "symptom_of": cause,
        "page": finding.page,
    }


def _evidence(evidence: Evidence) -> dict[str, Any]:
    return {
        "text": evidence.text,
        "value": plain(evidence.value),
        "metric": evidence.metric or None,
        "step": plain(evidence.step),
        "rollout": evidence.rollout or None,
    }


def _experiment(experiment: Experiment | None) -> dict[str, Any] | None:
    if experiment is None:
        return None
    return {
        "claim": experiment.claim,
        "probe": experiment.probe or None,
        "arms": plain(experiment.arms),
        "metric": experiment.metric,
        "direction": experiment.direction,
        "smallest": experiment.smallest,
        "steps": experiment.steps or None,
    }


def _fix(fix: Fix | None) -> dict[str, Any] | None:
    return None if fix is None else {"sentence": fix.sentence, "changes": plain(fix.changes)}


def plain(value: Any) -> Any:
    """As JSON has it: no numpy, no tuples, null for what is not finite, words for what is relative."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value if value is None or isinstance(value, bool | int | str) else str(value)
