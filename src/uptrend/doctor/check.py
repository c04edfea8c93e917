"""What a check is, and how it says what it found.

A check is a function in a file of its own under `doctor/checks/`, from a view of a run to findings, or to
`CannotTell` where it lacks its data. It reads records only and never loads torch.
"""

from collections.abc import Callable, Sequence

from uptrend.doctor.catalogue import CATALOGUE
from uptrend.doctor.resolve import resolve_experiment, resolve_fix
from uptrend.records import CannotTell, Confidence, Evidence, Finding, RunView, Severity

Outcome = list[Finding | CannotTell]
Check = Callable[[RunView], Outcome]

PAGES = "docs/findings/{id}.md"


def finding(
    view: RunView,
    id: str,
    severity: Severity,
    confidence: Confidence,
    summary: str,
    evidence: Sequence[Evidence],
) -> Finding:
    """A finding with what the catalogue knows of its cause; without rollouts a hidden cause is only suspected."""
    cause = CATALOGUE[id]
    hidden = cause.kind != "C" and not cause.in_scalars and not view.rollout_steps
    if hidden and confidence is Confidence.HIGH:
        confidence = Confidence.MEDIUM
    return Finding(
        id=id,
        severity=severity,
        confidence=confidence,
        summary=summary,
        evidence=tuple(evidence),
        rivals=cause.rivals,
        experiment=resolve_experiment(cause.experiment, view),
        fix=resolve_fix(cause.fix, view),
        page=PAGES.format(id=id),
    )
