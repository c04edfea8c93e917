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
    read_outcome,
    start,
    threads_of,
    uses_gpu,
)
from uptrend.records import MissingExtra
from uptrend.records.directory import is_being_written, set_aside

# Times that Ray starts a run again whose worker was lost.
MAX_LOST_WORKERS = 3
# Time that a run gets to end its step and write a checkpoint.
STOP_TIMEOUT_S = 120.0
# Between checks of whether a run has ended.
POLL_S = 0.1
# What does not travel with a run that was made on another disk.
FILES_NOT_SENT = ("checkpoints", ".lock")


class RayWorkers(Workers):
    """Makes runs as tasks of a Ray cluster."""

    poll_s = 0.5

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
        """Start or join Ray, and leave a file by which a node knows that it sees the lab's
        folder.
        """
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no statistics are sent
        try:
            import ray
        except ImportError:
            raise MissingExtra("ray", "ray") from None
        self._ray = ray
        is_own = not ray.is_initialized()  # one that was running before is left running
        options: dict[str, Any] = {"address": self.address}
        if self.address == "local":
            options = {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
        try:
            if is_own:
                ray.init(**options, log_to_driver=False, configure_logging=False)
        except (ConnectionError, OSError, RuntimeError, ValueError) as error:
            problem = str(error).strip().splitlines()[0]
            raise lab_error("no-cluster", address=self.address, problem=problem) from None
        folder = Path(tempfile.gettempdir())
        if planned_runs:
            folder = planned_runs[0].folder.parent.absolute()
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
        n_own = sum(other.handle is not None for other in running)
        if n_own >= (self.at_once or self._capacity(planned)):
            return False
        task = self._ray.remote(make).options(
            num_cpus=threads_of(planned),
            num_gpus=self.gpus if uses_gpu(planned) else 0,
            max_retries=MAX_LOST_WORKERS,
            name=planned.folder.name,
        )
        job.handle = task.remote(planned, launcher, str(self._mark))
        return True

    def _capacity(self, planned: PlannedRun) -> int:
        """Return the number of runs that the cluster can take at once; it may grow meanwhile."""
        resources = self._ray.cluster_resources()
        n_runs = int(resources.get("CPU", 1)) // threads_of(planned)
        if uses_gpu(planned):
            n_by_gpus = int(resources.get("GPU", 0) / self.gpus)
            if not n_by_gpus:
                raise lab_error("no-gpu")
            n_runs = min(n_runs, n_by_gpus)
        return max(1, n_runs)

    def _is_running(self, job: Job) -> bool:
        if job.handle is None:
            return super()._is_running(job)
        return not self._ray.wait([job.handle], timeout=0)[0]

    def _outcome(self, job: Job) -> Outcome:
        try:
            outcome: Outcome
            outcome, archive = self._ray.get(job.handle)
        except self._ray.exceptions.RayError as error:
            reason = f"Ray lost it: {str(error).strip().splitlines()[0]}"
            return Outcome(job.planned, "failed", time.monotonic() - job.began, reason)
        if archive is not None:
            if job.planned.folder.exists():
                set_aside(job.planned.folder)
            with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
                tar.extractall(job.planned.folder.parent, filter="data")
        return replace(outcome, planned=job.planned)

    def _stop(self, running: Sequence[Job], watch: Progress) -> None:
        """Have every run end its step and write a checkpoint; an impatient second Ctrl-C ends them
        with Ray.
        """
        if not running:
            return
        watch.say(f"Stopping {len(running)} runs after this step; Ctrl-C again ends at once.")
        for job in running:
            self._ray.cancel(job.handle, force=False)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while time.monotonic() < deadline:
            if not any(is_being_written(job.planned.folder) for job in running):
                return
            time.sleep(POLL_S)


def make(planned: PlannedRun, launcher: Launcher, mark: str) -> tuple[Outcome, bytes | None]:
    """Make a run in a process of this node; return it as an archive too if this disk is not the
    lab's.
    """
    if Path(mark).exists():
        shared_folder = Path(mark).parent / planned.folder.name
        return _make(replace(planned, folder=shared_folder), launcher), None
    with tempfile.TemporaryDirectory(prefix="uptrend-", ignore_cleanup_errors=True) as own:
        elsewhere = replace(planned, folder=Path(own) / planned.folder.name)
        outcome = _make(elsewhere, launcher)
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
            for path in (elsewhere.folder, log_of(elsewhere)):
                if path.exists():
                    tar.add(path, path.name, filter=_leave_out)
        return outcome, buffer.getvalue()


def _leave_out(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Return None for a file that is not sent."""
    return None if Path(member.name).name in FILES_NOT_SENT else member


def _make(planned: PlannedRun, launcher: Launcher) -> Outcome:
    """Make a run in a process of its own, and wait for its end."""
    began = time.monotonic()
    # A lost worker's process may still write, for the moment until it is gone.
    while is_being_written(planned.folder):
        time.sleep(POLL_S)
    if is_finished(planned):
        return Outcome(planned, "finished", 0.0)
    process = start(planned, launcher, setup=_end_with_parent)
    try:
        while process.poll() is None:
            time.sleep(POLL_S)  # Ray can cancel between two calls, not within a long one
    except BaseException:  # cancelled: as Ctrl-C would
        process.send_signal(signal.SIGINT)
        process.wait()
        raise
    return read_outcome(planned, time.monotonic() - began, process.returncode)


def _end_with_parent() -> None:
    """Ask the system to kill this process when its parent dies: a lost worker must not leave its
    run behind.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # Ray's workers block Ctrl-C, and so a child
    if sys.platform == "linux":
        pr_set_pdeathsig = 1  # from linux/prctl.h
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
