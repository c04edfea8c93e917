"""Workers that make runs from one queue: started as memory allows, waited for, tried again, tidied
up.

Local workers are processes of this machine, side by side as far as cores and memory reach; the
first is alone until its first step has recorded how much memory a run takes. Children have a
session of their own: Ctrl-C reaches this process alone, which passes it on once, so that each child
ends its step and writes a checkpoint. If this process is killed, its children go on; they hold
their locks, and the next call waits for them. `ray_workers` makes the same runs on a Ray cluster.
"""

import os
import shutil
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
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
MAX_TRIES = 2
# Memory that a process takes of a GPU before its first tensor.
GPU_CONTEXT_GIB = 1.0
# Factor by which a run may grow after its first step: longer rollouts, evaluations, a checkpoint.
MEMORY_MARGIN = 1.25
# What nvidia-smi is asked for: one line of these per GPU.
GPU_FIELDS = ("index", "uuid", "memory.free")
# Time after which nvidia-smi counts as stuck; chosen far above what it takes.
NVIDIA_SMI_TIMEOUT_S = 60


@dataclass(frozen=True)
class Outcome:
    """End of a planned run."""

    planned: PlannedRun
    status: str  # finished, refused (by the cheap probes) or failed
    seconds: float | None = None
    reason: str = ""
    was_there: bool = False  # made before


class Progress(Protocol):
    """Receives progress."""

    def began(self, planned: PlannedRun, note: str = "") -> None:
        """A run was begun, or continued."""

    def tick(self) -> None:
        """A moment has passed."""

    def ended(self, outcome: Outcome) -> None:
        """A run has ended."""

    def say(self, line: str) -> None:
        """Show a line to the user."""


@dataclass
class Job:
    """A run in the queue, or being made."""

    planned: PlannedRun
    tries: int = 1
    began: float = 0.0
    handle: Any = None  # process or task; None where another process makes the run
    gpu: str = ""  # by index or UUID; empty on a CPU


@dataclass
class RunQueue:
    """Runs that wait, and runs that are being made."""

    waiting: deque[Job]
    running: list[Job] = field(default_factory=list)
    next_start: float = 0.0  # time before which no run is started


def processes_of(planned: PlannedRun) -> int:
    """Return the number of processes that train a run together."""
    if planned.method is not Method.TRAIN:
        return 1
    return int(planned.config["compute"].get("processes", 1))


def threads_of(planned: PlannedRun) -> int:
    """Return the CPU threads of a run."""
    threads = int(planned.config["compute"]["threads"])
    return max(1, threads) * processes_of(planned)


def needs_all_gpus(planned: PlannedRun) -> bool:
    """Return True if a run has the machine's GPUs for itself."""
    return uses_gpu(planned) and processes_of(planned) > 1


def uses_gpu(planned: PlannedRun) -> bool:
    """Return True if a run takes a GPU's memory."""
    return str(planned.config["compute"]["device"]).startswith("cuda")


def log_of(planned: PlannedRun) -> Path:
    """Return the file that a run's output goes to."""
    return planned.folder.with_name(f"{planned.folder.name}.log")


def set_aside_unfinished(planned: PlannedRun) -> None:
    """Set a run aside that can't be continued; started again from its seed, it gives the same."""
    if not planned.folder.exists():
        return
    try:
        is_resumable = planned.method is Method.TRAIN and bool(Run(planned.folder).checkpoints)
    except UptrendError:  # killed before its first file was whole
        is_resumable = False
    if not is_resumable:
        set_aside(planned.folder)


def start(
    planned: PlannedRun, launcher: Launcher, gpu: str = "", setup: Callable[[], None] | None = None
) -> "subprocess.Popen[bytes]":
    """Start a run in its own process and session, on a GPU by name; `setup` is called in the new
    process.
    """
    set_aside_unfinished(planned)
    planned.folder.parent.mkdir(parents=True, exist_ok=True)
    compute = planned.config["compute"]
    variables = {
        # Threads that spin while they wait would take the other runs' cores.
        "OMP_WAIT_POLICY": "PASSIVE",
        "OMP_NUM_THREADS": str(compute["threads"]),
    }
    # A device such as cuda:1 is the user's choice, which stays.
    if gpu and compute["device"] == "cuda" and not needs_all_gpus(planned):
        variables["CUDA_VISIBLE_DEVICES"] = gpu
    with log_of(planned).open("ab") as log:
        return subprocess.Popen(
            launcher.command(planned),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | variables,
            start_new_session=True,
            preexec_fn=setup,
        )


