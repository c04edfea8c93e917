"""The doctor beside a run: a process of its own that reads the run directory as it grows. No torch.

    python -m uptrend.doctor.attend runs/quickstart

It writes a line of JSON for each finding as soon as it holds, and reads its orders on stdin: a line asks for the
last report, which goes to findings.json; the end of stdin means that nobody listens any more. A process, not a
thread: checks and training would share one interpreter, and a step would wait for them.
"""

import json
import os
import select
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from uptrend.doctor.catalogue import CATALOGUE, Kind
from uptrend.doctor.diagnose import diagnose
from uptrend.doctor.rank import SEVERITIES, alarms
from uptrend.doctor.report import finding_table, to_table
from uptrend.records import Finding, RecordError, Report, Run, view_of
from uptrend.records.directory import write_whole

PAUSE = 1.0
"""Seconds between two looks, at least."""
REST = 9.0
"""And so many times what a look took: at most a tenth of one core goes to looking."""


@dataclass
class Attention:
    """What has been said already, and what waits to be seen a second time."""

    said: dict[str, int] = field(default_factory=dict)
    """The place of the severity that was told, by id."""
    seen_at: dict[str, int] = field(default_factory=dict)
    """The step at which a curve's finding was first seen without a gap."""

    def news(self, report: Report, step: int) -> list[Finding]:
        """Alarms that hold and were not told, or not as bad.

        A curve that is looked at again and again will look bad once by chance: what rests on one is told when a
        later look, a tenth of the run on, still sees it. An invariant is broken or it is not.
        """
        now = alarms(report.findings)
        self.seen_at = {f.id: self.seen_at.get(f.id, step) for f in now}
        return [finding for finding in now if self._holds(finding, step) and self._is_news(finding)]

    def _holds(self, finding: Finding, step: int) -> bool:
        since = step - self.seen_at[finding.id]
        return CATALOGUE[finding.id].kind is not Kind.CURVE or since >= max(3, step // 10)

    def _is_news(self, finding: Finding) -> bool:
        place = SEVERITIES.index(finding.severity)
        if self.said.get(finding.id, len(SEVERITIES)) <= place:
            return False
        self.said[finding.id] = place
        return True


def attend(path: Path, orders: TextIO, say: Callable[[dict[str, Any]], None]) -> None:
    """Look whenever there is something new, until told to end."""
    attention = Attention()
    looked, pause = -1, PAUSE
    while not (ready := select.select([orders], [], [], pause)[0]):
        began = time.perf_counter()
        try:
            run = Run(path)
            if run.last_step > looked:
                looked = run.last_step
                for finding in attention.news(diagnose(view_of(run)), looked):
                    say({"step": looked, **finding_table(finding)})
        except RecordError:  # half-written for a moment: the next look will do
            pass
        pause = max(PAUSE, REST * (time.perf_counter() - began))
    if ready and orders.readline():
        say({"report": _last(path)})


def _last(path: Path) -> dict[str, Any]:
    """The report of the whole run, also written beside its records."""
    table = to_table([diagnose(view_of(Run(path)))])
    write_whole(path / "findings.json", json.dumps(table, indent=1, ensure_ascii=False).encode())
    return table


def _main() -> None:
    def say(line: dict[str, Any]) -> None:
        print(json.dumps(line, ensure_ascii=False), flush=True)

    os.nice(10)  # training goes first
    attend(Path(sys.argv[1]), sys.stdin, say)


if __name__ == "__main__":
    _main()
