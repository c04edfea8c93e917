"""`uptrend lab judge`: verdicts from the runs that are there."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from uptrend.cli.lab.verdicts import keep, print_verdicts, to_table
from uptrend.cli.options import Format
from uptrend.lab import specification
from uptrend.lab.experiment import ExperimentRuns, judge_all
from uptrend.lab.notebook import Notebook
from uptrend.lab.plan import PlannedRun, is_finished
from uptrend.lab.workers.work import Outcome, outcome
from uptrend.policy.known import need_train_extra
from uptrend.records import LabError
from uptrend.runner.launcher import TrainLauncher


def command(
    ids: Annotated[list[str], typer.Argument(help="Hypotheses: h01 h02 …; several are judged as one family.")],
    folder: Annotated[Path, typer.Option("--dir", help="The lab's folder.")] = Path("."),
    format: Annotated[Format, typer.Option("--format", "-f", help="How to print the verdicts.")] = Format.TEXT,
) -> None:
    """Judge hypotheses from the runs that are there; nothing is run.

    \b
    uptrend lab judge h01 --dir debug
    uptrend lab judge h01 h02 h03 --dir debug --format json

    Where runs are missing, the verdict is that of an experiment that was stopped early.
    """
    need_train_extra()
    notebook, launcher = Notebook(folder), TrainLauncher()
    experiments = []
    for id in dict.fromkeys(ids):
        h = notebook.hypothesis(id)
        if specification.read(notebook, h.id) is None:
            raise LabError(f"{h.id} has not been run yet. Run it: uptrend lab run {h.id} --dir {folder}")
        experiments.append(_with_runs(ExperimentRuns(notebook, h, launcher, makes_runs=False), folder))
    verdicts = judge_all(experiments)
    written = keep(experiments, verdicts, None)
    if format is Format.JSON:
        typer.echo(json.dumps([to_table(e, j) for e, j in zip(experiments, verdicts, strict=True)], indent=1))
    else:
        print_verdicts(experiments, verdicts, written)


def _with_runs(experiment: ExperimentRuns, folder: Path) -> ExperimentRuns:
    """An experiment that has taken in every run that has ended, in the order in which they are made."""
    before = {row["hash"]: row for row in experiment.rows_before()}
    ended = {planned.hash: _ended(planned, before.get(planned.hash, {})) for planned in experiment.planned_runs}
    gone = [row["folder"] for row in before.values() if row["status"] == "finished" and not ended.get(row["hash"])]
    if gone and not experiment.changes:
        raise LabError(
            f"{experiment.h.id}: {len(gone)} of its runs are not there any more ({gone[0]} for one), and a verdict "
            f"without them would be another. Put them back, or make them again: uptrend lab run {experiment.h.id} "
            f"--dir {folder}"
        )
    for told in filter(None, ended.values()):
        experiment.take(told)
    return experiment


def _ended(planned: PlannedRun, before: Mapping[str, Any]) -> Outcome | None:
    """How a run ended, by its records, or by runs.json where it failed for good; none where it is still to come."""
    if is_finished(planned):
        return Outcome(planned, "finished", was_there=True)
    if before.get("status") == "failed":
        return Outcome(planned, "failed", reason=before["reason"])
    told = outcome(planned, 0.0, None) if (planned.folder / "run.json").exists() else None
    return told if told and told.status == "refused" else None