def read_outcome(planned: PlannedRun, seconds: float, code: int | None) -> Outcome:
    """Read the outcome of a planned run whose process has ended."""
    reason = ""
    if (planned.folder / "run.json").exists():
        if is_finished(planned):
            return Outcome(planned, "finished", seconds)
        run = Run(planned.folder)
        stop = run.stopped
        if stop is not None and stop.by == "preflight":
            return Outcome(planned, "refused", seconds, stop.sentence)
        if stop is not None:
            reason = stop.sentence
        elif run.events:
            reason = str(run.events[-1].get("error", ""))
    return Outcome(planned, "failed", seconds, reason or _end_of_process(planned, code))


def _end_of_process(planned: PlannedRun, code: int | None) -> str:
    """Describe how a process ended, with the last line that it wrote."""
    end = f"it ended with exit code {code}"
    if code is not None and code < 0:
        end = f"it was ended by signal {-code}"
    log = log_of(planned)
    text = ""
    if log.exists():
        text = log.read_text(encoding="utf-8", errors="replace").strip()
    last_line = text.split("\n")[-1]
    return f"{last_line.strip()} ({end})" if last_line else end


def _events(planned: PlannedRun) -> Sequence[dict[str, Any]]:
    """Return the events of a run; none before it has records."""
    if not (planned.folder / "run.json").exists():
        return ()
    return Run(planned.folder).events


def need_gib(planned: PlannedRun) -> float | None:
    """Return the memory that a run takes, from its first step's record with a margin; None before
    that.
    """
    first_line = next(read_lines(planned.folder / "metrics.jsonl"), {})
    peak = first_line.get("memory/peak/gib")
    if peak is None:
        return None
    # A run of several processes records the first one's.
    per_process = float(peak) * MEMORY_MARGIN
    if uses_gpu(planned):
        per_process += GPU_CONTEXT_GIB
    return per_process * processes_of(planned)


def free_gib(on_gpu: bool) -> dict[str, float]:
    """Return free memory in GiB: by name of every GPU that may be used, or the machine's own under
    the name ''.
    """
    if not on_gpu:
        return {"": free_memory() / 2**30}
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    query = [program, f"--query-gpu={','.join(GPU_FIELDS)}", "--format=csv,noheader,nounits"]
    output = subprocess.run(
        query, capture_output=True, text=True, check=False, timeout=NVIDIA_SMI_TIMEOUT_S
    ).stdout
    gpus: list[list[str]] = []
    for line in output.splitlines():
        fields = [field.strip() for field in line.split(",")]
        # Other lines are messages, such as "No devices were found".
        if len(fields) == len(GPU_FIELDS):
            gpus.append(fields)
    all_indices = ",".join(index for index, _, _ in gpus)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", all_indices)
    usable = {name.strip() for name in visible.split(",")}
    free: dict[str, float] = {}
    for index, uuid, mib in gpus:
        # A GPU keeps the name, index or UUID, by which the user chose it.
        for name in (index, uuid):
            if name in usable:
                free[name] = float(mib) / 1024
    return free


