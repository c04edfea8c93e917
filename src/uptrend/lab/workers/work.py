"""What workers are asked and what they answer, and what a run directory says of an errand."""

import shutil
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from uptrend.lab.launcher import Errand, Launcher
from uptrend.lab.plan import is_finished
from uptrend.records import Method, Run, UptrendError

TRIES = 2
"""How often a run that fails is begun."""
PREFLIGHT = "preflight: "
"""How a run that the cheap probes refused says why it stopped."""


@dataclass(frozen=True)
class Outcome:
    """How an errand ended."""

    errand: Errand
    """Which."""
    status: str
    """finished, refused (by the cheap probes) or failed."""
    seconds: float | None = None
    """How long this took; none for a run that was there."""
    reason: str = ""
    """Why it was refused or failed."""
    was_there: bool = False
    """Whether it had been made before."""


class Watch(Protocol):
    """Somebody who is told how the work goes."""

    def began(self, errand: Errand, note: str = "") -> None:
        """A run was begun, or gone on with."""

    def tick(self) -> None:
        """A moment has passed."""

    def ended(self, outcome: Outcome) -> None:
        """A run has ended."""

    def say(self, line: str) -> None:
        """Something that a person should know."""


class Workers(Protocol):
    """Whoever makes runs."""

    def run(
        self, errands: Sequence[Errand], launcher: Launcher, wanted: Callable[[Errand], bool], watch: Watch
    ) -> Generator[Outcome, None, None]:
        """Make the runs that are wanted when their turn comes, and tell of each that ended; closing it stops them."""


def log_of(errand: Errand) -> Path:
    """Where a run's output goes."""
    return errand.folder.with_name(f"{errand.folder.name}.log")


def make_way(errand: Errand) -> None:
    """Remove what a run left that can't be gone on with; it is begun again from its seed, which gives the same."""
    if not errand.folder.exists():
        return
    try:
        is_resumable = errand.method is Method.TRAIN and bool(Run(errand.folder).checkpoints)
    except UptrendError:  # killed before its first file was whole
        is_resumable = False
    if not is_resumable:
        shutil.rmtree(errand.folder)


def outcome(errand: Errand, seconds: float, code: int | None) -> Outcome:
    """What became of an errand whose process has ended."""
    if not (errand.folder / "run.json").exists():
        return Outcome(errand, "failed", seconds, last_words(log_of(errand), code))
    run = Run(errand.folder)
    last = run.events[-1] if run.events else {}
    reason = str(last.get("reason") or last.get("error") or "")
    if is_finished(errand):
        return Outcome(errand, "finished", seconds)
    if run.status == "stopped" and reason.startswith(PREFLIGHT):
        return Outcome(errand, "refused", seconds, reason.removeprefix(PREFLIGHT))
    return Outcome(errand, "failed", seconds, reason or last_words(log_of(errand), code))


def last_words(log: Path, code: int | None) -> str:
    """The last line that a process wrote, or how it ended where it wrote none."""
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n") if log.exists() else []
    said = next((line.strip() for line in reversed(lines) if line.strip()), "")
    ended = f"it was ended by signal {-code}" if code is not None and code < 0 else f"it ended with exit code {code}"
    return f"{said} ({ended})" if said else ended


def tidy(errand: Errand) -> None:
    """Remove a finished run's checkpoints: they are the most of it, and no verdict needs them."""
    shutil.rmtree(errand.folder / "checkpoints", ignore_errors=True)
