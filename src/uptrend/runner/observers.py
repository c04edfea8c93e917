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

from uptrend.bridge.trackers import chosen
from uptrend.doctor.live import DoctorProcess
from uptrend.present.formatting import duration, estimate, number, percent, plural, visible
from uptrend.records import Run, RunDirectory
from uptrend.records.directory import START_EVENTS
from uptrend.records.finding import causes, dated
from uptrend.records.lines import parse_line
from uptrend.records.metrics import shown_metrics
from uptrend.records.worker_process import SideProcess
from uptrend.runner.view import choose_view, count_epochs
from uptrend.training.observer import Observer, StepRecord, Stop

if TYPE_CHECKING:
    from uptrend.training.components import RunContext

# Parts of a finding that its event has.
EVENT_FIELDS = ("id", "severity", "confidence", "summary", "fix", "step")
STOP_SEVERITIES = {"never": (), "critical": ("critical",), "warning": ("critical", "warning")}
MAX_NAMED = 5  # rollouts with the same error that are named
# Seconds that all trackers together may take to send the rest after the run has ended.
TRACKERS_TIMEOUT_S = 30.0


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
    """Return all observers of a run: those of whoever started it, its log, and the trackers of its
    config.
    """
    if context.ranks.rank:
        return []
    # Trackers come last: the doctor's report, which its observer writes after a run, is theirs too.
    names = chosen(context.config.track)
    return [*observers, RunLog(), *([Tracking(names)] if names else [])]


def stop_sentence(run: Run, resume: str) -> str:
    """Return the sentence on a run that was stopped, with the command that resumes it; empty where
    it was not.
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

    is_asked = False

    def interrupt(self, *_: object) -> None:
        """Handle SIGINT: the first waits for the step, the second does not."""
        if self.is_asked:
            raise KeyboardInterrupt
        self.is_asked = True
        with suppress(RuntimeError):  # the signal came while this very stream was being written
            print(
                "Stopping after this step; Ctrl-C again ends at once.", file=sys.stderr, flush=True
            )

    def before(self, run: Run) -> None: ...

    def after(self, run: Run) -> None: ...

    def step(self, record: StepRecord | None) -> Stop | None:  # noqa: ARG002 (an observer's signature)
        """Stop if asked to."""
        return Stop("interrupted by the user", by="user") if self.is_asked else None


@contextmanager
def stop_on_interrupt() -> Iterator[InterruptObserver]:
    """Treat Ctrl-C as a request to stop after the step."""
    observer = InterruptObserver()
    before = signal.signal(signal.SIGINT, observer.interrupt)
    try:
        yield observer
    finally:
        signal.signal(signal.SIGINT, before)


class LiveDoctor:
    """Observer that passes findings to the terminal, to events.jsonl, and to the loop as a wish to
    stop.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._doctor: DoctorProcess | None = None

    def before(self, run: Run) -> None:
        """Start the doctor."""
        # a run of an older version that goes on
        doctor_config = run.config.get("doctor", {"live": False})
        self._directory = RunDirectory(run.path)
        self._stops = STOP_SEVERITIES[doctor_config.get("stop_on", "never")]
        self._doctor = DoctorProcess(run.path) if doctor_config["live"] else None

    def step(self, record: StepRecord) -> Stop | None:
        """Pass on new findings, without waiting for any."""
        del record
        lines = self._doctor.read_lines() if self._doctor else []
        stops = [self._pass_on(line) for line in lines]
        return next((stop for stop in stops if stop is not None), None)

    def after(self, run: Run) -> None:
        """Ask for the last report, and say it in short."""
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
        alarms = [f["id"] for f in causes(report) if f["severity"] != "note"]
        named = f"; {', '.join(alarms[:3])}" if alarms else ""
        is_fine = not alarms and report["headline"] == report["trend"]
        end = (
            ", nothing that asks for a change."
            if is_fine
            else f". Read why: uptrend doctor {run.path}"
        )
        self._say(f"Doctor, {dated(report['step'])}: {report['headline']}{named}{end}")

    def _pass_on(self, line: dict[str, Any]) -> Stop | None:
        """Tell and record a line of the doctor's: a finding, or the withdrawal of one."""
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
        if finding["severity"] in self._stops:
            return Stop(finding["summary"], by="doctor", finding=finding["id"])
        return None


