"""Observers of a run: the doctor beside it, its log, its trackers, and Ctrl-C; put together here
and nowhere else.
"""

import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from uptrend.bridge.trackers import select_trackers
from uptrend.doctor.live import DoctorProcess
from uptrend.present.formatting import duration, estimate, number, percent, plural, visible
from uptrend.records import Evaluation, Run, RunDirectory
from uptrend.records.directory import START_EVENTS
from uptrend.records.finding import causes, dated
from uptrend.records.lines import parse_line
from uptrend.records.metrics import shown_metrics
from uptrend.records.view import taskset_names
from uptrend.records.worker_process import SideProcess
from uptrend.runner.view import choose_view, count_epochs
from uptrend.training.observer import Observer, StepRecord, Stop

if TYPE_CHECKING:
    from uptrend.training.components import RunContext

# Parts of a finding that its event has.
EVENT_FIELDS = ("id", "severity", "confidence", "summary", "fix", "step")
STOP_SEVERITIES = {"never": (), "critical": ("critical",), "warning": ("critical", "warning")}
# Findings that the doctor's last line names, and rollouts with the same error that the log names.
MAX_FINDINGS_NAMED = 3
MAX_ROLLOUTS_NAMED = 5
# Time that all trackers together may take to send the rest after the run has ended, and the time
# that each gets even if the others used it up: one that is done is still read.
TRACKERS_TIMEOUT_S = 30.0
MIN_TRACKER_TIMEOUT_S = 1.0


@contextmanager
def terminal_observers(
    *, quiet: bool = False, shows: bool = True, doctor: bool = True
) -> Iterator[list[Observer]]:
    """Yield the observers of a run that a person started: terminal view, live doctor, and
    Ctrl-C.
    """
    observers: list[Observer] = []
    if shows:
        view = choose_view(quiet=quiet, is_terminal=sys.stdout.isatty())
        observers.append(view)
        if doctor:
            observers.append(LiveDoctor(view.say))
    if threading.current_thread() is not threading.main_thread():  # which alone gets Ctrl-C
        yield observers
        return
    with stop_on_interrupt() as interrupt:
        yield [*observers, interrupt]


def run_observers(context: "RunContext", observers: Sequence[Observer]) -> list[Observer]:
    """Return all observers of a run: its caller's, its log, and the trackers of its config. Ranks
    other than the first have none.
    """
    if context.ranks.rank:
        return []
    all_observers: list[Observer] = [*observers, RunLog()]
    # Trackers come last: they also send the doctor's report, which its observer writes after a run.
    names = select_trackers(context.config.track)
    if names:
        all_observers.append(Tracking(names))
    return all_observers


def stop_sentence(run: Run, resume: str) -> str:
    """Return the sentence on a run that was stopped, with the command that resumes it; empty for
    any other run.
    """
    stop = run.stopped
    if stop is None:
        return ""
    if stop.by == "doctor":
        return (
            f"The doctor stopped it after step {run.last_step}: {stop.sentence} Its last checkpoint"
            f" has the fault too. Fix the recipe and start again, or resume anyway: {resume}"
        )
    if run.checkpoints:
        return f"Stopped after step {run.last_step}. Resume with: {resume}"
    return "Stopped before the first step: there is no checkpoint to resume from."


class InterruptObserver(Observer):
    """Observer that stops the run after the step during which the user pressed Ctrl-C."""

    is_interrupted = False

    def interrupt(self, *_: object) -> None:
        """Handle SIGINT: the first waits for the step, the second does not."""
        if self.is_interrupted:
            raise KeyboardInterrupt
        self.is_interrupted = True
        with suppress(RuntimeError):  # the signal came while this very stream was being written
            print(
                "Stopping after this step; Ctrl-C again ends at once.", file=sys.stderr, flush=True
            )

    def before(self, run: Run) -> None: ...

    def after(self, run: Run) -> None: ...

    def step(self, record: StepRecord | None) -> Stop | None:  # noqa: ARG002 (an observer's signature)
        """Stop after a first Ctrl-C."""
        if self.is_interrupted:
            return Stop("interrupted by the user", by="user")
        return None


@contextmanager
def stop_on_interrupt() -> Iterator[InterruptObserver]:
    """Treat Ctrl-C as a request to stop after the step."""
    observer = InterruptObserver()
    previous_handler = signal.signal(signal.SIGINT, observer.interrupt)
    try:
        yield observer
    finally:
        signal.signal(signal.SIGINT, previous_handler)


