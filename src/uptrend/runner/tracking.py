"""Observer that sends a run to the trackers of its config, each from a process of its own."""

import sys
import time
from typing import Any

from uptrend.records import Run, RunDirectory
from uptrend.records.worker_process import SideProcess
from uptrend.training.observer import StepRecord

# Seconds that all trackers together may take to send the rest after the run has ended.
PATIENCE = 30.0


class Tracking:
    """Observer that starts the trackers, and passes what they say to the terminal and to events.jsonl.

    The processes read the records from disk: the loop hands nothing over and waits for nothing.
    """

    def __init__(self, names: list[str]) -> None:
        self._names = names
        self._processes = dict[str, SideProcess]()

    def before(self, run: Run) -> None:
        """Start the trackers; they send what comes after the steps that are there."""
        self._directory, since = RunDirectory(run.path), str(run.last_step)
        module = "uptrend.bridge.tracking"
        self._processes = {name: SideProcess(module, str(run.path), name, since) for name in self._names}

    def step(self, record: StepRecord) -> None:
        """Pass on what they have said."""
        del record
        for name, process in self._processes.items():
            self._pass_on(name, process.read_lines())

    def after(self, run: Run) -> None:
        """Give them a while to send the rest, side by side."""
        until = time.monotonic() + PATIENCE
        for process in self._processes.values():
            process.ask()
        for name, process in self._processes.items():
            lines = process.end(max(1.0, until - time.monotonic()))  # one that is done is read, whoever hangs
            late = f"it did not end within {PATIENCE:g} s. To send the whole run: uptrend track {run.path} --to {name}"
            self._pass_on(name, [{"event": "track-failed", "error": late}] if lines is None else lines)
        self._processes = {}

    def _pass_on(self, name: str, lines: list[dict[str, Any]]) -> None:
        for line in lines:
            kind = line.pop("event")
            self._directory.event(kind, tracker=name, **line)
            if kind != "notified":
                told = line["error"] if kind == "track-failed" else line["place"]
                # A live panel redirects stderr to the lines above it.
                print(f"{name}: {told}", file=sys.stderr, flush=True)