class RunLog:
    """Observer that logs steps, failed rollouts, retries, evaluations and events, each line at
    once.
    """

    def before(self, run: Run) -> None:
        """Log what the run is, and its events since it started or resumed."""
        self._directory = RunDirectory(run.path)
        self._steps = run.steps or 0
        self._began = time.monotonic()
        self._first = run.last_step
        self._read = 0
        events = run.events
        began = max(
            (at for at, event in enumerate(events) if event["event"] in START_EVENTS), default=0
        )
        for event in events[began:]:
            self._tell(event)
        self._read = (run.path / "events.jsonl").stat().st_size if events else 0
        self._directory.log(
            f"{run.name}: {run.config['model']['name']} on {run.config['tasks']['name']}"
        )
        for text in (count_epochs(run), *(f"note: {note}" for note in run.info.get("notes", ()))):
            if text:
                self._directory.log(text)

    def step(self, record: StepRecord) -> None:
        """Log a step with its failures, and the evaluation after it."""
        self._pass_on()
        line = record.metrics
        if line:
            words = [
                f"{name} {number(line[key])}"
                for key, name in shown_metrics("log").items()
                if line.get(key) is not None
            ]
            done = record.step - self._first
            left = (time.monotonic() - self._began) / max(1, done) * (self._steps - record.step)
            words += [
                f"{duration(line.get('seconds/step'))} per step",
                *([f"{duration(left)} left"] if left > 0 else []),
            ]
            self._directory.log(f"step {record.step}/{self._steps}  {'  '.join(words)}")
        else:
            # the evaluation before the first step says nothing about the pace
            self._began = time.monotonic()
        # The columns of rollouts are made when they are first read: not here, unless there is
        # something to say.
        if line.get("sampling/failed/count") or line.get("commands/sandbox_failures/count"):
            self._tell_failures(record)
        for label, held in {"held-out": record.evaluation, **record.sets}.items():
            if held is not None:
                accuracy = estimate(held.accuracy, held.low, held.high)
                parts = [f"{label} after step {held.step}: {accuracy} of {held.tasks} tasks"]
                parts += [
                    f"{name} {percent(share)}"
                    for name, share in held.by_family.items()
                    if len(held.by_family) > 1
                ]
                parts += [f"{held.failed} failed"] if held.failed else []
                self._directory.log(", ".join(parts))

    def after(self, run: Run) -> None:
        """Log the last events, the run's end among them."""
        del run
        self._pass_on()

    def _tell_failures(self, record: StepRecord) -> None:
        failed = defaultdict[str, list[str]](list)
        for r in record.rollouts:
            if r.error is not None:
                failed[r.error].append(r.name)
            if r.sandbox_failures and r.reward is not None:
                self._directory.log(
                    f"rollout {r.name}: played again,"
                    f" {plural(r.sandbox_failures, 'sandbox failure')}"
                )
        for error, names in failed.items():
            more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
            self._directory.log(f"failed: {', '.join(names[:MAX_NAMED])}{more}: {visible(error)}")

    def _pass_on(self) -> None:
        """Log the events that were written since the last time."""
        path = self._directory.path / "events.jsonl"
        if not path.exists():
            return
        with path.open("rb") as file:
            file.seek(self._read)
            new = file.read()
        self._read += len(new)
        for line in new.splitlines():
            if (event := parse_line(line, path.name)) is not None:
                self._tell(event)

    def _tell(self, event: dict[str, Any]) -> None:
        fields = {key: value for key, value in event.items() if key not in ("event", "time")}
        at = event.get("time") if isinstance(event.get("time"), int | float) else None
        told = [
            f"{key} {value}"
            for key, value in fields.items()
            if isinstance(value, str | int | float)
        ]
        told += [f"{found['severity']} {found['id']}" for found in fields.get("findings", ())]
        self._directory.log(visible(f"{event['event']}: {', '.join(told)}"), at)


class Tracking:
    """Observer that starts the trackers, and passes what they say to the terminal and to
    events.jsonl.

    The processes read the records from disk: the loop hands nothing over and waits for nothing.
    """

    def __init__(self, names: list[str]) -> None:
        self._names = names
        self._processes = dict[str, SideProcess]()

    def before(self, run: Run) -> None:
        """Start the trackers; they send what comes after the steps that are there."""
        self._directory = RunDirectory(run.path)
        since = str(run.last_step)
        module = "uptrend.bridge.tracking"
        self._processes = {
            name: SideProcess(module, str(run.path), name, since) for name in self._names
        }

    def step(self, record: StepRecord) -> None:
        """Pass on what they have said."""
        del record
        for name, process in self._processes.items():
            self._pass_on(name, process.read_lines())

    def after(self, run: Run) -> None:
        """Give them a while to send the rest, side by side."""
        until = time.monotonic() + TRACKERS_TIMEOUT_S
        for process in self._processes.values():
            process.request_end()
        for name, process in self._processes.items():
            # one that is done is read, whoever hangs
            lines = process.end(max(1.0, until - time.monotonic()))
            again = f"To send the whole run: uptrend track {run.path} --to {name}"
            late = f"it did not end within {TRACKERS_TIMEOUT_S:g} s. {again}"
            self._pass_on(
                name, [{"event": "track-failed", "error": late}] if lines is None else lines
            )
        self._processes = {}

    def _pass_on(self, name: str, lines: list[dict[str, Any]]) -> None:
        for line in lines:
            kind = line.pop("event")
            self._directory.event(kind, tracker=name, **line)
            if kind != "notified":
                text = line["error"] if kind == "track-failed" else line["place"]
                # A live panel redirects stderr to the lines above it.
                print(f"{name}: {text}", file=sys.stderr, flush=True)