class LiveDoctor:
    """Observer that passes findings to the terminal and to events.jsonl, and stops the loop where
    the config says so.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._doctor: DoctorProcess | None = None

    def before(self, run: Run) -> None:
        """Start the doctor."""
        # A run that an older version began has no [doctor].
        doctor_config = run.config.get("doctor", {"live": False})
        self._directory = RunDirectory(run.path)
        self._stop_severities = STOP_SEVERITIES[doctor_config.get("stop_on", "never")]
        self._doctor = DoctorProcess(run.path) if doctor_config["live"] else None

    def step(self, record: StepRecord) -> Stop | None:
        """Pass on new findings without waiting for any; return the stop for the first that is
        severe enough.
        """
        del record
        if self._doctor is None:
            return None
        first_stop: Stop | None = None
        for line in self._doctor.read_lines():
            stop = self._pass_on(line)
            if first_stop is None:
                first_stop = stop
        return first_stop

    def after(self, run: Run) -> None:
        """Ask for the last report, and print its summary."""
        doctor = self._doctor
        self._doctor = None
        if doctor is None:
            return
        lines = doctor.last_lines()
        for line in lines:
            self._pass_on(line)
        report = next((line["report"] for line in lines if "report" in line), None)
        if report is None:
            self._say(f"The doctor did not answer. Ask again: uptrend doctor {run.path}")
            return
        alarms = [cause["id"] for cause in causes(report) if cause["severity"] != "note"]
        sentence = f"Doctor, {dated(report['step'])}: {report['headline']}"
        if alarms:
            sentence += f"; {', '.join(alarms[:MAX_FINDINGS_NAMED])}"
        # The headline is more than the trend where held-out accuracy or findings qualify it.
        if not alarms and report["headline"] == report["trend"]:
            sentence += ", nothing that asks for a change."
        else:
            sentence += f". Read why: uptrend doctor {run.path}"
        self._say(sentence)

    def _pass_on(self, line: dict[str, Any]) -> Stop | None:
        """Print and record a line of the doctor's process: a finding, or the withdrawal of one."""
        if "withdrawn" in line:
            self._directory.event("withdrawn", id=line["withdrawn"], step=line["step"])
            self._say(
                f"doctor, {dated(line['step'])}: {line['withdrawn']} no longer asks for a change."
            )
        if "id" not in line:
            return None
        finding = line
        self._directory.event("finding", **{key: finding[key] for key in EVENT_FIELDS})
        self._say(
            f"doctor, {dated(finding['step'])}: {finding['severity']}: {finding['id']}:"
            f" {finding['summary']}"
        )
        if finding["severity"] in self._stop_severities:
            return Stop(finding["summary"], by="doctor", finding=finding["id"])
        return None


