"""Differential diagnosis: one finding per cause, symptoms folded under what explains them, likeliest first."""

from collections.abc import Iterable, Set
from dataclasses import replace

from uptrend.doctor.catalogue import CATALOGUE
from uptrend.records import Confidence, Finding, Severity

SEVERITIES = list(Severity)
"""Worst first."""
CONFIDENCES = list(Confidence)
"""Surest first."""
MEASURED = frozenset({"advantage.dead-groups-low", "advantage.dead-groups-high"})
"""Links that nearly every log measures. Cut completions may kill groups and so hold the policy; where groups are alive,
they hold nothing, and a policy that does not move is a matter of its updates."""
_KINDS = ["I", "P", "C"]


def rank(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return causes in the order in which to look at them, each with its symptoms under it."""
    ordered = sorted(_merged(findings), key=_place)
    ids = {finding.id for finding in ordered}
    causes: list[Finding] = []
    for finding in ordered:
        if not any(_explains(other, finding, ids) for other in ordered):
            symptoms = tuple(other for other in ordered if _explains(finding, other, ids))
            causes.append(_above(finding, symptoms))
    return tuple(sorted(causes, key=_place))


def alarms(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings that ask for something to be done."""
    return [finding for finding in findings if finding.severity is not Severity.NOTE]


def at_least(finding: Finding, severity: Severity) -> bool:
    """Tell whether a finding is as bad as this, or worse."""
    return SEVERITIES.index(finding.severity) <= SEVERITIES.index(severity)


def _merged(findings: Iterable[Finding]) -> list[Finding]:
    """Merge the findings of one cause: the surest is kept, with the evidence of all."""
    by_id: dict[str, list[Finding]] = {}
    for finding in findings:
        by_id.setdefault(finding.id, []).append(finding)
    merged = []
    for same in by_id.values():
        first, *rest = sorted(same, key=_place)
        evidence = dict.fromkeys(e for finding in (first, *rest) for e in finding.evidence)
        merged.append(replace(first, evidence=tuple(evidence)))
    return merged


def _explains(cause: Finding, symptom: Finding, found: Set[str]) -> bool:
    """Tell whether one is a symptom of the other: the catalogue says so, and the cause is sure enough.

    A symptom is seen and its cause concluded, so the cause may be one degree less sure, but never a mere guess: two
    suspicions stand side by side. And a note explains nothing away: what asks for no action can't account for what
    does.
    """
    if cause.id == symptom.id or cause.severity is Severity.NOTE:
        return False
    if cause.confidence is Confidence.LOW and symptom.severity is not Severity.NOTE:
        return False
    less_sure = CONFIDENCES.index(cause.confidence) - CONFIDENCES.index(symptom.confidence)
    is_sure = less_sure <= (0 if cause.confidence is Confidence.LOW else 1)
    return is_sure and symptom.id in all_symptoms(cause.id, found)


def all_symptoms(id: str, found: Set[str] = MEASURED) -> set[str]:
    """Return what a cause explains, and what that explains in turn; a measured link counts only where it was found."""
    symptoms: set[str] = set()
    waiting = list(CATALOGUE[id].explains)
    while waiting:
        symptom = waiting.pop()
        if symptom not in symptoms:
            symptoms.add(symptom)
            waiting += CATALOGUE[symptom].explains if symptom in found or symptom not in MEASURED else ()
    return symptoms


def _above(finding: Finding, symptoms: tuple[Finding, ...]) -> Finding:
    """Put symptoms under a cause, which is as bad as the worst of them."""
    worst = min((finding, *symptoms), key=lambda f: SEVERITIES.index(f.severity)).severity
    return replace(finding, severity=worst, explains=symptoms)


def _place(finding: Finding) -> tuple[int, int, int, int]:
    return (
        SEVERITIES.index(finding.severity),
        CONFIDENCES.index(finding.confidence),
        -len(finding.explains),
        _KINDS.index(CATALOGUE[finding.id].kind),
    )
