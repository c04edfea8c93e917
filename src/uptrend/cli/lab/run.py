"""`uptrend lab run`: a hypothesis's arms over its seeds, and the verdict."""

import json
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from uptrend.cli.lab.table import Board, choose_view
from uptrend.cli.lab.verdicts import keep, print_verdicts, to_table
from uptrend.cli.options import Format
from uptrend.lab import judge, refuse, specification
from uptrend.lab.experiment import ExperimentRuns, together
from uptrend.lab.hypothesis_file import in_order
from uptrend.lab.measure import amount, is_share
from uptrend.lab.notebook import Notebook
from uptrend.lab.plan import is_finished
from uptrend.lab.workers.local import LocalWorkers
from uptrend.lab.workers.work import Workers
from uptrend.policy.known import need_train_extra
from uptrend.records import Hypothesis, LabError, Status
from uptrend.runner.launcher import TrainLauncher
from uptrend.stats.formatting import percent

SUPPOSED = 0.05
"""The deviation of differences by which power is told before any run is there: 4 to 7 points with 200 tasks."""


class On(StrEnum):
    """Who makes the runs."""

    LOCAL = "local"
    RAY = "ray"


Ids = Annotated[list[str] | None, typer.Argument(help="Hypotheses: h01 h02 …", show_default=False)]
Dir = Annotated[Path, typer.Option("--dir", help="The lab's folder.")]
AtOnce = Annotated[int | None, typer.Option(min=1, help="Runs side by side; as many as fit without it.")]
OnOption = Annotated[On, typer.Option("--on", help="Who makes the runs: processes here, or a Ray cluster.")]
Address = Annotated[str, typer.Option(help="Of the Ray cluster: local, auto, HOST:PORT or ray://HOST:PORT.")]
Gpus = Annotated[
    float, typer.Option(min=0.01, help="The share of a GPU that a run takes on Ray; as many run on one at once.")
]
Keep = Annotated[bool, typer.Option("--keep-checkpoints", help="Keep finished runs' weights; they are large.")]


def command(
    ids: Ids = None,
    all_: Annotated[bool, typer.Option("--all", help="Every hypothesis without a verdict.")] = False,
    folder: Dir = Path("."),
    at_once: AtOnce = None,
    on: OnOption = On.LOCAL,
    address: Address = "local",
    gpus: Gpus = 1.0,
    keep_checkpoints: Keep = False,
    restart: Annotated[bool, typer.Option("--restart", help="Begin anew; what was found is kept aside.")] = False,
    seeds_more: Annotated[
        int, typer.Option("--seeds-more", min=0, help="Add so many seeds, judged by the confidence sequence.")
    ] = 0,
    anyway: Annotated[bool, typer.Option("--anyway", help="Run though prerequisites are not decided.")] = False,
    format: Annotated[Format, typer.Option("--format", "-f", help="How to print the verdicts.")] = Format.TEXT,
) -> None:
    """Run the arms of hypotheses over their seeds, and judge them.

    \b
    uptrend lab run h01 --dir debug
    uptrend lab run h01 h02 h05 --dir debug --at-once 4
    uptrend lab run --all --dir debug --on ray --address ray://head:10001

    What decides is written down before the first step. Runs that exist are not made again; an experiment that was
    stopped goes on. Ctrl-C has every run end its step and write a checkpoint.
    """
    need_train_extra()
    began = time.time()
    notebook, launcher = Notebook(folder), TrainLauncher()
    chosen = _chosen(notebook, ids or [], all_)
    _check_prerequisites(notebook, chosen, anyway)
    for h in chosen if restart or seeds_more else ():
        refuse.check(h, notebook.folder)  # before anything is set aside or added
    if restart:
        for h in chosen:
            specification.restart(notebook, h.id)
    if seeds_more:
        for h in chosen:
            specification.extend(notebook, specification.freeze(notebook, h, launcher), seeds_more)
    workers = make_workers(on, address, at_once, gpus, keep_checkpoints)
    experiments = [ExperimentRuns(notebook, h, launcher) for h in chosen]
    boards = [Board(f"{e.h.id} {e.h.title}", e.h.metric, e.planned_runs, e.refused) for e in experiments]
    view = choose_view(boards, quiet=format is Format.JSON)
    for experiment in experiments:
        for line in _announce(experiment):
            view.say(line)
    with stoppable(f"uptrend lab run {' '.join(h.id for h in chosen)} --dir {folder}"), view:
        verdicts = together(experiments, launcher, workers, view)
    written = keep(experiments, verdicts, began)
    if format is Format.JSON:
        typer.echo(json.dumps([to_table(e, j) for e, j in zip(experiments, verdicts, strict=True)], indent=1))
    else:
        print_verdicts(experiments, verdicts, written)
    if any(verdict.void for verdict in verdicts):
        raise typer.Exit(1)


