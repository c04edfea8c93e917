"""The update, the loop that repeats it, and evaluation. As a function, `uptrend.train(recipe)` trains."""

import importlib
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from uptrend.config import Config
from uptrend.records import Run
from uptrend.train.observer import Observer


class TrainRoom(ModuleType):
    """This module, made callable: the verb and the room have one name."""

    def __call__(
        self,
        config: Config | str | Path | Mapping[str, Any],
        *,
        runs: str | Path = "runs",
        name: str | None = None,
        observers: Sequence[Observer] = (),
        preflight: bool = False,
        allows: Collection[str] = (),
    ) -> Run:
        """Train a recipe (a path, a table or a loaded config), after the cheap probes if asked; gives back its run."""
        # By name, because `cli` joins the rooms and stands above this one.
        launch = importlib.import_module("uptrend.cli.launch")
        run: Run = launch.train(config, runs=runs, name=name, observers=observers, preflight=preflight, allows=allows)
        return run


sys.modules[__name__].__class__ = TrainRoom
