"""The queue that all workers share: runs begun as room allows, waited for, tried again, tidied up."""

import os
import shutil
import subprocess
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from uptrend.lab.plan import Launcher, PlannedRun, is_finished
from uptrend.records import Method, Run, UptrendError
from uptrend.records.directory import is_being_written

Wanted = Callable[[PlannedRun], bool]

# Attempts at a run that fails.
TRIES = 2


@dataclass(frozen=True)
class Outcome:
    """End of a planned run."""

    planned: PlannedRun
    status: str  # finished, refused (by the cheap probes) or failed
    seconds: float | None = None
    reason: str = ""
    was_there: bool = False  # made before


class Progress(Protocol):
    """Receiver of progress."""

    def began(self, planned: PlannedRun, note: str = "") -> None:
        """A run was begun, or continued."""

    def tick(self) -> None:
        """A moment has passed."""

    def ended(self, outcome: Outcome) -> None:
        """A run has ended."""

    def say(self, line: str) -> None:
        """A line for the user."""


@dataclass
class Job:
    """A run in the queue, or being made."""

    planned: PlannedRun
    tries: int = 1
    began: float = 0.0
    handle: Any = None  # process or task; None where another process makes the run
    place: str = ""  # GPU, by name


class Workers:
    """Maker of runs from a queue; subclasses say how one is started, watched and stopped."""

    keep_checkpoints = False
    poll = 0.1  # seconds between looks at what is running
    look = 1.0  # seconds between looks for room, where nothing has ended: asking a GPU takes its time

    def _open(self, planned_runs: Sequence[PlannedRun]) -> AbstractContextManager[None]:
        """Hold what the runs need while they are made."""
        del planned_runs
        return nullcontext()

    def _start(self, job: Job, running: Sequence[Job], launcher: Launcher) -> bool:
        """Begin a run, or return False where there is no room for it yet."""
        raise NotImplementedError

    def _is_going(self, job: Job) -> bool:
        """Return True while a run is being made, here for another process's."""
        return is_being_written(job.planned.folder)

    def _outcome(self, job: Job) -> Outcome:
        """Return the end of a run of ours."""
        raise NotImplementedError

    def _stop(self, running: Sequence[Job], watch: Progress) -> None:
        """Have every run of ours end its step and write a checkpoint."""
        raise NotImplementedError

    def run(
        self, planned_runs: Sequence[PlannedRun], launcher: Launcher, wanted: Wanted, watch: Progress
    ) -> Generator[Outcome, None, None]:
        """Make the runs that are wanted when their turn comes, and yield the end of each; closing it stops them."""
        waiting, running = deque(Job(planned) for planned in planned_runs), list[Job]()
        next_look = 0.0
        with self._open(planned_runs):
            try:
                while waiting or running:
                    has_room = time.monotonic() >= next_look
                    while waiting and has_room:
                        job = waiting.popleft()
                        if not wanted(job.planned):
                            continue
                        if is_finished(job.planned):
                            if job.began:  # we waited for it: whoever began it is gone
                                self._tidy(job.planned)
                            yield Outcome(job.planned, "finished", was_there=True)
                            continue
                        is_anothers = is_being_written(job.planned.folder)
                        has_room = is_anothers or self._start(job, running, launcher)
                        if not has_room:
                            waiting.appendleft(job)
                            next_look = time.monotonic() + self.look
                            break
                        job.began = time.monotonic()
                        running.append(job)
                        note = f"try {job.tries}" if job.tries > 1 else ""
                        watch.began(job.planned, "made by another process" if is_anothers else note)
                    ended = [job for job in running if not self._is_going(job)]
                    for job in ended:
                        next_look = 0.0
                        running.remove(job)
                        told = self._outcome(job) if job.handle is not None else None
                        if told is None:
                            waiting.appendleft(job)  # another's: look again, and make it if they did not
                        elif told.status == "failed" and job.tries < TRIES:
                            waiting.appendleft(Job(job.planned, job.tries + 1))
                        else:
                            if told.status == "finished":
                                self._tidy(job.planned)
                            yield told
                    if running and not ended:
                        watch.tick()
                        time.sleep(self.poll)
            finally:
                self._stop([job for job in running if job.handle is not None], watch)

    def _tidy(self, planned: PlannedRun) -> None:
        """Remove a finished run's checkpoints: they are the most of it, and no verdict needs them."""
        if not self.keep_checkpoints:
            shutil.rmtree(planned.folder / "checkpoints", ignore_errors=True)


def threads_of(planned: PlannedRun) -> int:
    """Return the CPU threads of a run."""
    return max(1, int(planned.config["compute"]["threads"]))


def uses_gpu(planned: PlannedRun) -> bool:
    """Return True if a run takes a GPU's memory."""
    return str(planned.config["compute"]["device"]).startswith("cuda")


def log_of(planned: PlannedRun) -> Path:
    """Return the file that a run's output goes to."""
    return planned.folder.with_name(f"{planned.folder.name}.log")


def make_way(planned: PlannedRun) -> None:
    """Remove a run that can't be continued; it is begun again from its seed, which gives the same."""
    if not planned.folder.exists():
        return
    try:
        is_resumable = planned.method is Method.TRAIN and bool(Run(planned.folder).checkpoints)
    except UptrendError:  # killed before its first file was whole
        is_resumable = False
    if not is_resumable:
        shutil.rmtree(planned.folder)


def start(
    planned: PlannedRun, launcher: Launcher, place: str = "", before: Callable[[], None] | None = None
) -> "subprocess.Popen[bytes]":
    """Start a run in its own process and session, on the GPU `place`; `before` is called in the new process."""
    make_way(planned)
    planned.folder.parent.mkdir(parents=True, exist_ok=True)
    compute = planned.config["compute"]
    # Threads that spin while they wait would take the other runs' cores.
    variables = {"OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": str(compute["threads"])}
    variables |= {"CUDA_VISIBLE_DEVICES": place} if place and compute["device"] == "cuda" else {}
    with log_of(planned).open("ab") as log:
        return subprocess.Popen(
            launcher.command(planned),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | variables,
            start_new_session=True,
            preexec_fn=before,
        )


def outcome(planned: PlannedRun, seconds: float, code: int | None) -> Outcome:
    """Read the outcome of a planned run whose process has ended."""
    reason = ""
    if (planned.folder / "run.json").exists():
        if is_finished(planned):
            return Outcome(planned, "finished", seconds)
        run = Run(planned.folder)
        stop = run.stopped
        if stop is not None and stop.by == "preflight":
            return Outcome(planned, "refused", seconds, stop.sentence)
        reason = stop.sentence if stop is not None else str(run.events[-1].get("error", "")) if run.events else ""
    if not reason:  # the last line that the process wrote
        log = log_of(planned)
        lines = log.read_text(encoding="utf-8", errors="replace").strip().split("\n") if log.exists() else [""]
        end = f"it was ended by signal {-code}" if code is not None and code < 0 else f"it ended with exit code {code}"
        reason = f"{lines[-1].strip()} ({end})" if lines[-1] else end
    return Outcome(planned, "failed", seconds, reason)
