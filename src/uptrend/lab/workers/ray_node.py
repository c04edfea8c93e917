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

from uptrend.lab.launcher import Errand, Launcher
from uptrend.lab.plan import is_finished
from uptrend.lab.workers.local import surroundings
from uptrend.lab.workers.work import log_of, make_way, outcome
from uptrend.records.lock import is_being_written


@dataclass(frozen=True)
class Answer:
    """What a task gives back."""

    status: str
    seconds: float
    reason: str
    packed: bytes | None
    """The run directory and its log, where they are not on a shared disk."""


def make(errand: Errand, launcher: Launcher, mark: str) -> Answer:
    """On a node: make the run in a process, and give it back where this disk is not the lab's."""
    if Path(mark).exists():
        errand = replace(errand, folder=Path(mark).parent / errand.folder.name)
        return _made(errand, launcher)
    own = Path(tempfile.mkdtemp(prefix="uptrend-"))
    try:
        elsewhere = replace(errand, folder=own / errand.folder.name)
        return replace(_made(elsewhere, launcher), packed=_pack(elsewhere))
    finally:
        shutil.rmtree(own, ignore_errors=True)


def _made(errand: Errand, launcher: Launcher) -> Answer:
    began = time.monotonic()
    while is_being_written(errand.folder):  # of a worker that was lost, for the moment until its process is gone
        time.sleep(0.1)
    code: int | None = 0
    if not is_finished(errand):
        make_way(errand)
        with log_of(errand).open("ab") as log:
            process = subprocess.Popen(
                launcher.command(errand),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=surroundings(errand),
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )
        code = _wait(process)
    told = outcome(errand, time.monotonic() - began, code)
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


def _pack(errand: Errand) -> bytes:
    """The run directory and its log, without checkpoints and locks."""
    buffer = io.BytesIO()
    left_out = ("checkpoints", ".lock")
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for path in (errand.folder, log_of(errand)):
            if path.exists():
                tar.add(path, path.name, filter=lambda item: None if Path(item.name).name in left_out else item)
    return buffer.getvalue()


def unpack(packed: bytes, errand: Errand) -> None:
    """Put a run that came back in its place."""
    shutil.rmtree(errand.folder, ignore_errors=True)
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        tar.extractall(errand.folder.parent, filter="data")
