"""Interface of workers, and the outcome of a planned run as its directory tells it."""

import shutil
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from uptrend.lab.launcher import Launcher, PlannedRun
from uptrend.lab.plan import is_finished
from uptrend.records import Method, Run, UptrendError

TRIES = 2
"""Attempts at a run that fails."""


@dataclass(frozen=True)
class Outcome:
    """End of a planned run."""

    planned: PlannedRun
    """The planned run."""
    status: str
    """finished, refused (by the cheap probes) or failed."""
    seconds: float | None = None
    """Duration; None for a run that was there."""
    reason: str = ""
    """Reason of a refusal or a failure."""
    was_there: bool = False
    """True for a run that had been made before."""


class Progress(Protocol):
    """Receiver of progress."""

    def began(self, planned: PlannedRun, note: str = "") -> None:
        """A run was begun, or gone on with."""

    def tick(self) -> None:
        """A moment has passed."""

    def ended(self, outcome: Outcome) -> None:
        """A run has ended."""

    def say(self, line: str) -> None:
        """Something that a person should know."""


class Workers(Protocol):
    """Maker of runs."""

    def run(
        self,
        planned_runs: Sequence[PlannedRun],
        launcher: Launcher,
        wanted: Callable[[PlannedRun], bool],
        watch: Progress,
    ) -> Generator[Outcome, None, None]:
        """Make the runs that are wanted when their turn comes, and tell of each that ended; closing it stops them."""


def log_of(planned: PlannedRun) -> Path:
    """Return the file that a run's output goes to."""
    return planned.folder.with_name(f"{planned.folder.name}.log")


def make_way(planned: PlannedRun) -> None:
    """Remove what a run left that can't be gone on with; it is begun again from its seed, which gives the same."""
    if not planned.folder.exists():
        return
    try:
        is_resumable = planned.method is Method.TRAIN and bool(Run(planned.folder).checkpoints)
    except UptrendError:  # killed before its first file was whole
        is_resumable = False
    if not is_resumable:
        shutil.rmtree(planned.folder)


def outcome(planned: PlannedRun, seconds: float, code: int | None) -> Outcome:
    """Read the outcome of a planned run whose process has ended."""
    if not (planned.folder / "run.json").exists():
        return Outcome(planned, "failed", seconds, last_words(log_of(planned), code))
    run = Run(planned.folder)
    if is_finished(planned):
        return Outcome(planned, "finished", seconds)
    stop = run.stopped
    if stop is not None and stop.by == "preflight":
        return Outcome(planned, "refused", seconds, stop.sentence)
    error = str(run.events[-1].get("error", "")) if run.events else ""
    reason = stop.sentence if stop is not None else error
    return Outcome(planned, "failed", seconds, reason or last_words(log_of(planned), code))


def last_words(log: Path, code: int | None) -> str:
    """Return the last line that a process wrote, or its exit code where it wrote none."""
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n") if log.exists() else []
    said = next((line.strip() for line in reversed(lines) if line.strip()), "")
    ended = f"it was ended by signal {-code}" if code is not None and code < 0 else f"it ended with exit code {code}"
    return f"{said} ({ended})" if said else ended


def tidy(planned: PlannedRun) -> None:
    """Remove a finished run's checkpoints: they are the most of it, and no verdict needs them."""
    shutil.rmtree(planned.folder / "checkpoints", ignore_errors=True)
