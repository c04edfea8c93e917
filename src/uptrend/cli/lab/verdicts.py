"""Verdicts as they are kept and printed, by `lab run` and `lab judge` alike."""

import platform
import shlex
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.text import Text

from uptrend.cli.console import terminal
from uptrend.config import difference
from uptrend.doctor.report.table import plain
from uptrend.lab import journal, plan
from uptrend.lab.experiment import ExperimentRuns
from uptrend.lab.journal.stored import asdict, build
from uptrend.records import Run, Status, Verdict
from uptrend.stats.formatting import plural

COLORS = {Status.VALIDATED: "bold green", Status.INVALIDATED: "bold red", Status.INCONCLUSIVE: "bold yellow"}


def keep(experiments: Sequence[ExperimentRuns], verdicts: Sequence[Verdict], began: float | None) -> list[list[Path]]:
    """Write every verdict down where it belongs."""
    seconds = None if began is None else round(time.time() - began, 1)
    return [
        journal.record(experiment.notebook, experiment.h, verdict, entry_of(experiment, seconds))
        for experiment, verdict in zip(experiments, verdicts, strict=True)
    ]


def entry_of(experiment: ExperimentRuns, seconds: float | None) -> journal.Entry:
    """How an experiment was made, for the log."""
    arms, control = experiment.specification.arms, experiment.h.control.name
    differences = {
        name: difference(plan.what_matters(arms[control]["config"]), plan.what_matters(arm["config"]))
        for name, arm in arms.items()
        if name != control and control in arms
    }
    return journal.Entry(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        command=shlex.join(["uptrend", *sys.argv[1:]]),
        recipe=experiment.h.recipe,
        differences=differences,
        runs=tuple(build(journal.ArmRun, row) for row in experiment.rows()),
        seconds=seconds,
        machine=_machine(experiment),
        version=experiment.specification.uptrend,
        notes=experiment.notes,
    )


def _machine(experiment: ExperimentRuns) -> str:
    """What the runs say of where they were made, in words."""
    for planned in experiment.planned_runs:
        if (planned.folder / "run.json").exists():
            info = Run(planned.folder).info.get("machine", {})
            threads = info.get("threads")
            cores = f"{plural(threads or 1, 'thread')} per run"
            return str(info["gpu"]) if info.get("gpu") else f"{info.get('cpu', 'a CPU')}, {cores}"
    return platform.machine()


def print_verdicts(
    experiments: Sequence[ExperimentRuns], verdicts: Sequence[Verdict], written: Sequence[Sequence[Path]]
) -> None:
    """Each verdict in a sentence, and where it is written."""
    console = terminal()
    for experiment, verdict, paths in zip(experiments, verdicts, written, strict=True):
        head = Text(f"\n{experiment.h.id} {experiment.h.title}: ", "bold")
        console.print(head.append(str(verdict.status), COLORS[verdict.status]), soft_wrap=True)
        console.print(Text(verdict.sentence), soft_wrap=True)
        console.print(Text(f"Confidence {verdict.confidence}: {verdict.because}."), soft_wrap=True)
        for note in experiment.notes:
            console.print(Text(f"note: {note}"), soft_wrap=True)
        page = next((path for path in paths if path.suffix == ".md"), None)
        if page is not None:
            console.print(Text(f"Written: {page}", "dim"), soft_wrap=True)


def to_table(experiment: ExperimentRuns, verdict: Verdict) -> dict[str, Any]:
    """A verdict as --format json prints it."""
    table: dict[str, Any] = plain({**asdict(verdict), "runs": experiment.rows()})
    return table
