"""What a Ray task does on its node: the run in a process, and the way back to a lab that is on another disk."""

import ctypes
import io
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from uptrend.lab.launcher import Launcher, PlannedRun
from uptrend.lab.plan import is_finished
from uptrend.lab.workers.local import surroundings
from uptrend.lab.workers.work import log_of, make_way, outcome
from uptrend.records.directory import is_being_written


@dataclass(frozen=True)
class Answer:
    """What a task gives back."""

    status: str
    seconds: float
    reason: str
    packed: bytes | None
    """The run directory and its log, where they are not on a shared disk."""


def make(planned: PlannedRun, launcher: Launcher, mark: str) -> Answer:
    """On a node: make the run in a process, and give it back where this disk is not the lab's."""
    if Path(mark).exists():
        planned = replace(planned, folder=Path(mark).parent / planned.folder.name)
        return _made(planned, launcher)
    own = Path(tempfile.mkdtemp(prefix="uptrend-"))
    try:
        elsewhere = replace(planned, folder=own / planned.folder.name)
        return replace(_made(elsewhere, launcher), packed=_pack(elsewhere))
    finally:
        shutil.rmtree(own, ignore_errors=True)


def _made(planned: PlannedRun, launcher: Launcher) -> Answer:
    began = time.monotonic()
    while is_being_written(planned.folder):  # of a worker that was lost, for the moment until its process is gone
        time.sleep(0.1)
    code: int | None = 0
    if not is_finished(planned):
        make_way(planned)
        with log_of(planned).open("ab") as log:
            process = subprocess.Popen(
                launcher.command(planned),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=surroundings(planned),
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )
        code = _wait(process)
    told = outcome(planned, time.monotonic() - began, code)
    return Answer(told.status, told.seconds or 0.0, told.reason, None)


def _wait(process: "subprocess.Popen[bytes]") -> int:
    try:
        while process.poll() is None:
            time.sleep(0.1)  # Ray's wish to cancel is heard between two calls, not within a long one
        return process.returncode
    except BaseException:  # cancelled: as Ctrl-C would
        process.send_signal(signal.SIGINT)
        process.wait()
        raise


def _end_with_parent() -> None:
    """Ask the system to kill this process when its parent dies: a lost worker must not leave its run behind."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # Ray's workers block Ctrl-C, and a child would inherit that
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def _pack(planned: PlannedRun) -> bytes:
    """The run directory and its log, without checkpoints and locks."""
    buffer = io.BytesIO()
    left_out = ("checkpoints", ".lock")
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for path in (planned.folder, log_of(planned)):
            if path.exists():
                tar.add(path, path.name, filter=lambda item: None if Path(item.name).name in left_out else item)
    return buffer.getvalue()


def unpack(packed: bytes, planned: PlannedRun) -> None:
    """Put a run that came back in its place."""
    shutil.rmtree(planned.folder, ignore_errors=True)
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        tar.extractall(planned.folder.parent, filter="data")
