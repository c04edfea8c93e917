"""Make one case's run: the probes of preflight with the fault in place, then training, until it is
long enough.

One folder per case: `run/` (the run directory), `preflight.json` (what the probes said) and
`case.json`.
"""

import json
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.faults.case import Case
from benchmarks.faults.recipes import make_config

from uptrend.config import Config
from uptrend.doctor.probes import PROBES, differential
from uptrend.records import Run
from uptrend.records.directory import set_aside
from uptrend.runner.preflight import Preflight, run_named_probes
from uptrend.runner.prepare import prepare
from uptrend.runner.runs import resume_run, start
from uptrend.training.components import RunContext
from uptrend.training.observer import StepRecord, Stop

LEFT_OUT = ("control",)
"""Probes that `uptrend preflight` asks and the fault benchmark does not: slow, and no fault needs
them.
"""
GROUPS = 8
"""Groups that the probes play."""


class Enough:
    """Observer that stops a run after some steps: the recipe names more of them, as a person's
    would.
    """

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def before(self, run: Run) -> None:
        """Do nothing."""

    def step(self, record: StepRecord) -> Stop | None:
        """Stop after enough steps."""
        return Stop("the fault benchmark has seen enough") if record.step >= self._steps else None

    def after(self, run: Run) -> None:
        """Do nothing."""


def make_run(case: Case, to: Path) -> Path:
    """Make the run, unless it is there already; return the case's folder."""
    folder = to / case.name.replace(" ", "-").replace(",", "")
    if (folder / "case.json").exists():
        return folder
    if folder.exists():  # an attempt that did not come to its end
        set_aside(folder)
    folder.mkdir(parents=True)
    began = time.perf_counter()
    config = make_config(case.recipe, case.settings, two_turns=case.two_turns, seed=case.seed)
    report = _preflight(case.strength.alter(prepare(config)))
    (folder / "preflight.json").write_text(json.dumps(report, ensure_ascii=False))
    _train(case, config, folder)
    facts = {"case": case.name, "recipe": case.recipe, "seed": case.seed, "steps": case.steps, "half": case.half,
             "settings": dict(case.settings), "fault": case.fault.id if case.fault else None,
             "seconds": round(time.perf_counter() - began, 1)}  # fmt: skip
    (folder / "case.json").write_text(json.dumps(facts, indent=1))
    return folder


def _preflight(context: RunContext) -> dict[str, Any]:
    names = [name for name, probe in PROBES.items() if not probe.full and name not in LEFT_OUT]
    began = time.perf_counter()
    results = list(run_named_probes(context, names, GROUPS))
    return Preflight(
        context.config.name, results, differential(results), time.perf_counter() - began
    ).to_table()


def _train(case: Case, config: Config, folder: Path) -> None:
    at = case.fault.resumed_at if case.fault else None
    config = replace(config, checkpoints=replace(config.checkpoints, keep=1))
    context = case.strength.alter(prepare(config))
    start(context, folder / "run", [*case.strength.observers(context), Enough(at or case.steps)])
    if at is not None:
        resume_run(folder / "run", observers=[Enough(case.steps)], alter=case.strength.alter)
    shutil.rmtree(folder / "run" / "checkpoints", ignore_errors=True)
