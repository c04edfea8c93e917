"""Errors of the watch stay inside it: they are written down, printed once, and the run goes on."""

import functools
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
"""Failures of one part after which it is left alone."""


class Guard:
    """Runs the watch's own code on the trainer's thread: errors stay inside, seconds are counted."""

    def __init__(self, tell: Callable[[str, str], None]) -> None:
        self._tell = tell
        self._failures: dict[str, int] = {}
        self._depth = 0
        self._seconds = 0.0

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
                self._seconds += time.perf_counter() - began

    def failed(self, part: str, error: Exception) -> None:
        """Write an error down."""
        where = traceback.extract_tb(error.__traceback__)[-1] if error.__traceback__ else None
        self.note(part, f"{type(error).__name__}: {error}" + (f" ({where.filename}:{where.lineno})" if where else ""))

    def note(self, part: str, text: str) -> None:
        """Write a failure down; print the first of each part."""
        self._failures[part] = self._failures.get(part, 0) + 1
        if self._failures[part] == 1:
            print(f"uptrend: watching {part} failed; the run goes on. {text}", file=sys.stderr)
        self._tell(part, text)

    def take_seconds(self) -> float:
        """Return the seconds that the trainer has waited since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def tap(
        self,
        trainer: Any,
        name: str,
        *,
        before: Callable[..., None] | None = None,
        after: Callable[..., None] | None = None,
    ) -> None:
        """Call `before(*args)` and `after(result, *args)` around a method of one trainer; TRL's class stays as it is.

        Neither can change or break the method, and neither is called any more once it has failed too often.
        """
        original = getattr(trainer, name)

        @functools.wraps(original)
        def tapped(*args: Any, **kwargs: Any) -> Any:
            if before is not None and self._failures.get(name, 0) < PATIENCE:
                with self(name):
                    before(*args, **kwargs)
            result = original(*args, **kwargs)
            if after is not None and self._failures.get(name, 0) < PATIENCE:
                with self(name):
                    after(result, *args, **kwargs)
            return result

        setattr(trainer, name, tapped)


@contextmanager
def same_randomness() -> Iterator[None]:
    """Put every random generator back as it was: a watched run draws what an unwatched one draws."""
    python, numpy = random.getstate(), np.random.get_state()
    devices: Any = list(range(torch.cuda.device_count()))
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
