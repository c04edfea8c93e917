"""Watching TRL: one line makes a GRPO run write an Uptrend run directory and runs the invariants on its tensors.

from uptrend.bridge.trl import watch
watch(trainer)
trainer.train()
"""

from uptrend.bridge.trl.watching import Watch, watch, watched

__all__ = ["Watch", "watch", "watched"]
