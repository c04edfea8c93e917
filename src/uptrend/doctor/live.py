"""The doctor beside a run: a process that reads the run directory as it grows, and its handle. No
torch.

    python -P -m uptrend.doctor.live runs/quickstart

It writes one line of JSON per finding as soon as it holds, and one when it no longer does. Each
report goes to findings.json. A line on its stdin requests the last one; the end of stdin ends it.
It is a process, not a thread: checks and training would share one interpreter, and a step would
wait for them.
"""

import contextlib
import json
import os
import select
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from uptrend.doctor.catalogue import CATALOGUE, Kind
from uptrend.doctor.check import alarms, is_at_least
from uptrend.doctor.diagnose import diagnose
from uptrend.doctor.report import finding_table, save_report
from uptrend.records import Basis, Finding, RecordError, Report, Run, Severity, view_of
from uptrend.records.worker_process import SideProcess

# Time between two diagnoses, and for long ones a multiple of the time that the last one took, which
# leaves the doctor at most a tenth of one core.
MIN_PAUSE_S = 1.0
PAUSE_PER_DIAGNOSIS = 9.0
# Niceness that is added, so that training goes first.
ADDED_NICENESS = 10
# A judgment on a curve is announced when it has lasted for a tenth of the run so far, and at least
# for a few steps. Chosen by hand.
MIN_STEPS_TO_HOLD = 3
RUN_PARTS = 10
# Time that the last report may take after the run has ended.
REPORT_TIMEOUT_S = 60.0


class DoctorProcess(SideProcess):
    """The doctor's process; its lines are findings, withdrawals and the last report."""

    def __init__(self, path: Path) -> None:
        super().__init__("uptrend.doctor.live", str(path))

    def last_lines(self) -> list[dict[str, Any]]:
        """Request the report of the whole run and end the process; return its last lines, none if
        it fails.
        """
        return self.end(REPORT_TIMEOUT_S) or []


class Announced:
    """Alarms that have been announced, and those that have to be seen a second time."""

    def __init__(self, announced: Mapping[str, Severity] | None = None) -> None:
        self._severity_by_id = dict(announced or {})
        # Steps from which on every diagnosis has had an alarm, or has lacked one that was
        # announced.
        self._present_since: dict[str, int] = {}
        self._absent_since: dict[str, int] = {}

    def news(self, report: Report, step: int) -> list[Finding]:
        """Return alarms that hold and were not announced, or not as bad."""
        findings = alarms(report.findings)
        self._present_since = {
            finding.id: self._present_since.get(finding.id, step) for finding in findings
        }
        news: list[Finding] = []
        for finding in findings:
            # A curve that is judged again and again will look bad once by chance: a finding that
            # rests on one is announced when a later diagnosis still has it. An invariant that is
            # proven to be broken is broken.
            is_of_curve = CATALOGUE[finding.id].kind is Kind.CURVE
            is_certain = finding.basis is Basis.PROOF and not is_of_curve
            n_steps = step - self._present_since[finding.id]
            holds = is_certain or n_steps >= steps_to_hold(step)
            if holds and not self._is_known(finding):
                self._severity_by_id[finding.id] = finding.severity
                news.append(finding)
        return news

    def _is_known(self, finding: Finding) -> bool:
        """Return True if a finding was announced, and as bad as it is now."""
        severity = self._severity_by_id.get(finding.id)
        if severity is None:
            return False
        return is_at_least(replace(finding, severity=severity), finding.severity)

    def withdrawn(self, report: Report, step: int, is_last: bool = False) -> list[str]:
        """Return causes that were announced and no longer ask for action; they may be announced
        again.
        """
        alarm_ids: set[str] = set()
        for cause in report.findings:
            alarm_ids.update(finding.id for finding in alarms((cause, *cause.explains)))
        absent_ids = [id for id in self._severity_by_id if id not in alarm_ids]
        self._absent_since = {id: self._absent_since.get(id, step) for id in absent_ids}
        withdrawn: list[str] = []
        for id, since in self._absent_since.items():
            if is_last or step - since >= steps_to_hold(step):
                withdrawn.append(id)
                del self._severity_by_id[id]
        return withdrawn


def steps_to_hold(step: int) -> int:
    """Return for how many steps a judgment on a curve has to last before it is announced."""
    return max(MIN_STEPS_TO_HOLD, step // RUN_PARTS)


def watch_run(path: Path, requests: TextIO, write: Callable[[dict[str, Any]], None]) -> None:
    """Diagnose a growing run whenever it has new steps, until a request ends it; findings.json has
    each report.
    """
    announced = Announced(announced_before(Run(path)))
    last_step = -1
    pause_s = MIN_PAUSE_S
    while not select.select([requests], [], [], pause_s)[0]:
        start = time.perf_counter()
        # A file may be half-written for a moment: the next diagnosis will do.
        with contextlib.suppress(RecordError):
            run = Run(path)
            if run.last_step > last_step:
                last_step = run.last_step
                report = diagnose(view_of(run))
                for finding in announced.news(report, last_step):
                    write({"step": last_step, **finding_table(finding)})
                for id in announced.withdrawn(report, last_step):
                    write({"step": last_step, "withdrawn": id})
                save_report(path, [report])
        duration_s = time.perf_counter() - start
        pause_s = max(MIN_PAUSE_S, PAUSE_PER_DIAGNOSIS * duration_s)

    # An empty line is the end of stdin: the run is gone, and nothing reads a last report.
    if requests.readline():
        report = diagnose(view_of(Run(path)))
        table = save_report(path, [report])
        for id in announced.withdrawn(report, report.step, is_last=True):
            write({"step": report.step, "withdrawn": id})
        write({"report": table})


def announced_before(run: Run) -> dict[str, Severity]:
    """Return the alarms of an earlier part of a resumed run that still hold: they are not announced
    again.
    """
    holding: dict[str, Severity] = {}
    for event in run.events:
        id = str(event.get("id"))
        if event["event"] == "finding" and event.get("severity") in list(Severity):
            holding[id] = Severity(event["severity"])
        elif event["event"] == "withdrawn":
            holding.pop(id, None)
    return holding


if __name__ == "__main__":
    os.nice(ADDED_NICENESS)
    watch_run(
        Path(sys.argv[1]),
        sys.stdin,
        lambda line: print(json.dumps(line, ensure_ascii=False), flush=True),
    )
