"""`uptrend lab judge`: verdicts from the runs that are there."""

import json
from pathlib import Path
from typing import Annotated

import typer

from uptrend.cli.lab.launcher import TrainLauncher
from uptrend.cli.lab.verdicts import Format, keep, print_verdicts, to_table
from uptrend.lab import specification
from uptrend.lab.experiment import Experiment, verdicts
from uptrend.lab.notebook import Notebook
from uptrend.lab.plan import is_finished
from uptrend.lab.workers.work import Outcome
from uptrend.policy.known import need_train_extra
from uptrend.records import LabError


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
        experiments.append(_with_runs(Experiment(notebook, h, launcher)))
    judgements = verdicts(experiments)
    written = keep(experiments, judgements, None)
    if format is Format.JSON:
        typer.echo(json.dumps([to_table(e, j) for e, j in zip(experiments, judgements, strict=True)], indent=1))
    else:
        print_verdicts(experiments, judgements, written)


def _with_runs(experiment: Experiment) -> Experiment:
    """An experiment that has taken in every finished run, in the order in which they are made."""
    for errand in experiment.errands:
        if is_finished(errand):
            experiment.take(Outcome(errand, "finished", was_there=True))
    return experiment