class Workers:
    """Makes runs from a queue, as processes of this machine; a subclass may start, watch and stop
    them otherwise.
    """

    poll_s = 0.1  # between checks of what is running

    def __init__(
        self,
        at_once: int | None = None,
        keep_checkpoints: bool = False,
        *,
        cores: Callable[[], int] = count_cores,
        free_gib: Callable[[bool], dict[str, float]] = free_gib,
        retry_s: float = 1.0,
    ) -> None:
        self.at_once = at_once
        self.keep_checkpoints = keep_checkpoints
        # Seconds until a run that did not fit is tried again, where nothing has ended: asking a GPU
        # for its free memory takes time.
        self.retry_s = retry_s
        self._cores = cores
        self._free_gib = free_gib
        self._largest_need: float | None = None  # GiB, of all runs so far

    def _open(self, _: Sequence[PlannedRun]) -> AbstractContextManager[None]:
        """Open what the runs need while they are made."""
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
        queue = RunQueue(deque(Job(planned) for planned in planned_runs))
        with self._open(planned_runs):
            try:
                while queue.waiting or queue.running:
                    yield from self._start_waiting(queue, launcher, wanted, watch)
                    ended = [job for job in queue.running if not self._is_running(job)]
                    for job in ended:
                        outcome = self._take_out(job, queue)
                        if outcome is not None:
                            yield outcome
                    if queue.running and not ended:
                        watch.tick()
                        time.sleep(self.poll_s)
            finally:
                self._stop([job for job in queue.running if job.handle is not None], watch)

    def _start_waiting(
        self, queue: RunQueue, launcher: Launcher, wanted: Wanted, watch: Progress
    ) -> Generator[Outcome, None, None]:
        """Start the runs that fit, and yield the outcome of those that exist already."""
        while queue.waiting and time.monotonic() >= queue.next_start:
            job = queue.waiting.popleft()
            if not wanted(job.planned):
                continue
            if is_finished(job.planned):
                if job.began:  # we waited for another process, which is gone
                    self._tidy(job.planned)
                yield Outcome(job.planned, "finished", was_there=True)
                continue
            is_anothers = is_being_written(job.planned.folder)
            if not is_anothers and not self._start(job, queue.running, launcher):
                queue.waiting.appendleft(job)
                queue.next_start = time.monotonic() + self.retry_s
                return
            job.began = time.monotonic()
            queue.running.append(job)
            note = f"try {job.tries}" if job.tries > 1 else ""
            if is_anothers:
                note = "made by another process"
            watch.began(job.planned, note)

    def _take_out(self, job: Job, queue: RunQueue) -> Outcome | None:
        """Take a run that has ended out of the queue; return None if it waits for another try."""
        queue.next_start = 0.0
        queue.running.remove(job)
        if job.handle is None:
            # Another process's: check again, and make it if that did not.
            queue.waiting.appendleft(job)
            return None
        outcome = self._outcome(job)
        if outcome.status == "failed" and job.tries < MAX_TRIES:
            queue.waiting.appendleft(Job(job.planned, job.tries + 1))
            return None
        if outcome.status == "finished":
            self._tidy(job.planned)
        return outcome

    def _tidy(self, planned: PlannedRun) -> None:
        """Remove a finished run's checkpoints: they are the most of it, and no verdict needs
        them.
        """
        if not self.keep_checkpoints:
            shutil.rmtree(planned.folder / "checkpoints", ignore_errors=True)

    def _start(self, job: Job, running: Sequence[Job], launcher: Launcher) -> bool:
        """Start a run; return False if it does not fit yet."""
        own = [other for other in running if other.handle is not None]
        gpu = self._find_gpu(job.planned, own)
        if gpu is None:
            return False
        job.gpu = gpu
        job.handle = start(job.planned, launcher, gpu)
        return True

    def _find_gpu(self, planned: PlannedRun, own: Sequence[Job]) -> str | None:
        """Return the name of a GPU for one more run, '' for the machine's memory; None if it does
        not fit beside our `own`.
        """
        is_taken = any(needs_all_gpus(job.planned) for job in own)
        if own and (is_taken or needs_all_gpus(planned)):
            return None
        if not own or self.at_once is not None:
            if self.at_once is not None and len(own) >= self.at_once:
                return None
            gpus = list(self._free_gib(True)) if uses_gpu(planned) else []
            used_gpus = [job.gpu for job in own]
            return min(gpus, key=used_gpus.count, default="")  # the one with the fewest of ours
        if (len(own) + 1) * threads_of(planned) > self._cores():
            return None

        needs = [need_gib(job.planned) for job in own]
        for need in needs:
            if need is not None:
                self._largest_need = max(self._largest_need or 0.0, need)
        if self._largest_need is None:
            return None
        free = self._free_gib(uses_gpu(planned))
        for job, need in zip(own, needs, strict=True):
            # Before its first step a run has not taken its share yet.
            if need is None and job.gpu in free:
                free[job.gpu] -= self._largest_need
        emptiest = max(free, key=lambda name: free[name], default=None)
        if emptiest is None or free[emptiest] < self._largest_need:
            return None
        return emptiest

    def _is_running(self, job: Job) -> bool:
        """Return True until a run's process has ended."""
        if job.handle is None:
            return is_being_written(job.planned.folder)
        return job.handle.poll() is None

    def _outcome(self, job: Job) -> Outcome:
        """Return the outcome of a run of ours that has ended."""
        return read_outcome(job.planned, time.monotonic() - job.began, job.handle.returncode)

    def _stop(self, running: Sequence[Job], watch: Progress) -> None:
        """Have every child end its step and write a checkpoint; an impatient second Ctrl-C kills
        them.
        """
        going = [job for job in running if job.handle.poll() is None]
        for job in going:
            # A launcher would give its processes half a minute; their first one ends them all after
            # the step.
            pids = [event["pid"] for event in _events(job.planned) if "pid" in event]
            if processes_of(job.planned) > 1 and pids and is_being_written(job.planned.folder):
                os.kill(pids[-1], signal.SIGINT)
            else:
                job.handle.send_signal(signal.SIGINT)
        if going:
            watch.say(
                f"Stopping {plural(len(going), 'run')} after this step; Ctrl-C again ends at once."
            )
        try:
            for job in going:
                job.handle.wait()
        except BaseException:
            for job in going:
                if processes_of(job.planned) > 1:  # a launcher has to end its processes
                    job.handle.terminate()
                else:
                    job.handle.kill()
            raise
