"""A run's records on their way to a tracker: all of a finished run, or those of a running one as
they are written.

    python -m uptrend.bridge.tracking runs/quickstart wandb 0

The records on disk are the queue: a slow or unreachable tracker falls behind and costs the run
neither time nor memory. It is a process, like the doctor's: a tracker that hangs, prints or waits
at exit does so there.
"""

import json
import math
import os
import select
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from uptrend.bridge.trackers import Alert, TrackedRun, Tracker, make_tracker
from uptrend.config import Track, build
from uptrend.config.tables import flatten
from uptrend.doctor.catalogue import CATALOGUE, complete_fix
from uptrend.records import Run
from uptrend.records.directory import END_EVENTS, START_EVENTS, eval_path
from uptrend.records.lines import parse_line
from uptrend.records.table import RolloutTable

# Seconds between two reads of the records, times the factor for each failure in a row; and failures
# in a row after which nothing more is sent.
POLL_INTERVAL_S = 1.0
RETRY_FACTOR = 5
MAX_FAILURES = 4
# Rows of a held-out table, and characters of a cell: more can't be read in a tracker. The records
# have all.
MAX_HELDOUT_ROWS = 500
MAX_CELL_CHARACTERS = 10_000
# Characters of an error in the run's events.
MAX_ERROR_CHARACTERS = 500
HELDOUT_COLUMNS = ("task", "prompt", "model's answer", "answer", "correct")
ROLLOUT_COLUMNS = ("step", "task", "text", "reward", "advantage")
FINDING_COLUMNS = ("id", "severity", "confidence", "summary", "fix")
Event = dict[str, Any]


