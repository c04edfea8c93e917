"""The lab's runs: recipes resolved as `uptrend train` resolves them, and its command line."""

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from uptrend.config import difference, load_config, to_table
from uptrend.config.tables import to_recipe, to_toml
from uptrend.lab.launcher import PlannedRun, Resolved
from uptrend.records import LabError, Method, Run
from uptrend.records.directory import write_whole
from uptrend.runner.prepare import resolve
from uptrend.tasks.pool import heldout, pool

THREADS = 1
"""CPU threads of a run where its recipe does not say: several runs of one thread get more done than one of several."""

NOT_REPLAYED = ("name", "seed", "checkpoints", "doctor", "compute")
"""Keys that a replay takes from its source, whatever the recipe says."""


class TrainLauncher:
    """Starts `uptrend train`, or `uptrend replay`."""

    def resolve(self, recipe: Path, overrides: Mapping[str, Any]) -> Resolved:
        """Load a recipe with overrides (the seed among them), make its tasks, and hash them."""
        config = load_config(recipe, overrides)
        compute = replace(config.compute, threads=config.compute.threads or THREADS)
        # Nobody looks on: the lab has the doctor judge the records of finished runs.
        config = resolve(replace(config, compute=compute, doctor=replace(config.doctor, live=False, stop_on="never")))
        held_out = heldout(config)
        return Resolved(to_table(config), pool(config, held_out).describe()["hash"], held_out.hash)

    def command(self, planned: PlannedRun) -> list[str]:
        """The command line that makes a planned run's run in a process of its own, or goes on with it."""
        uptrend, folder = [sys.executable, "-m", "uptrend"], planned.folder
        if planned.method is Method.REPLAY:
            return [*uptrend, *self._replay(planned)]
        if (folder / "run.json").exists() and Run(folder).checkpoints:
            return [*uptrend, "train", "--resume", str(folder)]
        recipe = folder.with_name(f"{folder.name}.toml")
        write_whole(recipe, to_recipe(planned.config).encode())
        allows = [word for id in planned.allows for word in ("--allow", id)] if planned.asks else ["--no-preflight"]
        return [*uptrend, "train", str(recipe), "--runs", str(folder.parent), "--name", folder.name, *allows]

    def _replay(self, planned: PlannedRun) -> list[str]:
        """Of the arm only what differs from the run that is replayed."""
        assert planned.source is not None
        source = Run(planned.source.run)
        differs = difference(source.config, planned.config)
        gone = [key for key, (_, value) in differs.items() if value is None and not key.startswith(NOT_REPLAYED)]
        if gone:
            raise LabError(
                f"{source.path} has {gone[0]}, and arm {planned.arm} has none: a replay can't leave it out. "
                "Replay a run without it, or write it into the recipe as the run has it."
            )
        steps = ["--steps", str(differs["learning.steps"][1])] if "learning.steps" in differs else []
        sets = [
            word
            for key, (_, value) in differs.items()
            if key != "learning.steps" and not key.startswith(NOT_REPLAYED)
            for word in ("--set", f"{key}={to_toml(value)}")
        ]
        where = ["--runs", str(planned.folder.parent), "--name", planned.folder.name]
        return ["replay", str(source.path), "--step", str(planned.source.step), *steps, *where, *sets, "--quiet"]
