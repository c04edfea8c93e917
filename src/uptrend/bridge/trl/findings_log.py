"""Findings while TRL trains: each is printed once in the terminal, and written to events.jsonl.

Results of probes are events `probed`, from which the doctor's check of that name makes findings again; so
findings.json and `uptrend doctor` rank them with what the records show.
"""

import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from uptrend.doctor.check import finding
from uptrend.doctor.live import DoctorProcess
from uptrend.doctor.rank import SEVERITIES, all_symptoms
from uptrend.doctor.report import finding_table
from uptrend.records import Confidence, Evidence, RunView, Severity

KEPT = ("id", "severity", "confidence", "summary")


class FindingsLog:
    """Writes findings to the run's event log, and prints them."""

    def __init__(self, view: RunView, path: Path, event: Callable[..., None]) -> None:
        self._view, self._event = view, event
        self._lock = threading.Lock()
        self._doctor = DoctorProcess(path)
        self.said: dict[str, int] = {}
        """Rank of the worst severity reported of each id."""

    def say(
        self, id: str, severity: Severity, confidence: Confidence, summary: str, evidence: Sequence[Evidence]
    ) -> None:
        """Report what a probe found."""
        told = finding_table(finding(self._view, id, severity, confidence, summary, evidence))
        self._report("probed", told, (*KEPT, "evidence"))

    def rule_out(self, id: str, reason: str) -> None:
        """Record that a probe excludes a cause: records that look like it are not believed."""
        self._event("acquitted", id=id, reason=reason)

    def cannot_tell(self, id: str, reason: str) -> None:
        """Record a probe that could not be made."""
        self._event("not-probed", id=id, reason=reason)

    def hear(self) -> None:
        """Report what the doctor has found in the records."""
        for told in self._doctor.heard():
            if "id" in told:
                self._report("finding", told, KEPT)

    def end(self) -> None:
        """Let the doctor write findings.json, and report what is new in it."""
        for told in (self._doctor.last() or {}).get("findings", ()):
            self._report("finding", told, KEPT)

    def _report(self, kind: str, told: dict[str, Any], kept: Sequence[str]) -> None:
        """Write and print a finding that is new, or worse than before."""
        rank = SEVERITIES.index(Severity(told["severity"]))
        with self._lock:
            if self.said.get(told["id"], len(SEVERITIES)) <= rank:
                return
            self.said[told["id"]] = rank
        step = next((e["step"] for e in told["evidence"] if e["step"] is not None), None)
        self._event(kind, step=step, **{key: told[key] for key in kept})
        note = SEVERITIES.index(Severity.NOTE)
        is_symptom = any(told["id"] in all_symptoms(id) for id, place in self.said.items() if place < note)
        if rank < note and not is_symptom:
            print(as_text(told), file=sys.stderr, flush=True)


def as_text(told: dict[str, Any]) -> str:
    """Format a finding for a terminal."""
    lines = [f"\nuptrend: {told['severity'].upper()} {told['id']}: {told['summary']}"]
    lines += [f"  - {evidence['text']}" for evidence in told["evidence"]]
    fix = told.get("fix")
    if fix and fix["sentence"]:
        lines.append(f"  fix: {fix['sentence']}")
        changes = ", ".join(f"{key} = {value}" for key, value in fix["changes"].get("trl", {}).items())
        lines += [f"  in TRL: {changes}"] if changes else []
    return "\n".join(lines)
