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

from uptrend.bridge.trackers import Alert, Start, Tracker, make_tracker
from uptrend.config import Track, build
from uptrend.config.tables import flatten
from uptrend.doctor.catalogue import CATALOGUE, complete_fix
from uptrend.records import Run
from uptrend.records.directory import END_EVENTS, START_EVENTS, eval_path
from uptrend.records.lines import parse_line
from uptrend.records.table import RolloutTable

# Seconds between two looks at the records, five times as many after each failure in a row, of which
# so many end it.
PAUSE = 1.0
FAILURES = 4
# Rows of a held-out table, and characters of a cell: more can't be read in a tracker. The records
# have all.
ROWS = 500
CHARACTERS = 10_000
Event = dict[str, Any]


class Tail:
    """Lines of a growing file, each once; one whose user raised comes again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._at)
            for line in file:
                if not line.endswith(b"\n"):  # half-written
                    return
                record = parse_line(line, self._path.name)
                if record is not None:
                    yield record
                self._at += len(line)


class Sender:
    """Sends what a run directory holds to one tracker, each thing once, and counts it."""

    # Calls of the line at hand: those that were reached, and those that have succeeded, also in an
    # earlier attempt.
    _reached = _succeeded = 0

    def __init__(
        self,
        path: Path,
        name: str,
        tracker: Tracker,
        track: Track,
        say: Callable[[Event], None] = lambda _: None,
        goes_on: bool = False,
        since: int = 0,
        sent: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare; `goes_on` continues the tracker's run that the events name, after the step
        `since`.
        """
        self.path = path.resolve()
        self.name = name
        self.counts = Counter[str]()
        self.id = self.place = ""
        self._tracker = tracker
        self._track = track
        self._say = say
        self._sent = sent
        self._is_started = False
        self._metrics, self._evals, self._events = (
            Tail(path / f"{n}.jsonl") for n in ("metrics", "evals", "events")
        )
        earlier = [event for event in Run(path).events if goes_on and event.get("tracker") == name]
        ids = [
            e.get("id", "")
            for e in earlier
            if e["event"] == "tracked" and e.get("project") == track.project
        ]
        self._earlier = str(ids[-1]) if ids else ""
        self._since = since if ids else -1
        self._told = set[tuple[str, str]]()  # alarms that hold, as far as the tracker knows
        # Alerts of an earlier part of a resumed run, whose events are read again: they are not sent
        # again.
        self._notified = Counter(
            (e.get("id"), e.get("severity")) for e in earlier if e["event"] == "notified"
        )

    def send(self) -> None:
        """Send what is new; an error leaves the rest for the next call."""
        if not self._is_started:
            self.id, self.place = self._tracker.start(self._start())
            self._is_started = True
            if self.id:
                self._say(
                    {
                        "event": "tracked",
                        "project": self._track.project,
                        "id": self.id,
                        "place": self.place,
                    }
                )
        for line in self._new(self._metrics):
            self._send_metrics(line, numbers(line))
            if line["step"] == 1:
                self._samples(1)
        for line in self._new(self._evals):
            self._evaluation(line)
        for event in self._events:
            alarms = event.get("findings", []) if event["event"] == "preflight" else [event]
            if event["event"] in ("finding", "probed", "preflight"):
                self._alert(alarms, event.get("step") or 0)
            elif event["event"] == "withdrawn":
                self._withdraw([str(event.get("id"))], event.get("step") or 0)

    def finish(self, report: Mapping[str, Any] | None) -> None:
        """Send the findings of a report and end the tracker's run as the run has ended."""
        run = Run(self.path)
        findings = report["findings"] if report else []
        if report and findings:
            rows = [
                [f["id"], f["severity"], f["confidence"], f["summary"], _fix(f)] for f in findings
            ]
            self._table(
                "findings", ("id", "severity", "confidence", "summary", "fix"), rows, report["step"]
            )
            self._alert([f for f in findings if not f["symptom_of"]], report["step"])
        if report:
            # A tag of a tracker holds until it is overwritten: what is no alarm of the report is
            # none any more.
            alarming = {f["id"] for f in findings if f["severity"] != "note"}
            self._withdraw(sorted({id for id, _ in self._told} - alarming), report["step"])
        ended = [
            event["event"] for event in run.events if event["event"] in START_EVENTS + END_EVENTS
        ]
        self._tracker.finish(ended[-1] if ended and ended[-1] in END_EVENTS else "failed")

    def _new(self, tail: Tail) -> Iterator[dict[str, Any]]:
        for line in tail:
            self._reached = 0
            if line["step"] > self._since:
                yield line
            self._succeeded = 0
            self._sent()

    def _once(self, call: Callable[..., None], *arguments: Any, **counts: int) -> None:
        """Make a call of a line, unless an earlier attempt at the line has."""
        self._reached += 1
        if self._reached > self._succeeded:
            call(*arguments)
            self._succeeded = self._reached
            self.counts.update(counts)

    def _start(self) -> Start:
        run = Run(self.path)
        track = self._track
        facts = {
            "path": str(self.path),
            "uptrend": run.info.get("uptrend"),
            "created": run.info.get("created"),
        }
        notes = "\n\n".join([f"Run directory: {self.path}", *run.info.get("notes", ())])
        config = {**flatten(run.config), **{f"run.{key}": value for key, value in facts.items()}}
        step = max(self._since, 0)
        return Start(
            track.name or run.name, track.project, config, notes, self.path, self._earlier, step
        )

    def _send_metrics(self, line: Mapping[str, Any], values: Mapping[str, float]) -> None:
        self._once(
            self._tracker.metrics, line["step"], values, line.get("time", 0.0), metrics=len(values)
        )

    def _evaluation(self, line: Mapping[str, Any]) -> None:
        step = line["step"]
        sets = {"": line, **line.get("sets", {})}
        self._send_metrics(
            line,
            {k: v for label, held in sets.items() for k, v in eval_numbers(held, label).items()},
        )
        for label, held in sets.items():
            if eval_path(self.path, step, label).exists():
                table = RolloutTable(step, Run(self.path).eval_rollouts(step, label))
                # Greedy answers come first, sampled attempts for pass@k after them.
                places = np.flatnonzero(table.kept_n)[: min(ROWS, int(held.get("tasks", ROWS)))]
                rows = [_heldout_row(table, place) for place in places.tolist()]
                columns = ("task", "prompt", "model's answer", "answer", "correct")
                self._table(f"held-out-{label}" if label else "held-out", columns, rows, step)
        self._samples(step)

    def _samples(self, step: int) -> None:
        run = Run(self.path)
        count = self._track.rollouts
        if not count or step not in run.rollout_steps:
            return
        table = RolloutTable(step, run.rollouts(step))
        places = np.flatnonzero(table.kept_n)
        # From all of the step, so that they are of several groups.
        count = min(count, len(places))
        rows = [_sample_row(table, int(places[i * len(places) // count])) for i in range(count)]
        self._table("rollouts", ("step", "task", "text", "reward", "advantage"), rows, step)

    def _table(self, name: str, columns: tuple[str, ...], rows: list[list[Any]], step: int) -> None:
        self._once(
            self._tracker.table,
            name,
            columns,
            rows,
            step,
            **{"tables": 1, f"rows of {name}": len(rows)},
        )

    def _alert(self, findings: list[Mapping[str, Any]], step: int) -> None:
        for f in findings:
            key = f["id"], f["severity"]
            if f["severity"] != "note" and not f.get("symptom_of") and key not in self._told:
                self._notify(Alert(*key, f["summary"], _fix(f)), step)
                self._told.add(key)

    def _withdraw(self, ids: Iterable[str], step: int) -> None:
        """Tell the tracker that alarms which it was told of ask for nothing any more."""
        for id in ids:
            if any(told == id for told, _ in self._told):
                self._notify(Alert(id, "note", "It no longer asks for a change.", ""), step)
                self._told = {(told, severity) for told, severity in self._told if told != id}

    def _notify(self, alert: Alert, step: int) -> None:
        key = alert.id, alert.severity
        if self._notified[key] > 0:
            self._notified[key] -= 1
            return
        self._tracker.alert(alert, step)
        self.counts["alerts"] += 1
        self._say({"event": "notified", "id": alert.id, "severity": alert.severity})


def numbers(line: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite numbers of a line by name, without its step and its time."""
    found = {
        k: v for k, v in line.items() if isinstance(v, int | float) and k not in ("step", "time")
    }
    return {key: float(value) for key, value in found.items() if math.isfinite(value)}


def eval_numbers(line: Mapping[str, Any], label: str = "") -> dict[str, float]:
    """Return the numbers of an evaluation under the names that the lab compares them by:
    `eval/accuracy`.
    """
    own = numbers(line)
    for head, key in {"part/": "parts", "pass@": "pass_at", "family/": "by_family"}.items():
        own |= {f"{head}{name}": value for name, value in numbers(line.get(key, {})).items()}
    return {
        f"eval/set/{label}/{key}" if label else f"eval/{key}": value for key, value in own.items()
    }


def _heldout_row(table: RolloutTable, place: int) -> list[Any]:
    """Return a rollout of an evaluation as a row: its prompt, and what the model wrote last."""
    prompt = "\n".join(
        table.messages.content_m[at].as_py() or "" for at in table.prompt_range_n[place]
    )
    response = table.response_n[place] or ""
    task, answer, correct = (table.value(key, place) for key in ("task", "answer", "correct"))
    return [task, prompt[:CHARACTERS], response[:CHARACTERS], answer, correct]


def _sample_row(table: RolloutTable, place: int) -> list[Any]:
    """Return a rollout of a step as a row: all of its messages in one text."""
    messages = table.messages
    text = "\n".join(
        f"{messages.role_m[at]}: {messages.text_m[at]}" for at in table.message_range_n[place]
    )
    task, reward = (table.value(key, place) for key in ("task", "reward"))
    return [table.step, task, text[:CHARACTERS], reward, table.advantage(place)]


def _fix(finding: Mapping[str, Any]) -> str:
    """Return the fix of a finding, or of its cause where an event has none."""
    if "fix" in finding:
        return finding["fix"]["sentence"] if finding["fix"] else ""
    return complete_fix(CATALOGUE[finding["id"]].fix).sentence if finding["id"] in CATALOGUE else ""


def follow(path: Path, name: str, since: int, orders: TextIO, say: Callable[[Event], None]) -> None:
    """Send a growing run to a tracker until told to end; a failure is told once, and tried again a
    few times.
    """
    track = build(Track, Run(path).config.get("track", {}), "track")
    sender = Sender(path, name, make_tracker(name, track), track, say, goes_on=True, since=since)
    failures = 0
    is_over = False
    is_told = False
    while failures < FAILURES and not is_over:
        is_over = bool(
            select.select([orders], [], [], PAUSE * 5**failures if failures else PAUSE)[0]
        )
        try:
            sender.send()
            if is_over:
                sender.finish(Run(path).report)
            failures = 0
        except Exception as error:
            failures += 1
            if not is_told or is_over or failures == FAILURES:
                is_told = True
                end = (
                    "; no more is sent"
                    if is_over or failures == FAILURES
                    else "; it is tried again"
                )
                say(
                    {
                        "event": "track-failed",
                        "error": f"{type(error).__name__}: {error}"[:500] + end,
                    }
                )


if __name__ == "__main__":
    os.nice(10)  # training goes first
    folder, tracker, step = sys.argv[1:]
    follow(
        Path(folder),
        tracker,
        int(step),
        sys.stdin,
        lambda line: print(json.dumps(line), flush=True),
    )
