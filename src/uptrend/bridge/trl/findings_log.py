"""Findings while TRL trains: each is printed once in the terminal, and written to events.jsonl.

Results of probes are events `probed`, from which the doctor's check of that name makes findings
again; so findings.json and `uptrend doctor` rank them with what the records show.
"""

import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from uptrend.doctor.catalogue import all_symptoms
from uptrend.doctor.check import SEVERITY_ORDER, make_finding
from uptrend.doctor.live import DoctorProcess
from uptrend.doctor.report import finding_table
from uptrend.records import Basis, Evidence, Fix, RunView, Severity
from uptrend.records.finding import dated

NOTE_RANK = SEVERITY_ORDER.index(Severity.NOTE)  # 0 is the worst


class FindingsLog:
    """Writes findings to the run's event log, and prints them."""

    def __init__(self, view: RunView, path: Path, event: Callable[..., None]) -> None:
        self.event = event
        self.reported_ranks: dict[str, int] = {}  # rank of the worst severity reported, by id
        self._view = view
        # Findings come from the trainer's thread and from two of the recorder's.
        self._lock = threading.Lock()
        self._doctor = DoctorProcess(path)

    def report(
        self,
        id: str,
        severity: Severity,
        summary: str,
        evidence: Sequence[Evidence],
        basis: Basis = Basis.PROOF,
        fix: Fix | None = None,
    ) -> None:
        """Report a probe's finding, with a fix that its evidence chose, or that of the page."""
        finding = make_finding(self._view, id, severity, basis, summary, evidence, fix)
        self._report("probed", finding_table(finding), "" if fix is None else fix.sentence)

    def report_diagnoses(self) -> None:
        """Report what the doctor has found in the records since the last call."""
        for line in self._doctor.read_lines():
            self._report_line(line)

    def end(self) -> None:
        """Let the doctor write findings.json, and report what is new in it."""
        for line in self._doctor.last_lines():
            self._report_line(line)
            report = line.get("report", {"findings": ()})
            for finding in report["findings"]:
                self._report("finding", {**finding, "step": report["step"]})

    def _report_line(self, line: dict[str, Any]) -> None:
        """Report a line of the doctor's: a finding, or the withdrawal of one."""
        if "id" in line:
            self._report("finding", line)
        elif "withdrawn" in line:
            id = line["withdrawn"]
            with self._lock:
                self.reported_ranks.pop(id, None)
            self.event("withdrawn", id=id, step=line["step"])
            text = f"\nuptrend, {dated(line['step'])}: {id} no longer asks for a change."
            print(text, file=sys.stderr, flush=True)

    def _report(self, kind: str, finding: dict[str, Any], own_fix: str = "") -> None:
        """Write and print a finding that is new, or worse than before."""
        id = finding["id"]
        rank = SEVERITY_ORDER.index(Severity(finding["severity"]))
        with self._lock:
            if self.reported_ranks.get(id, len(SEVERITY_ORDER)) <= rank:
                return
            self.reported_ranks[id] = rank

        evidence_steps = [each["step"] for each in finding["evidence"] if each["step"] is not None]
        step = finding.get("step", evidence_steps[0] if evidence_steps else None)
        recorded = ["id", "severity", "basis", "summary"]
        if kind == "probed":
            recorded.append("evidence")
        values = {key: finding[key] for key in recorded}
        if own_fix:
            values["fix"] = own_fix
        self.event(kind, step=step, **values)

        # A note is not printed, nor is a symptom of a cause that is.
        causes = [cause for cause, worst in self.reported_ranks.items() if worst < NOTE_RANK]
        if rank >= NOTE_RANK or any(id in all_symptoms(cause) for cause in causes):
            return
        date = f", {dated(step)}" if kind == "finding" and step is not None else ""
        lines = [f"\nuptrend{date}: {finding['severity'].upper()} {id}: {finding['summary']}"]
        lines += [f"  - {evidence['text']}" for evidence in finding["evidence"]]
        fix = finding.get("fix")
        if fix and fix["sentence"]:
            lines.append(f"  fix: {fix['sentence']}")
            trl_changes = fix["changes"].get("trl", {})
            if trl_changes:
                changes = ", ".join(f"{key} = {value}" for key, value in trl_changes.items())
                lines.append(f"  in TRL: {changes}")
        print("\n".join(lines), file=sys.stderr, flush=True)
