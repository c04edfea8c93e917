"""Making one case's run: the probes of preflight with the fault in place, then training, until it is long enough.

A folder a case: `run/` (the run directory), `preflight.json` (what the probes said) and `case.json`.
"""

import json
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.faults.case import Case
from benchmarks.faults.planted.operation import RESUMED_AT
from benchmarks.faults.recipes import make_config

from uptrend.config import Config
from uptrend.doctor.probes import PROBES
from uptrend.doctor.probes.bench import Bench
from uptrend.doctor.probes.run import differential, run_probes
from uptrend.records import Run
from uptrend.runner.preflight import Preflight
from uptrend.runner.prepare import prepare
from uptrend.runner.runs import resume, train
from uptrend.training.observer import StepRecord, Stop

LEFT_OUT = ("control",)
"""Probes that `uptrend preflight` asks and the fault benchmark does not: slow, and no fault needs them."""
GROUPS = 8
"""Groups that the probes play."""


class Enough:
    """Stops a run after some steps: the recipe names more of them, as a person's would."""

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def before(self, run: Run) -> None:
        """Nothing to do."""

    def step(self, record: StepRecord) -> Stop | None:
        """Stop where it is enough."""
        return Stop("the fault benchmark has seen enough") if record.step >= self._steps else None

    def after(self, run: Run) -> None:
        """Nothing to do."""


def make_run(case: Case, to: Path) -> Path:
    """Make the run, unless it is there already; the case's folder."""
    folder = to / case.name.replace(" ", "-").replace(",", "")
    if (folder / "case.json").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    began = time.perf_counter()
    with case.plant():
        config = make_config(case.recipe, case.settings, two_turns=case.two_turns, seed=case.seed)
        (folder / "preflight.json").write_text(json.dumps(_preflight(config), ensure_ascii=False))
    with case.plant():  # a fresh plant: what it counts begins again with the run
        _train(case, config, folder)
    facts = {"case": case.name, "recipe": case.recipe, "seed": case.seed, "steps": case.steps, "half": case.half,
             "settings": dict(case.settings), "fault": case.fault.id if case.fault else None,
             "seconds": round(time.perf_counter() - began, 1)}  # fmt: skip
    (folder / "case.json").write_text(json.dumps(facts, indent=1))
    return folder


def _preflight(config: Config) -> dict[str, Any]:
    prepared = prepare(config)
    bench = Bench(prepared.config, prepared.policy, prepared.pool, prepared.held_out, GROUPS)
    names = [name for name, probe in PROBES.items() if not probe.full and name not in LEFT_OUT]
    began = time.perf_counter()
    results = list(run_probes(bench, names))
    return Preflight(config.name, results, differential(results), time.perf_counter() - began).to_table()


def _train(case: Case, config: Config, folder: Path) -> None:
    at = RESUMED_AT.get(case.fault.id) if case.fault else None
    config = replace(config, checkpoints=replace(config.checkpoints, keep=1))
    train(config, runs=folder, name="run", observers=[Enough(at or case.steps)])
    if at is not None:
        resume(folder / "run", observers=[Enough(case.steps)])
    shutil.rmtree(folder / "run" / "checkpoints", ignore_errors=True)