class Tail:
    """Lines of a growing file, each once; a line comes again if its reader raised."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):  # half-written
                    return
                record = parse_line(line, self._path.name)
                if record is not None:
                    yield record
                self._offset += len(line)


class Sender:
    """Sends what a run directory holds to one tracker, each thing once, and counts it."""

    def __init__(
        self,
        path: Path,
        name: str,
        tracker: Tracker,
        track: Track,
        on_event: Callable[[Event], None] = lambda _: None,
        continues: bool = False,
        since: int = 0,
        on_line_sent: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare; `continues` goes on with the tracker's run that the events name, after the step
        `since`.
        """
        self.path = path.resolve()
        self.name = name
        self.counts = Counter[str]()
        self.id = ""
        self.location = ""
        """Text that says where the tracker shows the run."""
        self._tracker = tracker
        self._track = track
        self._on_event = on_event
        self._on_line_sent = on_line_sent
        self._is_started = False
        # Calls for the current line: those that were reached, and those that have succeeded, also
        # in an earlier attempt at the line.
        self._n_reached = 0
        self._n_succeeded = 0
        self._metrics = Tail(path / "metrics.jsonl")
        self._evals = Tail(path / "evals.jsonl")
        self._events = Tail(path / "events.jsonl")

        earlier: list[Event] = []
        if continues:
            earlier = [event for event in Run(path).events if event.get("tracker") == name]
        earlier_ids: list[str] = []
        # Alerts of an earlier part of a resumed run, whose events are read again: they are not sent
        # again.
        self._sent_earlier = Counter[tuple[Any, Any]]()
        for event in earlier:
            if event["event"] == "tracked" and event.get("project") == track.project:
                earlier_ids.append(str(event.get("id", "")))
            elif event["event"] == "notified":
                self._sent_earlier[event.get("id"), event.get("severity")] += 1
        self._earlier_id = earlier_ids[-1] if earlier_ids else ""
        self._since = since if earlier_ids else -1
        # Id and severity of alarms that hold, as far as the tracker knows.
        self._active_alarms: set[tuple[str, str]] = set()

    def send(self) -> None:
        """Send what is new; an error leaves the rest for the next call."""
        if not self._is_started:
            self._start()
        for line in self._new_lines(self._metrics):
            self._send_metrics(line, finite_numbers(line))
            if line["step"] == 1:
                self._send_rollouts(1)
        for line in self._new_lines(self._evals):
            self._send_evaluation(line)
        for event in self._events:
            step = event.get("step") or 0
            if event["event"] == "preflight":
                self._alert(event.get("findings", []), step)
            elif event["event"] in ("finding", "probed"):
                self._alert([event], step)
            elif event["event"] == "withdrawn":
                self._withdraw([str(event.get("id"))], step)

    def finish(self, report: Mapping[str, Any] | None) -> None:
        """Send the findings of a report and end the tracker's run as the run has ended."""
        run = Run(self.path)
        if report:
            self._send_report(report)
        status = "failed"
        for event in run.events:
            if event["event"] in END_EVENTS:
                status = event["event"]
            elif event["event"] in START_EVENTS:
                # It was started again, and has not ended since.
                status = "failed"
        self._tracker.finish(status)

    def _send_report(self, report: Mapping[str, Any]) -> None:
        step = report["step"]
        findings = report["findings"]
        if findings:
            rows: list[list[Any]] = []
            for finding in findings:
                values = [finding[key] for key in ("id", "severity", "confidence", "summary")]
                rows.append([*values, _fix_text(finding)])
            self._send_table("findings", FINDING_COLUMNS, rows, step)
            causes = [finding for finding in findings if not finding["symptom_of"]]
            self._alert(causes, step)
        # A tag of a tracker holds until it is overwritten: what is no alarm of the report is none
        # any more.
        alarming = {finding["id"] for finding in findings if finding["severity"] != "note"}
        active = {id for id, _ in self._active_alarms}
        self._withdraw(sorted(active - alarming), step)

    def _start(self) -> None:
        """Start the tracker's run."""
        run = Run(self.path)
        track = self._track
        config = flatten(run.config)
        config["run.path"] = str(self.path)
        config["run.uptrend"] = run.info.get("uptrend")
        config["run.created"] = run.info.get("created")
        notes = "\n\n".join([f"Run directory: {self.path}", *run.info.get("notes", ())])
        tracked_run = TrackedRun(
            track.name or run.name,
            track.project,
            config,
            notes,
            self.path,
            id=self._earlier_id,
            step=max(self._since, 0),
        )
        self.id, self.location = self._tracker.start(tracked_run)
        self._is_started = True
        if self.id:
            self._on_event(
                {
                    "event": "tracked",
                    "project": track.project,
                    "id": self.id,
                    "place": self.location,
                }
            )

    def _new_lines(self, tail: Tail) -> Iterator[dict[str, Any]]:
        for line in tail:
            self._n_reached = 0
            if line["step"] > self._since:
                yield line
            # Not reached if the line's calls raise: the next attempt leaves out those that
            # succeeded.
            self._n_succeeded = 0
            self._on_line_sent()

    def _call_once(self, call: Callable[..., None], *arguments: Any, **counts: int) -> None:
        """Make a call for the current line, unless it succeeded in an earlier attempt."""
        self._n_reached += 1
        if self._n_reached > self._n_succeeded:
            call(*arguments)
            self._n_succeeded = self._n_reached
            self.counts.update(counts)

    def _send_metrics(self, line: Mapping[str, Any], values: Mapping[str, float]) -> None:
        time_s = line.get("time", 0.0)
        self._call_once(self._tracker.metrics, line["step"], values, time_s, metrics=len(values))

    def _send_evaluation(self, line: Mapping[str, Any]) -> None:
        """Send the numbers and answers of an evaluation, those of each further set included."""
        step = line["step"]
        evaluations = {"": line, **line.get("sets", {})}
        values: dict[str, float] = {}
        for label, evaluation in evaluations.items():
            values |= eval_numbers(evaluation, label)
        self._send_metrics(line, values)
        for label, evaluation in evaluations.items():
            if eval_path(self.path, step, label).exists():
                self._send_answers(step, label, int(evaluation.get("tasks", MAX_HELDOUT_ROWS)))
        self._send_rollouts(step)

    def _send_answers(self, step: int, label: str, n_tasks: int) -> None:
        table = RolloutTable(step, Run(self.path).eval_rollouts(step, label))
        # Greedy answers come first, sampled attempts for pass@k after them.
        greedy_n = np.flatnonzero(table.kept_n)[: min(MAX_HELDOUT_ROWS, n_tasks)]
        rows = [_heldout_row(table, n) for n in greedy_n.tolist()]
        name = f"held-out-{label}" if label else "held-out"
        self._send_table(name, HELDOUT_COLUMNS, rows, step)

    def _send_rollouts(self, step: int) -> None:
        """Send some rollouts of a step."""
        run = Run(self.path)
        if not self._track.rollouts or step not in run.rollout_steps:
            return
        table = RolloutTable(step, run.rollouts(step))
        kept_n = np.flatnonzero(table.kept_n)
        count = min(self._track.rollouts, len(kept_n))
        rows: list[list[Any]] = []
        for index in range(count):
            # Evenly from all of the step, so that they are of several groups.
            n = int(kept_n[index * len(kept_n) // count])
            rows.append(_rollout_row(table, n))
        self._send_table("rollouts", ROLLOUT_COLUMNS, rows, step)

    def _send_table(
        self, name: str, columns: tuple[str, ...], rows: list[list[Any]], step: int
    ) -> None:
        counts = {"tables": 1, f"rows of {name}": len(rows)}
        self._call_once(self._tracker.table, name, columns, rows, step, **counts)

    def _alert(self, findings: list[Mapping[str, Any]], step: int) -> None:
        """Alert to findings that are causes and no notes, each once."""
        for finding in findings:
            alarm = finding["id"], finding["severity"]
            is_cause = finding["severity"] != "note" and not finding.get("symptom_of")
            if is_cause and alarm not in self._active_alarms:
                self._notify(Alert(*alarm, finding["summary"], _fix_text(finding)), step)
                self._active_alarms.add(alarm)

    def _withdraw(self, ids: Iterable[str], step: int) -> None:
        """Notify the tracker that alarms which it knows ask for nothing any more."""
        for id in ids:
            others = {alarm for alarm in self._active_alarms if alarm[0] != id}
            if len(others) < len(self._active_alarms):
                self._notify(Alert(id, "note", "It no longer asks for a change.", ""), step)
                self._active_alarms = others

    def _notify(self, alert: Alert, step: int) -> None:
        key = alert.id, alert.severity
        if self._sent_earlier[key] > 0:
            self._sent_earlier[key] -= 1
            return
        self._tracker.alert(alert, step)
        self.counts["alerts"] += 1
        self._on_event({"event": "notified", "id": alert.id, "severity": alert.severity})


def finite_numbers(line: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite numbers of a line by name, without its step and its time."""
    numbers: dict[str, float] = {}
    for key, value in line.items():
        is_metric = isinstance(value, int | float) and key not in ("step", "time")
        if is_metric and math.isfinite(value):
            numbers[key] = float(value)
    return numbers


def eval_numbers(line: Mapping[str, Any], label: str = "") -> dict[str, float]:
    """Return the numbers of an evaluation under the names that the lab compares them by:
    `eval/accuracy`.
    """
    numbers = finite_numbers(line)
    for prefix, key in {"part/": "parts", "pass@": "pass_at", "family/": "by_family"}.items():
        for name, value in finite_numbers(line.get(key, {})).items():
            numbers[f"{prefix}{name}"] = value
    group = f"eval/set/{label}" if label else "eval"
    return {f"{group}/{key}": value for key, value in numbers.items()}


def _heldout_row(table: RolloutTable, n: int) -> list[Any]:
    """Return a rollout of an evaluation as a row: its prompt, and what the model wrote last."""
    contents = [table.messages.content_m[m].as_py() or "" for m in table.prompt_range_n[n]]
    prompt = "\n".join(contents)[:MAX_CELL_CHARACTERS]
    response = (table.response_n[n] or "")[:MAX_CELL_CHARACTERS]
    answer = table.value("answer", n)
    return [table.value("task", n), prompt, response, answer, table.value("correct", n)]


def _rollout_row(table: RolloutTable, n: int) -> list[Any]:
    """Return a rollout of a step as a row: all of its messages in one text."""
    messages = table.messages
    lines = [f"{messages.role_m[m]}: {messages.text_m[m]}" for m in table.message_range_n[n]]
    text = "\n".join(lines)[:MAX_CELL_CHARACTERS]
    reward = table.value("reward", n)
    return [table.step, table.value("task", n), text, reward, table.advantage(n)]


def _fix_text(finding: Mapping[str, Any]) -> str:
    """Return the fix of a finding, or of its cause if an event has none."""
    if "fix" in finding:
        return finding["fix"]["sentence"] if finding["fix"] else ""
    cause = CATALOGUE.get(finding["id"])
    return complete_fix(cause.fix).sentence if cause else ""


def follow(
    path: Path, name: str, since: int, requests: TextIO, on_event: Callable[[Event], None]
) -> None:
    """Send a growing run to a tracker until a line of `requests` ends it; a failure is reported
    once, and tried again a few times.
    """
    track = build(Track, Run(path).config.get("track", {}), "track")
    tracker = make_tracker(name, track)
    sender = Sender(path, name, tracker, track, on_event, continues=True, since=since)
    n_failures = 0
    is_over = False
    is_reported = False
    while n_failures < MAX_FAILURES and not is_over:
        wait_s = POLL_INTERVAL_S * RETRY_FACTOR**n_failures
        readable, _, _ = select.select([requests], [], [], wait_s)
        is_over = bool(readable)
        try:
            sender.send()
            if is_over:
                sender.finish(Run(path).report)
            n_failures = 0
        except Exception as error:
            n_failures += 1
            is_last = is_over or n_failures == MAX_FAILURES
            if is_last or not is_reported:
                is_reported = True
                text = f"{type(error).__name__}: {error}"[:MAX_ERROR_CHARACTERS]
                outcome = "no more is sent" if is_last else "it is tried again"
                on_event({"event": "track-failed", "error": f"{text}; {outcome}"})


if __name__ == "__main__":
    os.nice(10)  # training goes first
    folder, tracker_name, last_step = sys.argv[1:]
    follow(
        Path(folder),
        tracker_name,
        int(last_step),
        sys.stdin,
        lambda event: print(json.dumps(event), flush=True),
    )
