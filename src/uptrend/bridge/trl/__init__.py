"""Watching TRL: one line makes a GRPO run write an Uptrend run directory and checks its tensors
while it trains.

from uptrend.bridge.trl import watch
watch(trainer)
trainer.train()
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from uptrend.bridge.trl.watching import Watch, watch, watched

__all__ = ["Watch", "watch", "watched"]


def __getattr__(name: str) -> Any:
    """Load torch and TRL on first use: the process that records lives in this package, without
    them.
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from uptrend.bridge.trl import watching

    return getattr(watching, name)
