"""Uptrend: RL post-training that explains itself.

    run = uptrend.train("recipes/tiny.toml")
    uptrend.Run("runs/tiny").metrics
    uptrend.replay("runs/tiny", step=0, steps=12, overrides=["learning.loss=dr_grpo"])
    uptrend.diagnose("outputs/trainer_state.json").findings
    uptrend.load_config("recipes/tiny.toml", ["learning.lr=2e-5"])

Importing this loads no torch; training does.
"""

from collections.abc import Iterable as _Iterable
from pathlib import Path as _Path
from typing import cast as _cast

import uptrend.train as _train
from uptrend.config import load_config
from uptrend.records import Report as _Report
from uptrend.records import Run

__version__ = "0.1.0"
__all__ = ["Run", "__version__", "diagnose", "load_config", "replay", "train"]

train = _cast(_train.TrainRoom, _train)
"""The room `uptrend.train`, which is also called as a function."""


def replay(
    run: str | _Path,
    step: int,
    *,
    steps: int | None = None,
    overrides: _Iterable[str] = (),
    runs: str | _Path = "runs",
    name: str | None = None,
) -> Run:
    """Learn from a run's recorded rollouts again, from a step on, with something of the update changed."""
    from uptrend.cli.replay_launch import replay as launch

    return launch(Run(run), step, steps=steps, overrides=overrides, runs=_Path(runs), name=name)


def diagnose(path: str | _Path) -> _Report:
    """Say why a run does not learn, from its directory or another trainer's log; of several runs, the longest."""
    from uptrend.cli.doctor import diagnose_path

    return diagnose_path(path)
