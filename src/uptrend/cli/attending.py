"""An observer that has the doctor look on while a run goes, in a process of its own."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from uptrend.records import Run, RunDirectory
from uptrend.train.observer import StepRecord, Stop

PATIENCE = 60.0
"""Seconds that the last report may take after the run has ended."""
STOPS = {"never": (), "critical": ("critical",), "warning": ("critical", "warning")}


class Attending:
    """Passes on what the doctor finds: to the terminal, to events.jsonl, and to the loop as a wish to stop."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._doctor: subprocess.Popen[bytes] | None = None
        self._rest = b""

    def before(self, run: Run) -> None:
        """Call the doctor."""
        wishes = run.config.get("doctor", {"live": False})  # a run of an older version that goes on
        self._directory = RunDirectory(run.path)
        self._stops = STOPS[wishes.get("stop_on", "never")]
        if not wishes["live"]:
            return
        command = [sys.executable, "-m", "uptrend.doctor.attend", str(run.path)]
        with contextlib.suppress(OSError):  # no process to be had: a run needs no doctor to go on
            self._doctor = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
            assert self._doctor.stdout is not None
            os.set_blocking(self._doctor.stdout.fileno(), False)

    def step(self, record: StepRecord) -> Stop | None:
        """Hear what there is to hear, without waiting for it."""
        del record
        stop = None
        for finding in self._heard():
            if "id" in finding:
                stop = self._pass_on(finding) or stop
        return stop

    def after(self, run: Run) -> None:
        """Ask for the last report, and say what it comes to."""
        doctor, self._doctor = self._doctor, None
        if doctor is None or doctor.stdin is None or doctor.stdout is None:
            return
        os.set_blocking(doctor.stdout.fileno(), True)
        try:
            out, _ = doctor.communicate(b"\n", timeout=PATIENCE)
        except (subprocess.TimeoutExpired, OSError):
            doctor.kill()
            doctor.communicate()
            self._say(f"The doctor did not answer in time. Ask again: uptrend doctor {run.path}")
            return
        lines = [json.loads(line) for line in (self._rest + out).splitlines() if line.startswith(b"{")]
        for report in (line["report"] for line in lines if "report" in line):
            self._say(_in_short(report, run))

    def _heard(self) -> list[dict[str, Any]]:
        if self._doctor is None or self._doctor.stdout is None:
            return []
        *lines, self._rest = (self._rest + (self._doctor.stdout.read() or b"")).split(b"\n")
        return [json.loads(line) for line in lines if line.startswith(b"{")]

    def _pass_on(self, finding: dict[str, Any]) -> Stop | None:
        kept = {key: finding[key] for key in ("id", "severity", "confidence", "summary", "step")}
        self._directory.event("finding", **kept)
        self._say(f"doctor: {finding['severity']}: {finding['id']}: {finding['summary']}")
        if finding["severity"] in self._stops:
            return Stop(f"the doctor found {finding['id']}: {finding['summary']}")
        return None


def _in_short(report: dict[str, Any], run: Run) -> str:
    alarms = [f for f in report["findings"] if f["severity"] != "note"]
    if not alarms:
        return f"Doctor: {report['verdict']}, nothing that asks for a change."
    named = ", ".join(f["id"] for f in alarms[:3])
    return f"Doctor: {report['verdict']}; {named}. Read why: uptrend doctor {run.path}"