def make_workers(on: On, address: str, at_once: int | None, gpus: float, keep_checkpoints: bool) -> Workers:
    """Whoever makes the runs."""
    if on is On.LOCAL:
        return LocalWorkers(at_once, keep_checkpoints)
    from uptrend.lab.workers.ray import RayWorkers

    return RayWorkers(address, at_once, gpus, keep_checkpoints)


@contextmanager
def stoppable(again: str) -> Iterator[None]:
    """Hear the end of a job as Ctrl-C, and say how to go on."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        print(f"Nothing is lost. Go on with: {again}", file=sys.stderr)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def _chosen(notebook: Notebook, ids: Sequence[str], all_: bool) -> list[Hypothesis]:
    if bool(ids) == all_:
        raise LabError("Name hypotheses (uptrend lab run h01 h02), or all without a verdict (uptrend lab run --all).")
    if not all_:
        return in_order([notebook.hypothesis(id) for id in dict.fromkeys(ids)])
    found = [h for h in notebook.hypotheses if h.status in (Status.PENDING, Status.TESTING)]
    if not found:
        raise LabError(f"Every hypothesis of {notebook.folder} has a verdict. Name one to run it again.")
    return in_order(found)


def _check_prerequisites(notebook: Notebook, chosen: Sequence[Hypothesis], anyway: bool) -> None:
    """What a hypothesis waits for should be decided, or be decided along with it."""
    together = {h.id for h in chosen}
    for h in chosen:
        waits = [notebook.hypothesis(id) for id in h.prerequisites if id not in together]
        open_ = [w for w in waits if w.status not in (Status.VALIDATED, Status.INVALIDATED)]
        if open_:
            told = ", ".join(f"{w.id} ({w.status})" for w in open_)
            if not anyway:
                raise LabError(f"{h.id} waits for {told}. Run that first, or this one nevertheless with --anyway.")
            typer.echo(f"warning: {h.id} waits for {told}.", err=True)


def _announce(experiment: ExperimentRuns) -> list[str]:
    """What will be run, and what so many seeds can show."""
    h = experiment.h
    if experiment.changes:
        changes = "; ".join(experiment.changes)
        return [
            f"{h.id}: the specification changed after the first step: {changes}. Nothing is run, and the verdict is "
            f"void. Undo the change, or begin anew: uptrend lab run {h.id} --restart"
        ]
    there = sum(is_finished(planned) for planned in experiment.planned_runs)
    runs = f"{len(h.arms)} arms × {len(h.seeds)} seeds = {len(experiment.planned_runs)} runs"
    lines = [f"{h.id} {h.title}: {runs}{f', {there} there already' if there else ''}"]
    if is_share(h.metric):
        seen = judge.plan(h, SUPPOSED)
        needed = f"; 80% would take {seen.seeds_for_80} seeds" if seen.seeds_for_80 and seen.power < 0.8 else ""
        lines.append(
            f"{h.id}: where differences deviate by {amount(h.metric, SUPPOSED)} between seeds, an effect of "
            f"{amount(h.metric, h.smallest)} is validated with a chance of {percent(seen.power, 0)}{needed}"
        )
    return lines
