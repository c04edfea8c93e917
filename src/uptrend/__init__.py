"""Uptrend: RL post-training that explains itself.

    run = uptrend.train("recipes/tiny.toml")
    uptrend.Run("runs/tiny").metrics
    uptrend.diagnose("outputs/trainer_state.json").findings
    uptrend.load_config("recipes/tiny.toml", ["learning.lr=2e-5"])

Importing this loads no torch; training does.
"""

from pathlib import Path as _Path
from typing import cast as _cast

import uptrend.train as _train
from uptrend.config import load_config
from uptrend.records import Report as _Report
from uptrend.records import Run

__version__ = "0.1.0"
__all__ = ["Run", "__version__", "diagnose", "load_config", "train"]

train = _cast(_train.TrainRoom, _train)
"""The room `uptrend.train`, which is also called as a function."""


def diagnose(path: str | _Path) -> _Report:
    """Say why a run does not learn, from its directory or another trainer's log; of several runs, the longest."""
    from uptrend.cli.doctor import diagnose_path

    return diagnose_path(path)
