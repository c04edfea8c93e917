"""Where the watch listens: a few methods of one trainer instance, wrapped; TRL itself is left as it is."""

import functools
from collections.abc import Callable
from typing import Any

from uptrend.bridge.trl.guard import Guard

ROWS = "uptrend_rows"
"""The key under which a generation's rows carry their numbers through TRL's shuffle."""


def tap(
    trainer: Any,
    name: str,
    guard: Guard,
    *,
    before: Callable[..., None] | None = None,
    after: Callable[..., None] | None = None,
) -> None:
    """Call `before(*args)` and `after(result, *args)` around a method; neither can change or break it."""
    original = getattr(trainer, name)

    @functools.wraps(original)
    def tapped(*args: Any, **kwargs: Any) -> Any:
        if before is not None and guard.works(name):
            with guard(name):
                before(*args, **kwargs)
        result = original(*args, **kwargs)
        if after is not None and guard.works(name):
            with guard(name):
                after(result, *args, **kwargs)
        return result

    setattr(trainer, name, tapped)
