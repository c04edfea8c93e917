"""Differential diagnosis: one finding per cause, symptoms folded under what explains them,
likeliest first.
"""

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import replace

from uptrend.doctor.catalogue import CATALOGUE, all_symptoms
from uptrend.records import Basis, Confidence, Finding, Severity

CRITICAL = Severity.CRITICAL
WARNING = Severity.WARNING
NOTE = Severity.NOTE
PROOF = Basis.PROOF
SIGNAL = Basis.SIGNAL
SUSPICION = Basis.SUSPICION
# Worst first, and surest first.
SEVERITIES = list(Severity)
BASES = list(Basis)


def rank(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return causes in the order in which to look at them, each with its symptoms under it."""
    ordered = sorted(_merged(findings), key=_place)
    ids = {finding.id for finding in ordered}
    causes: list[Finding] = []
    for finding in ordered:
        if not any(_explains(other, finding, ids) for other in ordered):
            symptoms = tuple(other for other in ordered if _explains(finding, other, ids))
            # A cause is as bad as the worst of its symptoms.
            worst = min((finding, *symptoms), key=lambda f: SEVERITIES.index(f.severity)).severity
            causes.append(replace(finding, severity=worst, explains=symptoms))
    return tuple(sorted(_unsure(causes), key=_place))


def _unsure(causes: Sequence[Finding]) -> Iterator[Finding]:
    """Yield causes; a doubted one that stands alone and proves nothing becomes a note that says
    why.
    """
    is_alone = all(cause.is_doubted for cause in alarms(causes))
    for cause in causes:
        is_proven = any(finding.basis is PROOF for finding in (cause, *alarms(cause.explains)))
        is_note = is_alone and cause.is_doubted and not is_proven and cause.severity is not NOTE
        why = (
            f"{cause.measured}: it is what another cause looks like, so look for what is behind it"
        )
        yield replace(cause, severity=NOTE, measured=why) if is_note else cause


def alarms(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings that ask for something to be done."""
    return [finding for finding in findings if finding.severity is not NOTE]


def at_least(finding: Finding, severity: Severity) -> bool:
    """Tell whether a finding is as bad as this, or worse."""
    return SEVERITIES.index(finding.severity) <= SEVERITIES.index(severity)


def _merged(findings: Iterable[Finding]) -> list[Finding]:
    """Merge the findings of one cause: the surest is kept, with the evidence of all."""
    listed = list(findings)
    merged = []
    for id in dict.fromkeys(finding.id for finding in listed):
        same = sorted((finding for finding in listed if finding.id == id), key=_place)
        evidence = dict.fromkeys(e for finding in same for e in finding.evidence)
        merged.append(replace(same[0], evidence=tuple(evidence)))
    return merged


def _explains(cause: Finding, symptom: Finding, found: Set[str]) -> bool:
    """Tell whether one is a symptom of the other: the catalogue says so, and the cause is sure
    enough.

    A symptom is seen and its cause concluded, so the cause may be one degree less sure, but never a
    mere guess: two suspicions stand side by side. And a note explains nothing away: what asks for
    no action can't account for what does.
    """
    is_guess = cause.basis is SUSPICION
    if (
        cause.id == symptom.id
        or cause.severity is NOTE
        or (is_guess and symptom.severity is not NOTE)
    ):
        return False
    less_sure = BASES.index(cause.basis) - BASES.index(symptom.basis)
    return less_sure <= (0 if is_guess else 1) and symptom.id in all_symptoms(cause.id, found)


def _place(finding: Finding) -> tuple[bool, bool, int, int, int, int]:
    """Return the place in the order: alarms first, of these what trials trust first, then worst and
    surest first.
    """
    is_note = finding.severity is NOTE
    is_distrusted = finding.confidence is Confidence.LOW
    is_worse = SEVERITIES.index(finding.severity)
    is_surer = BASES.index(finding.basis)
    kind = "IPC".index(CATALOGUE[finding.id].kind)
    return is_note, is_distrusted, is_worse, is_surer, -len(finding.explains), kind
