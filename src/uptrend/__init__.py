"""Uptrend: RL post-training that explains itself.

    run = uptrend.train("recipes/tiny.toml")
    uptrend.Run("runs/tiny").metrics
    uptrend.load_config("recipes/tiny.toml", ["learning.lr=2e-5"])

Importing this loads no torch; training does.
"""

from typing import cast as _cast

import uptrend.train as _train
from uptrend.config import load_config
from uptrend.records import Run

__version__ = "0.1.0"
__all__ = ["Run", "__version__", "load_config", "train"]

train = _cast(_train.TrainRoom, _train)
"""The room `uptrend.train`, which is also called as a function."""
