"""Workers that make runs from one queue: begun as room allows, waited for, tried again, tidied up.

Local workers are processes of this machine, side by side as far as cores and memory reach; the
first is alone until its first step has told what a run takes. Children have a session of their own:
Ctrl-C reaches this process alone, which passes it on once, so that each child ends its step and
writes a checkpoint. If this process is killed, its children go on; they hold their locks, and the
next call waits for them. `ray_workers` makes the same runs on a Ray cluster.
"""

import os
import shutil
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from uptrend.lab.plan import Launcher, PlannedRun, is_finished
from uptrend.present.formatting import plural
from uptrend.records import Method, Run, UptrendError
from uptrend.records.directory import is_being_written, set_aside
from uptrend.records.lines import read_lines
from uptrend.records.machine import count_cores, free_memory

Wanted = Callable[[PlannedRun], bool]

# Attempts at a run that fails.
TRIES = 2
# GiB that a process takes of a GPU before its first tensor.
GPU_CONTEXT = 1.0
# A run may grow by this much after its first step: longer rollouts, evaluations, a checkpoint.
MARGIN = 1.25


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


def processes_of(planned: PlannedRun) -> int:
    """Return the number of processes that train a run together."""
    return (
        int(planned.config["compute"].get("processes", 1)) if planned.method is Method.TRAIN else 1
    )


def threads_of(planned: PlannedRun) -> int:
    """Return the CPU threads of a run."""
    return max(1, int(planned.config["compute"]["threads"])) * processes_of(planned)


def takes_all(planned: PlannedRun) -> bool:
    """Return True if a run has the machine's GPUs for itself."""
    return uses_gpu(planned) and processes_of(planned) > 1


def uses_gpu(planned: PlannedRun) -> bool:
    """Return True if a run takes a GPU's memory."""
    return str(planned.config["compute"]["device"]).startswith("cuda")


def log_of(planned: PlannedRun) -> Path:
    """Return the file that a run's output goes to."""
    return planned.folder.with_name(f"{planned.folder.name}.log")


def make_way(planned: PlannedRun) -> None:
    """Set a run aside that can't be continued; it is begun again from its seed, which gives the
    same.
    """
    if not planned.folder.exists():
        return
    try:
        is_resumable = planned.method is Method.TRAIN and bool(Run(planned.folder).checkpoints)
    except UptrendError:  # killed before its first file was whole
        is_resumable = False
    if not is_resumable:
        set_aside(planned.folder)


def start(
    planned: PlannedRun,
    launcher: Launcher,
    place: str = "",
    before: Callable[[], None] | None = None,
) -> "subprocess.Popen[bytes]":
    """Start a run in its own process and session, on the GPU `place`; `before` is called in the new
    process.
    """
    make_way(planned)
    planned.folder.parent.mkdir(parents=True, exist_ok=True)
    compute = planned.config["compute"]
    # Threads that spin while they wait would take the other runs' cores.
    variables = {"OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": str(compute["threads"])}
    is_placed = place and compute["device"] == "cuda" and not takes_all(planned)
    variables |= {"CUDA_VISIBLE_DEVICES": place} if is_placed else {}
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
        if (stop := run.stopped) is not None and stop.by == "preflight":
            return Outcome(planned, "refused", seconds, stop.sentence)
        reason = (
            stop.sentence
            if stop is not None
            else str(run.events[-1].get("error", ""))
            if run.events
            else ""
        )
    if not reason:  # the last line that the process wrote
        log = log_of(planned)
        lines = (
            log.read_text(encoding="utf-8", errors="replace").strip().split("\n")
            if log.exists()
            else [""]
        )
        end = (
            f"it was ended by signal {-code}"
            if code is not None and code < 0
            else f"it ended with exit code {code}"
        )
        reason = f"{lines[-1].strip()} ({end})" if lines[-1] else end
    return Outcome(planned, "failed", seconds, reason)


def _events(planned: PlannedRun) -> Sequence[dict[str, Any]]:
    return Run(planned.folder).events if (planned.folder / "run.json").exists() else ()


def need_gib(planned: PlannedRun) -> float | None:
    """Return the memory that a run takes, from its first step's record with a margin; None before
    that.
    """
    peak = next(read_lines(planned.folder / "metrics.jsonl"), {}).get("memory/peak/gib")
    # A run of several processes records the first one's.
    each = (
        None if peak is None else float(peak) * MARGIN + (GPU_CONTEXT if uses_gpu(planned) else 0.0)
    )
    return None if each is None else each * processes_of(planned)


def free_gib(on_gpu: bool) -> dict[str, float]:
    """Return free memory in GiB by place: every GPU that may be used, or the machine's own under
    the name ''.
    """
    if not on_gpu:
        return {"": free_memory() / 2**30}
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    query = [program, "--query-gpu=index,uuid,memory.free", "--format=csv,noheader,nounits"]
    told = subprocess.run(query, capture_output=True, text=True, check=False, timeout=60).stdout
    gpus = [[word.strip() for word in line.split(",")] for line in told.splitlines()]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(index for index, _, _ in gpus))
    wanted = {name.strip() for name in visible.split(",")}
    # A GPU keeps the name, index or UUID, by which the user chose it.
    return {name: float(mib) / 1024 for *names, mib in gpus for name in names if name in wanted}