class RunLog:
    """Observer that logs steps, failed rollouts, retries, evaluations and events, each line at
    once.
    """

    def before(self, run: Run) -> None:
        """Log the run's name, model and notes, and its events since it started or resumed."""
        self._directory = RunDirectory(run.path)
        self._steps = run.steps or 0
        self._began = time.monotonic()
        self._first_step = run.last_step
        self._bytes_read = 0  # of events.jsonl
        events = run.events
        last_start = 0
        for index, event in enumerate(events):
            if event["event"] in START_EVENTS:
                last_start = index
        for event in events[last_start:]:
            self._log_event(event)
        if events:
            self._bytes_read = (run.path / "events.jsonl").stat().st_size
        self._directory.log(
            f"{run.name}: {run.config['model']['name']} on {taskset_names(run.config)}"
        )
        epochs = count_epochs(run)
        if epochs:
            self._directory.log(epochs)
        for note in run.info.get("notes", ()):
            self._directory.log(f"note: {note}")

    def step(self, record: StepRecord) -> None:
        """Log a step with its failures, and the evaluation after it."""
        self._log_new_events()
        line = record.metrics
        if line:
            self._log_metrics(record)
        else:
            # The evaluation before the first step says nothing about the pace.
            self._began = time.monotonic()
        # Reading a column of rollouts makes it: the counts say if there is a failure to log.
        if line.get("sampling/failed/count") or line.get("commands/sandbox_failures/count"):
            self._log_failures(record)
        for label, evaluation in {"held-out": record.evaluation, **record.sets}.items():
            if evaluation is not None:
                self._log_evaluation(label, evaluation)

    def after(self, run: Run) -> None:
        """Log the last events, the run's end among them."""
        del run
        self._log_new_events()

    def _log_metrics(self, record: StepRecord) -> None:
        line = record.metrics
        parts = [f"step {record.step}/{self._steps}"]
        for key, name in shown_metrics("log", [line]).items():
            if line.get(key) is not None:
                parts.append(f"{name} {number(line[key])}")
        parts.append(f"{duration(line.get('seconds/step'))} per step")
        steps_done = record.step - self._first_step
        pace = (time.monotonic() - self._began) / max(1, steps_done)
        left = pace * (self._steps - record.step)
        if left > 0:
            parts.append(f"{duration(left)} left")
        self._directory.log("  ".join(parts))

    def _log_evaluation(self, label: str, evaluation: Evaluation) -> None:
        accuracy = estimate(evaluation.accuracy, evaluation.low, evaluation.high)
        parts = [f"{label} after step {evaluation.step}: {accuracy} of {evaluation.tasks} tasks"]
        if len(evaluation.by_family) > 1:
            parts += [f"{name} {percent(share)}" for name, share in evaluation.by_family.items()]
        if evaluation.failed:
            parts.append(f"{evaluation.failed} failed")
        self._directory.log(", ".join(parts))

    def _log_failures(self, record: StepRecord) -> None:
        names_by_error = defaultdict[str, list[str]](list)
        for rollout in record.rollouts:
            if rollout.error is not None:
                names_by_error[rollout.error].append(rollout.name)
            if rollout.sandbox_failures and rollout.reward is not None:
                self._directory.log(
                    f"rollout {rollout.name}: played again,"
                    f" {plural(rollout.sandbox_failures, 'sandbox failure')}"
                )
        for error, names in names_by_error.items():
            listed = ", ".join(names[:MAX_ROLLOUTS_NAMED])
            if len(names) > MAX_ROLLOUTS_NAMED:
                listed += f" and {len(names) - MAX_ROLLOUTS_NAMED} more"
            self._directory.log(f"failed: {listed}: {visible(error)}")

    def _log_new_events(self) -> None:
        """Log the events that were written since the last call."""
        path = self._directory.path / "events.jsonl"
        if not path.exists():
            return
        with path.open("rb") as file:
            file.seek(self._bytes_read)
            new = file.read()
        self._bytes_read += len(new)
        for line in new.splitlines():
            event = parse_line(line, path.name)
            if event is not None:
                self._log_event(event)

    def _log_event(self, event: dict[str, Any]) -> None:
        parts = []
        for key, value in event.items():
            if key not in ("event", "time") and isinstance(value, str | int | float):
                parts.append(f"{key} {value}")
        for finding in event.get("findings", ()):
            parts.append(f"{finding['severity']} {finding['id']}")
        time_s = event.get("time")
        if not isinstance(time_s, int | float):
            time_s = None
        self._directory.log(visible(f"{event['event']}: {', '.join(parts)}"), time_s)


class Tracking:
    """Observer that starts the trackers, and passes their messages to the terminal and to
    events.jsonl.

    The processes read the records from disk: the loop hands nothing over and waits for nothing.
    """

    def __init__(self, names: list[str]) -> None:
        self._names = names
        self._processes: dict[str, SideProcess] = {}

    def before(self, run: Run) -> None:
        """Start the trackers; they send the steps after those that are recorded."""
        self._directory = RunDirectory(run.path)
        since = str(run.last_step)
        for name in self._names:
            self._processes[name] = SideProcess(
                "uptrend.bridge.tracking", str(run.path), name, since
            )

    def step(self, record: StepRecord) -> None:
        """Pass on new messages of the trackers."""
        del record
        for name, process in self._processes.items():
            self._pass_on(name, process.read_lines())

    def after(self, run: Run) -> None:
        """Wait for the trackers to send the rest, side by side."""
        deadline = time.monotonic() + TRACKERS_TIMEOUT_S
        for process in self._processes.values():
            process.request_end()
        for name, process in self._processes.items():
            left = deadline - time.monotonic()
            lines = process.end(max(MIN_TRACKER_TIMEOUT_S, left))
            if lines is None:
                error = (
                    f"it did not end within {TRACKERS_TIMEOUT_S:g} s. To send the whole run:"
                    f" uptrend track {run.path} --to {name}"
                )
                lines = [{"event": "track-failed", "error": error}]
            self._pass_on(name, lines)
        self._processes = {}

    def _pass_on(self, name: str, lines: list[dict[str, Any]]) -> None:
        for line in lines:
            kind = line.pop("event")
            self._directory.event(kind, tracker=name, **line)
            if kind != "notified":
                text = line["error"] if kind == "track-failed" else line["place"]
                # A live panel redirects stderr to the lines above it.
                print(f"{name}: {text}", file=sys.stderr, flush=True)
