"""Errors of the watch stay inside it: they are recorded, printed once, and the run goes on. No
torch.
"""

import functools
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

MAX_FAILURES = 3  # of one method's probe, after which it is left alone


def describe_error(error: Exception) -> str:
    """Return an error as one line, with the place that raised it."""
    text = f"{type(error).__name__}: {error}"
    frames = traceback.extract_tb(error.__traceback__)
    return f"{text} ({frames[-1].filename}:{frames[-1].lineno})" if frames else text


class Guard:
    """Runs the watch's own code on the trainer's thread: errors stay inside, seconds are
    counted.
    """

    def __init__(self, record_failure: Callable[[str, str], None], place: str = "") -> None:
        self._record_failure = record_failure
        self._place = place  # process, where it is not the only one
        self._failures: dict[str, int] = {}
        self._depth = 0
        self._seconds = 0.0

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        """Count the seconds inside, and note any error instead of raising it."""
        began = time.perf_counter()
        self._depth += 1
        try:
            yield
        except Exception as error:
            self.note(part, describe_error(error))
        finally:
            self._depth -= 1
            if self._depth == 0:  # guards may be nested, and seconds must count once
                self._seconds += time.perf_counter() - began

    def note(self, part: str, text: str) -> None:
        """Record a failure; print the first of each part."""
        self._failures[part] = self._failures.get(part, 0) + 1
        if self._failures[part] == 1:
            place = f"{part}{self._place}"
            print(f"uptrend: watching {place} failed; the run goes on. {text}", file=sys.stderr)
        self._record_failure(f"{part}{self._place}", text)

    def take_seconds(self) -> float:
        """Return the seconds that the trainer has waited since the last call."""
        seconds = self._seconds
        self._seconds = 0.0
        return seconds

    def tap(
        self,
        trainer: Any,
        name: str,
        after: Callable[..., None],
        before: Callable[..., None] | None = None,
    ) -> None:
        """Call `before(*args)` and `after(result, *args)` around a method of one trainer; TRL's
        class stays as it is.

        Neither can change or break the method, and neither is called any more once it has failed
        too often.
        """
        original = getattr(trainer, name)

        def attempt(observe: Callable[..., None] | None, *args: Any, **kwargs: Any) -> None:
            if observe is not None and self._failures.get(name, 0) < MAX_FAILURES:
                with self(name):
                    observe(*args, **kwargs)

        @functools.wraps(original)
        def tapped(*args: Any, **kwargs: Any) -> Any:
            attempt(before, *args, **kwargs)
            result = original(*args, **kwargs)
            attempt(after, result, *args, **kwargs)
            return result

        setattr(trainer, name, tapped)
