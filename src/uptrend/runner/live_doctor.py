"""Observer that runs the doctor beside a run, in a process of its own."""

from collections.abc import Callable
from typing import Any

from uptrend.doctor.live import DoctorProcess
from uptrend.records import Run, RunDirectory
from uptrend.records.finding import dated
from uptrend.training.observer import StepRecord, Stop

# Parts of a finding that its event has.
KEPT = ("id", "severity", "confidence", "summary", "fix", "step")
STOPS = {"never": (), "critical": ("critical",), "warning": ("critical", "warning")}


class LiveDoctor:
    """Observer that passes findings to the terminal, to events.jsonl, and to the loop as a wish to stop."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._doctor: DoctorProcess | None = None

    def before(self, run: Run) -> None:
        """Start the doctor."""
        wishes = run.config.get("doctor", {"live": False})  # a run of an older version that goes on
        self._directory = RunDirectory(run.path)
        self._stops = STOPS[wishes.get("stop_on", "never")]
        self._doctor = DoctorProcess(run.path) if wishes["live"] else None

    def step(self, record: StepRecord) -> Stop | None:
        """Pass on new findings, without waiting for any."""
        del record
        lines = self._doctor.read_lines() if self._doctor else []
        stops = [self._pass_on(line) for line in lines]
        return next((stop for stop in stops if stop is not None), None)

    def after(self, run: Run) -> None:
        """Ask for the last report, and say it in short."""
        doctor, self._doctor = self._doctor, None
        if doctor is None:
            return
        lines = doctor.last_lines()
        for line in lines:
            self._pass_on(line)
        report = next((line["report"] for line in lines if "report" in line), None)
        if report is None:
            self._say(f"The doctor did not answer. Ask again: uptrend doctor {run.path}")
            return
        alarms = [f["id"] for f in report["findings"] if f["severity"] != "note" and f["symptom_of"] is None]
        named = f"; {', '.join(alarms[:3])}" if alarms else ""
        is_fine = not alarms and report["headline"] == report["trend"]
        end = ", nothing that asks for a change." if is_fine else f". Read why: uptrend doctor {run.path}"
        self._say(f"Doctor, {dated(report['step'])}: {report['headline']}{named}{end}")

    def _pass_on(self, line: dict[str, Any]) -> Stop | None:
        """Tell and record a line of the doctor's: a finding, or the withdrawal of one."""
        if "withdrawn" in line:
            self._directory.event("withdrawn", id=line["withdrawn"], step=line["step"])
            self._say(f"doctor, {dated(line['step'])}: {line['withdrawn']} no longer asks for a change.")
        if "id" not in line:
            return None
        finding = line
        self._directory.event("finding", **{key: finding[key] for key in KEPT})
        self._say(f"doctor, {dated(finding['step'])}: {finding['severity']}: {finding['id']}: {finding['summary']}")
        if finding["severity"] in self._stops:
            return Stop(finding["summary"], by="doctor", finding=finding["id"])
        return None
