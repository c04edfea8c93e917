"""Runs as tasks of a Ray cluster: this machine's own, or one at an address.

Each task starts the same command in a process of its node, so that results are those of a local
run. Where the lab's folder is on a disk that the node shares, the run is written there; elsewhere
it comes back whole, without checkpoints. A worker that is lost takes its process with it, and Ray
starts the task again.
"""

import contextlib
import ctypes
import io
import os
import signal
import sys
import tarfile
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from uptrend.lab import lab_error
from uptrend.lab.plan import Launcher, PlannedRun, is_finished
from uptrend.lab.workers import (
    Job,
    Outcome,
    Progress,
    Workers,
    log_of,
    outcome,
    start,
    threads_of,
    uses_gpu,
)
from uptrend.records import MissingExtra
from uptrend.records.directory import is_being_written, set_aside

# Times that Ray starts a run again whose worker was lost.
LOST = 3
# Seconds that a run is given to end its step and write a checkpoint.
PATIENCE = 120.0


class RayWorkers(Workers):
    """Tasks of a Ray cluster."""

    poll = 0.5

    def __init__(
        self,
        address: str = "local",
        at_once: int | None = None,
        gpus: float = 1.0,
        keep_checkpoints: bool = False,
    ) -> None:
        super().__init__(at_once, keep_checkpoints)
        self.address = address
        self.gpus = gpus
        self._ray: Any = None
        self._mark = Path()

    @contextlib.contextmanager
    def _open(self, planned_runs: Sequence[PlannedRun]) -> Iterator[None]:
        # Start or join Ray, and leave a file by which a node knows that it sees the lab's folder.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent to anybody
        try:
            import ray
        except ImportError:
            raise MissingExtra("ray", "ray") from None
        # one that was running before is left running
        self._ray = ray
        is_own = not ray.is_initialized()
        options: dict[str, Any] = {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
        try:
            if is_own:
                options = options if self.address == "local" else {"address": self.address}
                ray.init(**options, log_to_driver=False, configure_logging=False)
        except (ConnectionError, OSError, RuntimeError, ValueError) as error:
            problem = str(error).strip().splitlines()[0]
            raise lab_error("no-cluster", address=self.address, problem=problem) from None
        folder = (
            planned_runs[0].folder.parent.absolute()
            if planned_runs
            else Path(tempfile.gettempdir())
        )
        folder.mkdir(parents=True, exist_ok=True)
        self._mark = folder / f".seen-{uuid.uuid4().hex}"
        self._mark.touch()
        try:
            yield
        finally:
            self._mark.unlink(missing_ok=True)
            if is_own:
                ray.shutdown()

    def _start(self, job: Job, running: Sequence[Job], launcher: Launcher) -> bool:
        planned = job.planned
        if sum(other.handle is not None for other in running) >= (
            self.at_once or self._capacity(planned)
        ):
            return False
        needs = {"num_cpus": threads_of(planned), "num_gpus": self.gpus if uses_gpu(planned) else 0}
        task = self._ray.remote(make).options(**needs, max_retries=LOST, name=planned.folder.name)
        job.handle = task.remote(planned, launcher, str(self._mark))
        return True

    def _capacity(self, planned: PlannedRun) -> int:
        # The number of runs that the cluster can take at once; it may grow meanwhile.
        has = self._ray.cluster_resources()
        by_cores = int(has.get("CPU", 1)) // threads_of(planned)
        by_gpus = int(has.get("GPU", 0) / self.gpus) if uses_gpu(planned) else by_cores
        if uses_gpu(planned) and not by_gpus:
            raise lab_error("no-gpu")
        return max(1, min(by_cores, by_gpus))

    def _is_going(self, job: Job) -> bool:
        if job.handle is None:
            return super()._is_going(job)
        return not self._ray.wait([job.handle], timeout=0)[0]

    def _outcome(self, job: Job) -> Outcome:
        try:
            told: Outcome
            told, packed = self._ray.get(job.handle)
        except self._ray.exceptions.RayError as error:
            reason = f"Ray lost it: {str(error).strip().splitlines()[0]}"
            return Outcome(job.planned, "failed", time.monotonic() - job.began, reason)
        if packed is not None:
            if job.planned.folder.exists():
                set_aside(job.planned.folder)
            with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
                tar.extractall(job.planned.folder.parent, filter="data")
        return replace(told, planned=job.planned)

    def _stop(self, running: Sequence[Job], watch: Progress) -> None:
        # Have every run end its step and write a checkpoint; an impatient second Ctrl-C ends them
        # with Ray.
        if not running:
            return
        watch.say(f"Stopping {len(running)} runs after this step; Ctrl-C again ends at once.")
        for job in running:
            self._ray.cancel(job.handle, force=False)
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until and any(
            is_being_written(job.planned.folder) for job in running
        ):
            time.sleep(0.1)


def make(planned: PlannedRun, launcher: Launcher, mark: str) -> tuple[Outcome, bytes | None]:
    """Make a run in a process of this node; return it packed where this disk is not the lab's."""
    if Path(mark).exists():
        return (
            _make(replace(planned, folder=Path(mark).parent / planned.folder.name), launcher),
            None,
        )
    with tempfile.TemporaryDirectory(prefix="uptrend-", ignore_cleanup_errors=True) as own:
        elsewhere = replace(planned, folder=Path(own) / planned.folder.name)
        told = _make(elsewhere, launcher)
        buffer = io.BytesIO()
        left_out = ("checkpoints", ".lock")
        with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
            for path in (elsewhere.folder, log_of(elsewhere)):
                if path.exists():
                    tar.add(
                        path,
                        path.name,
                        filter=lambda item: None if Path(item.name).name in left_out else item,
                    )
        return told, buffer.getvalue()


def _make(planned: PlannedRun, launcher: Launcher) -> Outcome:
    began = time.monotonic()
    # by a lost worker, for the moment until its process is gone
    while is_being_written(planned.folder):
        time.sleep(0.1)
    if is_finished(planned):
        return Outcome(planned, "finished", 0.0)
    process = start(planned, launcher, before=_end_with_parent)
    try:
        while process.poll() is None:
            time.sleep(0.1)  # Ray can cancel between two calls, not within a long one
    except BaseException:  # cancelled: as Ctrl-C would
        process.send_signal(signal.SIGINT)
        process.wait()
        raise
    return outcome(planned, time.monotonic() - began, process.returncode)


def _end_with_parent() -> None:
    # Ask the system to kill this process when its parent dies: a lost worker must not leave its run
    # behind. Ray's workers block Ctrl-C, and a child would inherit that
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
