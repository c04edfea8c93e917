"""The doctor beside a run: a process that reads the run directory as it grows, and its handle. No torch.

    python -m uptrend.doctor.live runs/quickstart

It writes one line of JSON per finding as soon as it holds. A line on its stdin asks for the last report, which also
goes to findings.json; the end of stdin ends it. It is a process, not a thread: checks and training would share one
interpreter, and a step would wait for them.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from uptrend.doctor.catalogue import CATALOGUE, Kind
from uptrend.doctor.diagnose import diagnose
from uptrend.doctor.rank import alarms, at_least
from uptrend.doctor.report import finding_table, to_table
from uptrend.records import Finding, RecordError, Report, Run, Severity, view_of
from uptrend.records.directory import write_whole

# Seconds between two diagnoses: at least so many, and so many times what the last one took, which leaves the doctor at
# most a tenth of one core.
PAUSE, REST = 1.0, 9.0
# Seconds that the last report may take after the run has ended.
PATIENCE = 60.0


class SideProcess:
    """A module of ours that runs beside a run, and the JSON lines that it prints, without waiting for them."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._rest = b""
        self._process: subprocess.Popen[bytes] | None = None
        command = [sys.executable, "-m", module, *arguments]
        with contextlib.suppress(OSError):  # no process to be had: the run needs no doctor to go on
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                process_group=0,  # Ctrl-C is for the run; in a session of its own `nice` would have no effect
            )  # fmt: skip
            assert self._process.stdout is not None
            os.set_blocking(self._process.stdout.fileno(), False)

    def heard(self) -> list[dict[str, Any]]:
        """Return what it has told since the last call."""
        if self._process is None or self._process.stdout is None:
            return []
        *lines, self._rest = (self._rest + (self._process.stdout.read() or b"")).split(b"\n")
        return [json.loads(line) for line in lines if line.startswith(b"{")]

    def ask(self) -> None:
        """Ask it to say its last words and end."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):  # it has ended already
                self._process.stdin.write(b"\n")
                self._process.stdin.flush()

    def end(self, patience: float) -> list[dict[str, Any]] | None:
        """Ask, wait so many seconds for it to end, and return the rest of its lines; None where it had to be killed."""
        self.ask()
        process, self._process = self._process, None
        if process is None or process.stdout is None:
            return None
        os.set_blocking(process.stdout.fileno(), True)
        try:
            out, _ = process.communicate(timeout=patience)
        except (subprocess.TimeoutExpired, OSError):
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)  # with the processes that it started
            process.communicate()
            return None
        return [json.loads(line) for line in (self._rest + out).splitlines() if line.startswith(b"{")]


class DoctorProcess(SideProcess):
    """A doctor that runs beside a run; it tells findings."""

    def __init__(self, path: Path) -> None:
        super().__init__("uptrend.doctor.live", str(path))

    def last(self) -> dict[str, Any] | None:
        """Ask for the report of the whole run and end the process; None where it fails."""
        return next((line["report"] for line in self.end(PATIENCE) or () if "report" in line), None)


class Announced:
    """Alarms that have been told already, and those that wait to be seen a second time."""

    def __init__(self, told: Mapping[str, Severity] | None = None) -> None:
        self._told = dict(told or {})
        # Step from which on every diagnosis has had the alarm.
        self._since: dict[str, int] = {}

    def news(self, report: Report, step: int) -> list[Finding]:
        """Return alarms that hold and were not told, or not as bad."""
        # A curve that is judged again and again will look bad once by chance: what rests on one is told when a later
        # diagnosis, a tenth of the run on, still has it. An invariant is broken or it is not.
        now = alarms(report.findings)
        self._since = {f.id: self._since.get(f.id, step) for f in now}
        news = []
        for finding in now:
            is_curve, told = CATALOGUE[finding.id].kind is Kind.CURVE, self._told.get(finding.id)
            holds = not is_curve or step - self._since[finding.id] >= max(3, step // 10)
            if holds and (told is None or not at_least(replace(finding, severity=told), finding.severity)):
                self._told[finding.id] = finding.severity
                news.append(finding)
        return news


def attend(path: Path, orders: TextIO, say: Callable[[dict[str, Any]], None]) -> None:
    """Diagnose a growing run whenever it has new steps, until told to end."""
    # What a resumed run was told before is not told again.
    told = {str(e["id"]): Severity(e["severity"]) for e in Run(path).events if e.get("event") == "finding"}
    announced, last_step, pause = Announced(told), -1, PAUSE
    while not select.select([orders], [], [], pause)[0]:
        began = time.perf_counter()
        with contextlib.suppress(RecordError):  # half-written for a moment: the next diagnosis will do
            run = Run(path)
            if run.last_step > last_step:
                last_step = run.last_step
                for finding in announced.news(diagnose(view_of(run)), last_step):
                    say({"step": last_step, **finding_table(finding)})
        pause = max(PAUSE, REST * (time.perf_counter() - began))
    if orders.readline():
        table = to_table([diagnose(view_of(Run(path)))])
        write_whole(path / "findings.json", json.dumps(table, indent=1, ensure_ascii=False).encode())
        say({"report": table})


if __name__ == "__main__":
    os.nice(10)  # training goes first
    attend(Path(sys.argv[1]), sys.stdin, lambda line: print(json.dumps(line, ensure_ascii=False), flush=True))
