"""Ctrl-C during a run: the first finishes the step, the second ends at once."""

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from uptrend.records import Run
from uptrend.training.observer import Stop


class Patience:
    """Observer that stops the run after the step during which the user pressed Ctrl-C."""

    def __init__(self) -> None:
        self.asked_at: float | None = None

    def interrupt(self, *_: object) -> None:
        """Handle SIGINT: the first waits for the step, the second does not."""
        if self.asked_at is not None:
            raise KeyboardInterrupt
        self.asked_at = time.time()
        with suppress(RuntimeError):  # the signal came while this very stream was being written
            print("Stopping after this step; Ctrl-C again ends at once.", file=sys.stderr, flush=True)

    def before(self, run: Run) -> None:
        """Nothing yet."""

    def step(self, record: object) -> Stop | None:  # noqa: ARG002 (what happened does not matter)
        """Stop if asked to."""
        return None if self.asked_at is None else Stop("interrupted by the user", by="user")

    def after(self, run: Run) -> None:
        """Nothing more."""


@contextmanager
def patiently() -> Iterator[Patience]:
    """Hear Ctrl-C as a wish to stop after the step."""
    patience = Patience()
    before = signal.signal(signal.SIGINT, patience.interrupt)
    try:
        yield patience
    finally:
        signal.signal(signal.SIGINT, before)
