"""Findings while somebody else trains: each is said once in the terminal, and written to events.jsonl.

Answers of probes are events `probed`, from which the doctor's check of that name makes findings again; so
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
from uptrend.doctor.report.table import finding_table
from uptrend.records import Confidence, Evidence, RunView, Severity


class FindingsLog:
    """Says what was found, by whom it may be."""

    def __init__(self, view: RunView, path: Path, event: Callable[..., None]) -> None:
        self._view, self._event = view, event
        self._lock = threading.Lock()
        self._doctor = DoctorProcess(path)
        self.said: dict[str, int] = {}
        """The place of the worst severity that was told of each id."""

    def say(
        self, id: str, severity: Severity, confidence: Confidence, summary: str, evidence: Sequence[Evidence]
    ) -> None:
        """The answer of a probe."""
        table = finding_table(finding(self._view, id, severity, confidence, summary, evidence))
        if self._is_news(table):
            kept = ("id", "severity", "confidence", "summary", "evidence")
            step = next((e.step for e in evidence if e.step is not None), None)
            self._event("probed", step=step, **{key: table[key] for key in kept})
            self._print(table)

    def acquit(self, id: str, reason: str) -> None:
        """A probe has shown that this is not the cause: records that look like it are not believed."""
        self._event("acquitted", id=id, reason=reason)

    def cannot_tell(self, id: str, reason: str) -> None:
        """A probe that could not be made."""
        self._event("not-probed", id=id, reason=reason)

    def hear(self) -> None:
        """Pass on what the doctor has found in the records."""
        for told in self._doctor.heard():
            if "id" in told and self._is_news(told):
                self._pass_on(told)

    def end(self) -> None:
        """Let the doctor write findings.json, and pass on what is new in it."""
        report = self._doctor.last() or {}
        for told in report.get("findings", ()):
            if self._is_news(told):
                self._pass_on(told)

    def _pass_on(self, told: dict[str, Any]) -> None:
        kept = ("id", "severity", "confidence", "summary")
        step = next((e["step"] for e in told["evidence"] if e["step"] is not None), None)
        self._event("finding", step=step, **{key: told[key] for key in kept})
        self._print(told)

    def _is_news(self, told: dict[str, Any]) -> bool:
        with self._lock:
            place = SEVERITIES.index(Severity(told["severity"]))
            if self.said.get(told["id"], len(SEVERITIES)) <= place:
                return False
            self.said[told["id"]] = place
            return True

    def _print(self, told: dict[str, Any]) -> None:
        note = SEVERITIES.index(Severity.NOTE)
        known = any(told["id"] in all_symptoms(id) for id, place in self.said.items() if place < note)
        if told["severity"] != Severity.NOTE and not known:
            print(as_text(told), file=sys.stderr, flush=True)


def as_text(told: dict[str, Any]) -> str:
    """A finding as a person reads it in a terminal."""
    lines = [f"\nuptrend: {told['severity'].upper()} {told['id']}: {told['summary']}"]
    lines += [f"  - {evidence['text']}" for evidence in told["evidence"]]
    fix = told.get("fix")
    if fix and fix["sentence"]:
        lines.append(f"  fix: {fix['sentence']}")
        changes = ", ".join(f"{key} = {value}" for key, value in fix["changes"].get("trl", {}).items())
        lines += [f"  in TRL: {changes}"] if changes else []
    return "\n".join(lines)
