"""What may not be wrong with an arm, besides what is under test."""

from uptrend.doctor.catalogue import CATALOGUE
from uptrend.doctor.diagnose import diagnose
from uptrend.doctor.rank import all_symptoms
from uptrend.records import Confidence, Hypothesis, Run, Severity, view_of


def allowed(h: Hypothesis) -> tuple[str, ...]:
    """Catalogue ids that may be found in an arm: the cause under test, what it explains, and what the author allows."""
    ids = [id for id in (h.cause, *h.allows) if id in CATALOGUE]
    return tuple(dict.fromkeys(id for known in ids for id in (known, *sorted(all_symptoms(known)))))


def faults(run: Run, allows: set[str]) -> list[str]:
    """Critical faults that would make a comparison worthless, each in a sentence; a mere guess is none."""
    asked = [event for event in run.events if event.get("event") == "preflight"]
    probed = [
        f"{found['id']}: {found['summary']}"
        for found in (asked[-1]["findings"] if asked else ())
        if found["severity"] == Severity.CRITICAL and found["symptom_of"] is None and found["id"] not in allows
    ]
    findings = diagnose(view_of(run)).findings
    return probed + [
        f"{found.id}: {found.summary}"
        for found in findings
        if found.severity is Severity.CRITICAL and found.confidence is not Confidence.LOW and found.id not in allows
    ]
