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
from uptrend.records import Basis, Evidence, RunView, Severity
from uptrend.records.finding import dated

NOTE = SEVERITY_ORDER.index(Severity.NOTE)


class FindingsLog:
    """Writes findings to the run's event log, and prints them."""

    def __init__(self, view: RunView, path: Path, event: Callable[..., None]) -> None:
        self.event = event
        self._view = view
        self.said: dict[str, int] = {}  # rank of the worst severity reported of each id
        # findings come from the trainer's thread and from two of the recorder's
        self._lock = threading.Lock()
        self._doctor = DoctorProcess(path)

    def say(
        self,
        id: str,
        severity: Severity,
        summary: str,
        evidence: Sequence[Evidence],
        basis: Basis = Basis.PROOF,
    ) -> None:
        """Report what a probe found."""
        self._report(
            "probed",
            finding_table(make_finding(self._view, id, severity, basis, summary, evidence)),
        )

    def hear(self) -> None:
        """Report what the doctor has found in the records."""
        for line in self._doctor.read_lines():
            self._pass_on(line)

    def end(self) -> None:
        """Let the doctor write findings.json, and report what is new in it."""
        for line in self._doctor.last_lines():
            self._pass_on(line)
            report = line.get("report", {"findings": ()})
            for told in report["findings"]:
                self._report("finding", {**told, "step": report["step"]})

    def _pass_on(self, line: dict[str, Any]) -> None:
        """Report a line of the doctor's: a finding, or the withdrawal of one."""
        if "id" in line:
            self._report("finding", line)
        elif "withdrawn" in line:
            with self._lock:
                self.said.pop(line["withdrawn"], None)
            self.event("withdrawn", id=line["withdrawn"], step=line["step"])
            text = (
                f"\nuptrend, {dated(line['step'])}: {line['withdrawn']} no longer asks for a"
                " change."
            )
            print(text, file=sys.stderr, flush=True)

    def _report(self, kind: str, told: dict[str, Any]) -> None:
        """Write and print a finding that is new, or worse than before."""
        rank = SEVERITY_ORDER.index(Severity(told["severity"]))
        with self._lock:
            if self.said.get(told["id"], len(SEVERITY_ORDER)) <= rank:
                return
            self.said[told["id"]] = rank
        shown_at = next((e["step"] for e in told["evidence"] if e["step"] is not None), None)
        step = told.get("step", shown_at)
        kept = ["id", "severity", "basis", "summary"] + ["evidence"] * (kind == "probed")
        self.event(kind, step=step, **{key: told[key] for key in kept})
        is_symptom = any(
            told["id"] in all_symptoms(id) for id, place in self.said.items() if place < NOTE
        )
        if rank >= NOTE or is_symptom:
            return
        date = f", {dated(step)}" if kind == "finding" and step is not None else ""
        lines = [f"\nuptrend{date}: {told['severity'].upper()} {told['id']}: {told['summary']}"]
        lines += [f"  - {evidence['text']}" for evidence in told["evidence"]]
        fix = told.get("fix")
        if fix and fix["sentence"]:
            lines.append(f"  fix: {fix['sentence']}")
            changes = ", ".join(
                f"{key} = {value}" for key, value in fix["changes"].get("trl", {}).items()
            )
            lines += [f"  in TRL: {changes}"] if changes else []
        print("\n".join(lines), file=sys.stderr, flush=True)
