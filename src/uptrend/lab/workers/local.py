"""Runs as processes of this machine, side by side as far as cores and memory reach.

The first is alone until its first step has told what a run takes. Children have a session of their own: Ctrl-C reaches
this process alone, which passes it on once, so that each child ends its step and writes a checkpoint. If this process
is killed, its children go on; they hold their locks, and whoever comes next waits for them.
"""

import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

from uptrend.lab.launcher import Launcher, PlannedRun
from uptrend.lab.plan import is_finished
from uptrend.lab.workers import machine
from uptrend.lab.workers.work import TRIES, Outcome, Progress, log_of, make_way, outcome, tidy
from uptrend.records.directory import is_being_written

POLL = 0.1
"""Seconds between looks at the children."""
LOOK = 1.0
"""Seconds between looks for room, where nothing has ended: asking a GPU takes its time."""


@dataclass
class _Child:
    """A run that is being made; by somebody else where there is no process."""

    planned: PlannedRun
    process: "subprocess.Popen[bytes] | None"
    began: float
    tries: int = 1
    place: str = ""


class LocalWorkers:
    """Processes of this machine."""

    def __init__(
        self,
        at_once: int | None = None,
        keep_checkpoints: bool = False,
        *,
        cores: Callable[[], int] = machine.cores,
        free_gib: Callable[[bool], dict[str, float]] = machine.free_gib,
        look: float = LOOK,
    ) -> None:
        self._cores, self._free_gib, self._look = cores, free_gib, look
        self.at_once = at_once
        self.keep_checkpoints = keep_checkpoints
        self._need: float | None = None

    def run(
        self,
        planned_runs: Sequence[PlannedRun],
        launcher: Launcher,
        wanted: Callable[[PlannedRun], bool],
        watch: Progress,
    ) -> Generator[Outcome, None, None]:
        """Make the runs that are wanted when their turn comes, and tell of each that ended; closing it stops them."""
        waiting = deque(_Child(planned, None, 0.0) for planned in planned_runs)
        running: list[_Child] = []
        looked = -self._look
        try:
            while waiting or running:
                if waiting and time.monotonic() >= looked + self._look:
                    while waiting and (there := self._begin(waiting, running, launcher, wanted, watch)) is not False:
                        if isinstance(there, Outcome):
                            yield there
                    looked = time.monotonic()
                ended = [child for child in running if not _is_going(child)]
                for child in ended:
                    running.remove(child)
                    if (told := self._ended(child, waiting)) is not None:
                        yield told
                if ended:
                    looked = -self._look
                elif running:
                    watch.tick()
                    time.sleep(POLL)
        finally:
            _stop(running, watch)

    def _begin(
        self,
        waiting: "deque[_Child]",
        running: list[_Child],
        launcher: Launcher,
        wanted: Callable[[PlannedRun], bool],
        watch: Progress,
    ) -> Outcome | bool:
        """Take the next from the queue: whether that could be done, or its outcome if the run was there."""
        child = waiting[0]
        planned = child.planned
        if not wanted(planned):
            waiting.popleft()
            return True
        if is_finished(planned):
            waiting.popleft()
            if child.began and not self.keep_checkpoints:  # we waited for it: whoever began it is gone
                tidy(planned)
            return Outcome(planned, "finished", was_there=True)
        if is_being_written(planned.folder):
            waiting.popleft()
            child.process, child.began = None, time.monotonic()
            running.append(child)
            watch.began(planned, "made by another process")
            return True
        place = self._room(planned, running)
        if place is None:
            return False
        waiting.popleft()
        child.process, child.began, child.place = _start(planned, launcher, place), time.monotonic(), place
        running.append(child)
        watch.began(planned, f"try {child.tries}" if child.tries > 1 else "")
        return True

    def _room(self, planned: PlannedRun, running: Sequence[_Child]) -> str | None:
        """Where one more run would fit: a GPU's name, or '' for the machine's memory; none where it would not."""
        own = [child for child in running if child.process is not None]
        if self.at_once is not None:
            return self._least_used(planned, own) if len(own) < self.at_once else None
        if not own:
            return self._least_used(planned, own)
        threads = max(1, int(planned.config["compute"]["threads"]))
        if (len(own) + 1) * threads > self._cores():
            return None
        needs = {child.planned.hash: machine.need_gib(child.planned) for child in own}
        self._need = max((need for need in (self._need, *needs.values()) if need is not None), default=None)
        if self._need is None:
            return None
        free = self._free_gib(machine.uses_gpu(planned))
        for child in own:  # a run before its first step has not taken its share yet
            if needs[child.planned.hash] is None and child.place in free:
                free[child.place] -= self._need
        place = max(free, key=lambda name: free[name], default=None)
        return place if place is not None and free[place] >= self._need else None

    def _least_used(self, planned: PlannedRun, running: Sequence[_Child]) -> str:
        """Return the GPU with the fewest of our runs; '' where there is nothing to choose."""
        places = list(self._free_gib(True)) if machine.uses_gpu(planned) else []
        used = [child.place for child in running]
        return min(places, key=used.count, default="")

    def _ended(self, child: _Child, waiting: "deque[_Child]") -> Outcome | None:
        """What became of it; none where it is to be begun again."""
        if child.process is None:
            waiting.appendleft(child)  # somebody else's: look again, and make it if they did not
            return None
        told = outcome(child.planned, time.monotonic() - child.began, child.process.returncode)
        if told.status == "failed" and child.tries < TRIES:
            waiting.appendleft(_Child(child.planned, None, 0.0, child.tries + 1))
            return None
        if told.status == "finished" and not self.keep_checkpoints:
            tidy(child.planned)
        return told


def _start(planned: PlannedRun, launcher: Launcher, place: str) -> "subprocess.Popen[bytes]":
    make_way(planned)
    planned.folder.parent.mkdir(parents=True, exist_ok=True)
    with log_of(planned).open("ab") as log:
        return subprocess.Popen(
            launcher.command(planned),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=surroundings(planned, place),
            start_new_session=True,
        )


def surroundings(planned: PlannedRun, place: str = "") -> dict[str, str]:
    """A child's environment variables: threads that wait asleep, since those that spin take the others' cores."""
    variables = {
        **os.environ,
        "OMP_WAIT_POLICY": "PASSIVE",
        "OMP_NUM_THREADS": str(planned.config["compute"]["threads"]),
    }
    if place and planned.config["compute"]["device"] == "cuda":
        variables["CUDA_VISIBLE_DEVICES"] = place
    return variables


def _is_going(child: _Child) -> bool:
    if child.process is None:
        return is_being_written(child.planned.folder)
    return child.process.poll() is None


def _stop(running: Sequence[_Child], watch: Progress) -> None:
    """Have every child end its step and write a checkpoint; an impatient second Ctrl-C kills them."""
    processes = [child.process for child in running if child.process is not None and child.process.poll() is None]
    for process in processes:
        process.send_signal(signal.SIGINT)
    if processes:
        count = "one run" if len(processes) == 1 else f"{len(processes)} runs"
        watch.say(f"Stopping {count} after this step; Ctrl-C again ends at once.")
    try:
        for process in processes:
            process.wait()
    except BaseException:
        for process in processes:
            process.kill()
        raise
