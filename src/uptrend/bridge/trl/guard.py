"""Nothing that goes wrong while watching may reach the run: it is written down, said once, and the run goes on."""

import random
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

PATIENCE = 3
"""How often one part may fail before it is left alone."""


class Guard:
    """Runs the watch's own code on the trainer's thread: errors stay inside, seconds are counted."""

    def __init__(self, tell: Callable[[str, str], None]) -> None:
        self._tell = tell
        self._failures: dict[str, int] = {}
        self._depth = 0
        self.seconds = 0.0
        """Seconds that the trainer has waited since they were last taken."""

    def works(self, part: str) -> bool:
        """Whether a part has not failed too often."""
        return self._failures.get(part, 0) < PATIENCE

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        """Count the seconds inside, and keep every error there."""
        began, self._depth = time.perf_counter(), self._depth + 1
        try:
            yield
        except Exception as error:
            self.failed(part, error)
        finally:
            self._depth -= 1
            if self._depth == 0:
                self.seconds += time.perf_counter() - began

    def failed(self, part: str, error: Exception) -> None:
        """Write an error down."""
        where = traceback.extract_tb(error.__traceback__)[-1] if error.__traceback__ else None
        self.note(part, f"{type(error).__name__}: {error}" + (f" ({where.filename}:{where.lineno})" if where else ""))

    def note(self, part: str, text: str) -> None:
        """Write down that something failed; print the first of each part."""
        self._failures[part] = self._failures.get(part, 0) + 1
        if self._failures[part] == 1:
            print(f"uptrend: watching {part} failed; the run goes on. {text}", file=sys.stderr)
        self._tell(part, text)

    def take_seconds(self) -> float:
        """The seconds counted since the last call."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds


@contextmanager
def same_randomness() -> Iterator[None]:
    """Put every generator of random numbers back as it was: a watched run draws what an unwatched one draws."""
    python, numpy = random.getstate(), np.random.get_state()
    devices: Any = list(range(torch.cuda.device_count()))
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
