"""The doctor beside a run: a process that reads the run directory as it grows, and its handle. No
torch.

    python -P -m uptrend.doctor.live runs/quickstart

It writes one line of JSON per finding as soon as it holds, and one when it no longer does. Each
report goes to findings.json. A line on its stdin asks for the last one; the end of stdin ends it.
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

# Seconds between two diagnoses: at least so many, and so many times what the last one took, which
# leaves the doctor at most a tenth of one core.
PAUSE = 1.0
REST = 9.0
# Seconds that the last report may take after the run has ended.
REPORT_TIMEOUT_S = 60.0


class DoctorProcess(SideProcess):
    """The doctor's process; its lines are findings, withdrawals and the last report."""

    def __init__(self, path: Path) -> None:
        super().__init__("uptrend.doctor.live", str(path))

    def last_lines(self) -> list[dict[str, Any]]:
        """Ask for the report of the whole run and end the process; return its last lines, empty
        where it fails.
        """
        return self.end(REPORT_TIMEOUT_S) or []


class Announced:
    """Alarms that have been announced, and those that wait to be seen a second time."""

    def __init__(self, announced: Mapping[str, Severity] | None = None) -> None:
        self._told = dict(announced or {})
        # Steps from which on every diagnosis has had an alarm, or has lacked one that was
        # announced.
        self._since: dict[str, int] = {}
        self._absent: dict[str, int] = {}

    def news(self, report: Report, step: int) -> list[Finding]:
        """Return alarms that hold and were not announced, or not as bad."""
        # A curve that is judged again and again will look bad once by chance: what rests on one is
        # told when a later diagnosis, a tenth of the run on, still has it. An invariant that a
        # proof shows to be broken is broken.
        now = alarms(report.findings)
        self._since = {f.id: self._since.get(f.id, step) for f in now}
        news = []
        for finding in now:
            told = self._told.get(finding.id)
            is_certain = (
                finding.basis is Basis.PROOF and CATALOGUE[finding.id].kind is not Kind.CURVE
            )
            holds = is_certain or step - self._since[finding.id] >= steps_that_decide(step)
            if holds and (
                told is None or not is_at_least(replace(finding, severity=told), finding.severity)
            ):
                self._told[finding.id] = finding.severity
                news.append(finding)
        return news

    def withdrawn(self, report: Report, step: int, is_last: bool = False) -> list[str]:
        """Return causes that were announced and ask for nothing any more; they may be announced
        again.
        """
        alarming = {f.id for cause in report.findings for f in alarms((cause, *cause.explains))}
        self._absent = {id: self._absent.get(id, step) for id in self._told if id not in alarming}
        gone = [
            id
            for id, since in self._absent.items()
            if is_last or step - since >= steps_that_decide(step)
        ]
        for id in gone:
            del self._told[id]
        return gone


def steps_that_decide(step: int) -> int:
    """Return for how many steps a judgment on a curve has to last before it is announced."""
    return max(3, step // 10)


def attend(path: Path, orders: TextIO, say: Callable[[dict[str, Any]], None]) -> None:
    """Diagnose a growing run whenever it has new steps, until told to end; findings.json has each
    report.
    """
    announced = Announced(announced_before(Run(path)))
    last_step = -1
    pause = PAUSE
    while not select.select([orders], [], [], pause)[0]:
        began = time.perf_counter()
        # half-written for a moment: the next diagnosis will do
        with contextlib.suppress(RecordError):
            run = Run(path)
            if run.last_step > last_step:
                last_step = run.last_step
                report = diagnose(view_of(run))
                for finding in announced.news(report, last_step):
                    say({"step": last_step, **finding_table(finding)})
                for id in announced.withdrawn(report, last_step):
                    say({"step": last_step, "withdrawn": id})
                save_report(path, [report])
        pause = max(PAUSE, REST * (time.perf_counter() - began))
    if orders.readline():
        report = diagnose(view_of(Run(path)))
        table = save_report(path, [report])
        for id in announced.withdrawn(report, report.step, is_last=True):
            say({"step": report.step, "withdrawn": id})
        say({"report": table})


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
    os.nice(10)  # training goes first
    attend(
        Path(sys.argv[1]),
        sys.stdin,
        lambda line: print(json.dumps(line, ensure_ascii=False), flush=True),
    )
