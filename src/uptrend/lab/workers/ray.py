"""Runs as tasks of a Ray cluster: this machine's own, or one at an address.

Each task starts the same command in a process of its node, so that results are those of a local run. Where the lab's
folder is on a disk that the node shares, the run is written there; elsewhere it comes back whole, without checkpoints.
A worker that is lost takes its process with it, and Ray starts the task again.
"""

import contextlib
import os
import tempfile
import time
import uuid
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from uptrend.lab.launcher import Launcher, PlannedRun
from uptrend.lab.plan import is_finished
from uptrend.lab.workers.machine import uses_gpu
from uptrend.lab.workers.ray_node import Answer, make, unpack
from uptrend.lab.workers.work import TRIES, Outcome, Progress, tidy
from uptrend.records import LabError, MissingExtra
from uptrend.records.directory import is_being_written

LOST = 3
"""How often Ray starts a run again whose worker was lost."""
POLL = 0.5
"""Seconds between looks at the tasks."""
PATIENCE = 120.0
"""Seconds that a run is given to end its step and write a checkpoint."""


@dataclass
class _Sent:
    """A run that Ray has been given."""

    planned: PlannedRun
    began: float
    tries: int


class RayWorkers:
    """Tasks of a Ray cluster."""

    def __init__(
        self, address: str = "local", at_once: int | None = None, gpus: float = 1.0, keep_checkpoints: bool = False
    ) -> None:
        self.address, self.at_once, self.gpus, self.keep_checkpoints = address, at_once, gpus, keep_checkpoints

    def run(
        self,
        planned_runs: Sequence[PlannedRun],
        launcher: Launcher,
        wanted: Callable[[PlannedRun], bool],
        watch: Progress,
    ) -> Generator[Outcome, None, None]:
        """Make the runs that are wanted when their turn comes, and tell of each that ended; closing it stops them."""
        waiting = deque(_Sent(planned, 0.0, 1) for planned in planned_runs)
        sent: dict[Any, _Sent] = {}
        with _connected(self.address) as ray, _marked(planned_runs) as mark:
            try:
                while waiting or sent:
                    while waiting and len(sent) < self._window(ray, waiting[0].planned):
                        each = waiting.popleft()
                        if not wanted(each.planned):
                            continue
                        if is_finished(each.planned):
                            yield Outcome(each.planned, "finished", was_there=True)
                            continue
                        sent[self._send(ray, each, launcher, mark)] = replace(each, began=time.monotonic())
                        watch.began(each.planned, f"try {each.tries}" if each.tries > 1 else "")
                    done, _ = ray.wait(list(sent), timeout=POLL) if sent else ([], [])
                    for ref in done:
                        told = self._ended(ray, ref, sent.pop(ref), waiting)
                        if told is not None:
                            yield told
                    watch.tick()
            finally:
                _stop(ray, sent, watch)

    def _window(self, ray: Any, planned: PlannedRun) -> int:
        """How many the cluster can take at once; it may grow while we work."""
        if self.at_once is not None:
            return self.at_once
        has = ray.cluster_resources()
        by_cores = int(has.get("CPU", 1)) // _threads(planned)
        by_gpus = int(has.get("GPU", 0) / self.gpus) if uses_gpu(planned) else by_cores
        if uses_gpu(planned) and not by_gpus:
            raise LabError("The Ray cluster has no GPU for this run. Start nodes with GPUs, or set compute.device.")
        return max(1, min(by_cores, by_gpus))

    def _send(self, ray: Any, each: _Sent, launcher: Launcher, mark: Path) -> Any:
        task = ray.remote(make).options(
            num_cpus=_threads(each.planned),
            num_gpus=self.gpus if uses_gpu(each.planned) else 0,
            max_retries=LOST,
            name=each.planned.folder.name,
        )
        return task.remote(each.planned, launcher, str(mark))

    def _ended(self, ray: Any, ref: Any, each: _Sent, waiting: "deque[_Sent]") -> Outcome | None:
        """What became of it; none where it is to be begun again."""
        planned, seconds = each.planned, time.monotonic() - each.began
        try:
            answer: Answer = ray.get(ref)
        except ray.exceptions.RayError as error:
            answer = Answer("failed", seconds, f"Ray lost it: {str(error).strip().splitlines()[0]}", None)
        if answer.packed is not None:
            unpack(answer.packed, planned)
        if answer.status == "failed" and each.tries < TRIES:
            waiting.appendleft(_Sent(planned, 0.0, each.tries + 1))
            return None
        if answer.status == "finished" and not self.keep_checkpoints:
            tidy(planned)
        return Outcome(planned, answer.status, answer.seconds, answer.reason)


def _threads(planned: PlannedRun) -> int:
    return max(1, int(planned.config["compute"]["threads"]))


@contextlib.contextmanager
def _connected(address: str) -> Iterator[Any]:
    """Ray, started or joined; one that was running before is left running."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is told to anybody
    try:
        import ray
    except ImportError:
        raise MissingExtra("ray", "ray") from None
    if ray.is_initialized():
        yield ray
        return
    quiet: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
    own = {"include_dashboard": False, "_node_ip_address": "127.0.0.1"} if address == "local" else {"address": address}
    try:
        ray.init(**own, **quiet)
    except (ConnectionError, OSError, RuntimeError, ValueError) as error:
        said = str(error).strip().splitlines()[0]
        raise LabError(
            f"There is no Ray cluster at {address}: {said} Start one with `ray start --head`, or use --address local."
        ) from None
    try:
        yield ray
    finally:
        ray.shutdown()


@contextlib.contextmanager
def _marked(planned_runs: Sequence[PlannedRun]) -> Iterator[Path]:
    """A file by which a node knows whether it sees the lab's folder."""
    folder = planned_runs[0].folder.parent.absolute() if planned_runs else Path(tempfile.gettempdir())
    folder.mkdir(parents=True, exist_ok=True)
    mark = folder / f".seen-{uuid.uuid4().hex}"
    mark.touch()
    try:
        yield mark
    finally:
        mark.unlink(missing_ok=True)


def _stop(ray: Any, sent: dict[Any, _Sent], watch: Progress) -> None:
    """Have every run end its step and write a checkpoint; an impatient second Ctrl-C ends them with Ray."""
    if not sent:
        return
    watch.say(f"Stopping {len(sent)} runs after this step; Ctrl-C again ends at once.")
    for ref in sent:
        ray.cancel(ref, force=False)
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until and any(is_being_written(each.planned.folder) for each in sent.values()):
        time.sleep(0.1)
