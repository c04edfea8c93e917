"""Uptrend: RL post-training that explains itself.

    run = uptrend.train("recipes/tiny.toml")
    uptrend.Run("runs/tiny").metrics
    uptrend.replay("runs/tiny", step=0, steps=12, overrides=["learning.loss=dr_grpo"])
    uptrend.diagnose("outputs/trainer_state.json").findings
    uptrend.load_config("recipes/tiny.toml", ["learning.lr=2e-5"])

Importing this loads no torch; training does.
"""

from uptrend.config import load_config
from uptrend.records import Run
from uptrend.runner import diagnose, replay, train

__version__ = "0.2.0"
__all__ = ["Run", "__version__", "diagnose", "load_config", "replay", "train"]