class Workers:
    """Maker of runs from a queue, as processes of this machine; a subclass may start, watch and
    stop them otherwise.
    """

    poll = 0.1  # seconds between looks at what is running

    def __init__(
        self,
        at_once: int | None = None,
        keep_checkpoints: bool = False,
        *,
        cores: Callable[[], int] = count_cores,
        free_gib: Callable[[bool], dict[str, float]] = free_gib,
        look: float = 1.0,
    ) -> None:
        self.at_once = at_once
        self.keep_checkpoints = keep_checkpoints
        # Seconds between looks for room, where nothing has ended: asking a GPU takes its time.
        self.look = look
        self._cores = cores
        self._free_gib = free_gib
        self._need: float | None = None

    def _open(self, _: Sequence[PlannedRun]) -> AbstractContextManager[None]:
        # Hold what the runs need while they are made.
        return nullcontext()

    def run(
        self,
        planned_runs: Sequence[PlannedRun],
        launcher: Launcher,
        wanted: Wanted,
        watch: Progress,
    ) -> Generator[Outcome, None, None]:
        """Make the runs that are wanted when their turn comes, and yield the end of each; closing
        it stops them.
        """
        waiting = deque(Job(planned) for planned in planned_runs)
        running = list[Job]()
        next_look = 0.0
        with self._open(planned_runs):
            try:
                while waiting or running:
                    while waiting and time.monotonic() >= next_look:
                        job = waiting.popleft()
                        if not wanted(job.planned):
                            continue
                        if is_finished(job.planned):
                            if job.began:  # we waited for it: whoever began it is gone
                                self._tidy(job.planned)
                            yield Outcome(job.planned, "finished", was_there=True)
                            continue
                        is_anothers = is_being_written(job.planned.folder)
                        if not (is_anothers or self._start(job, running, launcher)):
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
                        if job.handle is None:
                            # another's: look again, and make it if they did not
                            waiting.appendleft(job)
                            continue
                        told = self._outcome(job)
                        if told.status == "failed" and job.tries < TRIES:
                            waiting.appendleft(Job(job.planned, job.tries + 1))
                            continue
                        if told.status == "finished":
                            self._tidy(job.planned)
                        yield told
                    if running and not ended:
                        watch.tick()
                        time.sleep(self.poll)
            finally:
                self._stop([job for job in running if job.handle is not None], watch)

    def _tidy(self, planned: PlannedRun) -> None:
        # Remove a finished run's checkpoints: they are the most of it, and no verdict needs them.
        if not self.keep_checkpoints:
            shutil.rmtree(planned.folder / "checkpoints", ignore_errors=True)

    def _start(self, job: Job, running: Sequence[Job], launcher: Launcher) -> bool:
        # Begin a run, or return False where there is no room for it yet.
        place = self._find_place(
            job.planned, [other for other in running if other.handle is not None]
        )
        if place is None:
            return False
        job.place, job.handle = place, start(job.planned, launcher, place)
        return True

    def _find_place(self, planned: PlannedRun, own: Sequence[Job]) -> str | None:
        # A place for one more run: a GPU's name, or '' for the machine's memory; None where there
        # is none.
        if own and any(takes_all(each) for each in (planned, *(job.planned for job in own))):
            return None
        if not own or self.at_once is not None:
            if self.at_once is not None and len(own) >= self.at_once:
                return None
            places = list(self._free_gib(True)) if uses_gpu(planned) else []
            # the GPU with the fewest of ours
            return min(places, key=[job.place for job in own].count, default="")
        if (len(own) + 1) * threads_of(planned) > self._cores():
            return None
        needs = [need_gib(job.planned) for job in own]
        self._need = max((need for need in (self._need, *needs) if need is not None), default=None)
        if self._need is None:
            return None
        free = self._free_gib(uses_gpu(planned))
        for job, need in zip(own, needs, strict=True):
            # before its first step a run has not taken its share yet
            if need is None and job.place in free:
                free[job.place] -= self._need
        place = max(free, key=lambda name: free[name], default=None)
        return place if place is not None and free[place] >= self._need else None

    def _is_going(self, job: Job) -> bool:
        return (
            is_being_written(job.planned.folder)
            if job.handle is None
            else job.handle.poll() is None
        )

    def _outcome(self, job: Job) -> Outcome:
        return outcome(job.planned, time.monotonic() - job.began, job.handle.returncode)

    def _stop(self, running: Sequence[Job], watch: Progress) -> None:
        # Have every child end its step and write a checkpoint; an impatient second Ctrl-C kills
        # them.
        going = [job for job in running if job.handle.poll() is None]
        processes = [job.handle for job in going]
        for job in going:
            # A launcher would give its processes half a minute; their first one ends them all after
            # the step.
            pids = [event["pid"] for event in _events(job.planned) if "pid" in event]
            if processes_of(job.planned) > 1 and pids and is_being_written(job.planned.folder):
                os.kill(pids[-1], signal.SIGINT)
            else:
                job.handle.send_signal(signal.SIGINT)
        if processes:
            watch.say(
                f"Stopping {plural(len(processes), 'run')} after this step; Ctrl-C again ends at"
                " once."
            )
        try:
            for process in processes:
                process.wait()
        except BaseException:
            for job, process in zip(going, processes, strict=True):
                # A launcher has to end its processes; one alone is killed.
                process.terminate() if processes_of(job.planned) > 1 else process.kill()
            raise
