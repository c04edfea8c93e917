"""Runs as processes of this machine, side by side as far as cores and memory reach.

The first is alone until its first step has told what a run takes. Children have a session of their own: Ctrl-C reaches
this process alone, which passes it on once, so that each child ends its step and writes a checkpoint. If this process
is killed, its children go on; they hold their locks, and the next call waits for them.
"""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from uptrend.lab.plan import Launcher, PlannedRun
from uptrend.lab.workers.work import Job, Outcome, Progress, Workers, outcome, start, threads_of, uses_gpu
from uptrend.records.directory import read_lines
from uptrend.stats.formatting import plural

# GiB that a process takes of a GPU before its first tensor.
GPU_CONTEXT = 1.0
# A run may grow by this much after its first step: longer rollouts, evaluations, a checkpoint.
MARGIN = 1.25


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def need_gib(planned: PlannedRun) -> float | None:
    """Return the memory that a run takes, from its first step's record with a margin; None before that."""
    line = next(read_lines(planned.folder / "metrics.jsonl"), {})
    peak = line.get("memory/peak/gib")
    return None if peak is None else float(peak) * MARGIN + (GPU_CONTEXT if uses_gpu(planned) else 0.0)


def free_gib(on_gpu: bool) -> dict[str, float]:
    """Return free memory in GiB by place: every GPU that may be used, or the machine's own under the name ''."""
    if not on_gpu:
        return {"": _memory() / 2**30}
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    query = [program, "--query-gpu=index,uuid,memory.free", "--format=csv,noheader,nounits"]
    told = subprocess.run(query, capture_output=True, text=True, check=False, timeout=60).stdout
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    wanted = None if visible is None else [name.strip() for name in visible.split(",")]
    free = dict[str, float]()
    for line in told.splitlines():
        index, uuid, mib = (word.strip() for word in line.split(","))
        if wanted is None or index in wanted or uuid in wanted:
            free[index if wanted is None or index in wanted else uuid] = float(mib) / 1024
    return free


def _memory() -> float:
    """Return the bytes that the system could still give, within the limit of a container."""
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        available = float(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):  # a system that does not say
        available = float("inf")
    try:
        limit, used = (float(Path(f"/sys/fs/cgroup/memory.{name}").read_text()) for name in ("max", "current"))
    except (OSError, ValueError):  # no container, or "max"
        return available
    return min(available, limit - used)


class LocalWorkers(Workers):
    """Processes of this machine."""

    def __init__(
        self,
        at_once: int | None = None,
        keep_checkpoints: bool = False,
        *,
        cores: Callable[[], int] = cores,
        free_gib: Callable[[bool], dict[str, float]] = free_gib,
        look: float = Workers.look,
    ) -> None:
        self.at_once, self.keep_checkpoints, self.look = at_once, keep_checkpoints, look
        self._cores, self._free_gib = cores, free_gib
        self._need: float | None = None

    def _start(self, job: Job, running: Sequence[Job], launcher: Launcher) -> bool:
        place = self._find_place(job.planned, [other for other in running if other.handle is not None])
        if place is None:
            return False
        job.place, job.handle = place, start(job.planned, launcher, place)
        return True

    def _find_place(self, planned: PlannedRun, own: Sequence[Job]) -> str | None:
        """Return a place for one more run: a GPU's name, or '' for the machine's memory; None where there is none."""
        if not own or self.at_once is not None:
            if self.at_once is not None and len(own) >= self.at_once:
                return None
            places = list(self._free_gib(True)) if uses_gpu(planned) else []
            return min(places, key=[job.place for job in own].count, default="")  # the GPU with the fewest of ours
        if (len(own) + 1) * threads_of(planned) > self._cores():
            return None
        needs = [need_gib(job.planned) for job in own]
        self._need = max((need for need in (self._need, *needs) if need is not None), default=None)
        if self._need is None:
            return None
        free = self._free_gib(uses_gpu(planned))
        for job, need in zip(own, needs, strict=True):
            if need is None and job.place in free:  # before its first step a run has not taken its share yet
                free[job.place] -= self._need
        place = max(free, key=lambda name: free[name], default=None)
        return place if place is not None and free[place] >= self._need else None

    def _is_going(self, job: Job) -> bool:
        return super()._is_going(job) if job.handle is None else job.handle.poll() is None

    def _outcome(self, job: Job) -> Outcome:
        return outcome(job.planned, time.monotonic() - job.began, job.handle.returncode)

    def _stop(self, running: Sequence[Job], watch: Progress) -> None:
        """Have every child end its step and write a checkpoint; an impatient second Ctrl-C kills them."""
        processes = [job.handle for job in running if job.handle.poll() is None]
        for process in processes:
            process.send_signal(signal.SIGINT)
        if processes:
            watch.say(f"Stopping {plural(len(processes), 'run')} after this step; Ctrl-C again ends at once.")
        try:
            for process in processes:
                process.wait()
        except BaseException:
            for process in processes:
                process.kill()
            raise
