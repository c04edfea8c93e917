"""The other end of `doctor.attend`: starts it beside a run, and hears what it says without waiting for it."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

PATIENCE = 60.0
"""Seconds that the last report may take after the run has ended."""


class Listening:
    """Hears what the doctor says of the records, as they grow."""

    def __init__(self, path: Path) -> None:
        self._rest = b""
        self._doctor: subprocess.Popen[bytes] | None = None
        command = [sys.executable, "-m", "uptrend.doctor.attend", str(path)]
        with contextlib.suppress(OSError):  # no process to be had: the run needs no doctor to go on
            self._doctor = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                process_group=0,  # Ctrl-C is for the run; a session of its own would make being nice mean nothing
            )  # fmt: skip
            assert self._doctor.stdout is not None
            os.set_blocking(self._doctor.stdout.fileno(), False)

    def heard(self) -> list[dict[str, Any]]:
        """What it has said since it was last asked, without waiting."""
        if self._doctor is None or self._doctor.stdout is None:
            return []
        *lines, self._rest = (self._rest + (self._doctor.stdout.read() or b"")).split(b"\n")
        return [json.loads(line) for line in lines if line.startswith(b"{")]

    def last(self) -> dict[str, Any] | None:
        """Its report of the whole run, once that is over, which it also writes to findings.json; none if it fails."""
        doctor, self._doctor = self._doctor, None
        if doctor is None or doctor.stdout is None:
            return None
        os.set_blocking(doctor.stdout.fileno(), True)
        try:
            out, _ = doctor.communicate(b"\n", timeout=PATIENCE)
        except (subprocess.TimeoutExpired, OSError):
            doctor.kill()
            doctor.communicate()
            return None
        lines = [json.loads(line) for line in (self._rest + out).splitlines() if line.startswith(b"{")]
        return next((line["report"] for line in lines if "report" in line), None)
