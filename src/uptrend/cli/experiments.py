"""`uptrend lab run, judge and sweep`: experiments, their verdicts, and config values side by
side.
"""

import json
import math
import platform
import shlex
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.text import Text

from uptrend.cli.console import AsFormat, Format, LabFolder, print_json
from uptrend.cli.lab_view import Board, LabView
from uptrend.config import difference
from uptrend.lab import compare, journal, plan, refuse, specification
from uptrend.lab.experiment import ExperimentRuns, judge_all, run_experiments
from uptrend.lab.hypothesis_file import prerequisites_first
from uptrend.lab.journal.stored import build
from uptrend.lab.measure import (
    amount,
    bounds,
    change,
    interval_text,
    is_share,
    level,
    measure,
    titled,
)
from uptrend.lab.notebook import Notebook, slug
from uptrend.lab.plan import PlannedRun
from uptrend.lab.refuse import faults, warn_of_length
from uptrend.lab.sweep import Sweep, SweepRow
from uptrend.lab.sweep import best as best_point
from uptrend.lab.sweep import make as make_sweep
from uptrend.lab.sweep import rows as sweep_rows
from uptrend.lab.workers import Outcome, Workers, read_outcome
from uptrend.policy.known import need_train_extra
from uptrend.present.formatting import NO_VALUE, p_value, percent, plural
from uptrend.present.terminal import columns, terminal
from uptrend.records import Hypothesis, LabError, Run, Status, Verdict
from uptrend.records.files import write_atomically
from uptrend.records.lines import plain
from uptrend.runner.runs import TrainLauncher

# Deviation of differences by which power is announced before any run: 4 to 7 points were seen with
# 200 tasks.
SUPPOSED = 0.05
COLORS = {
    Status.VALIDATED: "bold green",
    Status.INVALIDATED: "bold red",
    Status.INCONCLUSIVE: "bold yellow",
}

On = Literal["local", "ray"]
AtOnce = Annotated[
    int | None, typer.Option(min=1, help="Runs side by side. Default: as many as fit.")
]
OnOption = Annotated[
    On, typer.Option("--on", help="Make runs in processes here, or on a Ray cluster.")
]
Address = Annotated[
    str, typer.Option(help="Ray cluster: local, auto, HOST:PORT or ray://HOST:PORT.")
]
Gpus = Annotated[float, typer.Option(min=0.01, help="Share of a GPU per run on Ray.")]
Keep = Annotated[
    bool,
    typer.Option("--keep-checkpoints", help="Keep the weights of finished runs; they are large."),
]


def run(
    ids: Annotated[
        list[str] | None, typer.Argument(help="Hypotheses: h01 h02 …", show_default=False)
    ] = None,
    all_: Annotated[
        bool, typer.Option("--all", help="Every hypothesis without a verdict.")
    ] = False,
    folder: LabFolder = Path("."),
    at_once: AtOnce = None,
    on: OnOption = "local",
    address: Address = "local",
    gpus: Gpus = 1.0,
    keep_checkpoints: Keep = False,
    restart: Annotated[
        bool, typer.Option("--restart", help="Start again; earlier results are kept aside.")
    ] = False,
    seeds_more: Annotated[
        int, typer.Option(min=0, help="Add seeds, judged by the confidence sequence.")
    ] = 0,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Run though prerequisites are not decided.")
    ] = False,
    format: AsFormat = "text",
) -> None:
    """Run hypotheses over seeds, and judge them.

    \b
    uptrend lab run h01 --dir debug
    uptrend lab run h01 h02 h05 --dir debug --at-once 4
    uptrend lab run --all --dir debug --on ray \\
        --address ray://head:10001

    The criteria are written down before the first step. Existing runs are reused; a stopped
    experiment continues.
    """
    need_train_extra()
    began = time.time()
    notebook = Notebook(folder)
    launcher = TrainLauncher()
    chosen = _choose(notebook, ids or [], all_, anyway)
    for h in chosen if restart or seeds_more else ():  # before anything is set aside or added
        recorded = None if restart else specification.read(notebook, h.id)
        added = len(recorded.more) if recorded else 0
        refuse.check(h, notebook.folder, more_seeds=added + seeds_more)
    for h in chosen:
        if restart:
            specification.restart(notebook, h.id)
        if seeds_more:
            specification.extend(notebook, specification.freeze(notebook, h, launcher), seeds_more)
    workers = _make_workers(on, address, at_once, gpus, keep_checkpoints)
    experiments = [ExperimentRuns(notebook, h, launcher) for h in chosen]
    boards = [
        Board(
            f"{e.hypothesis.id} {e.hypothesis.title}",
            e.hypothesis.metric,
            e.planned_runs,
            e.refused,
        )
        for e in experiments
    ]
    view = LabView(boards, terminal(stderr=format == "json"))
    for line in [line for experiment in experiments for line in _announce(experiment)]:
        view.say(line)
    with _stoppable(f"uptrend lab run {' '.join(h.id for h in chosen)} --dir {folder}"), view:
        verdicts = run_experiments(experiments, launcher, workers, view)
    _finish(experiments, verdicts, round(time.time() - began, 1), format)
    if any(verdict.void for verdict in verdicts):
        raise typer.Exit(1)


def judge(
    ids: Annotated[
        list[str], typer.Argument(help="Hypotheses: h01 h02 …; several are judged as one family.")
    ],
    folder: LabFolder = Path("."),
    format: AsFormat = "text",
) -> None:
    """Judge hypotheses from existing runs.

    \b
    uptrend lab judge h01 --dir debug
    uptrend lab judge h01 h02 --dir debug --format json

    Nothing is run. Where runs are missing, the verdict is that of an experiment that was stopped
    early.
    """
    need_train_extra()
    notebook = Notebook(folder)
    launcher = TrainLauncher()
    experiments = []
    for id in dict.fromkeys(ids):
        h = notebook.hypothesis(id)
        if specification.read(notebook, h.id) is None:
            raise LabError(
                f"{h.id} has not been run yet. Run it: uptrend lab run {h.id} --dir {folder}"
            )
        experiments.append(take_runs(ExperimentRuns(notebook, h, launcher, makes_runs=False)))
    _finish(experiments, judge_all(experiments), None, format)


def take_runs(experiment: ExperimentRuns) -> ExperimentRuns:
    """Give an experiment the outcome of every run that has ended, in the order in which they are
    made.
    """
    before = {row["hash"]: row for row in experiment.rows_before()}
    ended = {
        planned.hash: _ended(planned, before.get(planned.hash, {}))
        for planned in experiment.planned_runs
    }
    gone = [
        row["folder"]
        for row in before.values()
        if row["status"] == "finished" and not ended.get(row["hash"])
    ]
    if gone and not experiment.changes:
        raise LabError(
            f"{experiment.hypothesis.id}: {len(gone)} of its runs are missing ({gone[0]} for one)."
            f" Put them back, or make them again: uptrend lab run {experiment.hypothesis.id} --dir"
            f" {experiment.notebook.folder}"
        )
    for found in filter(None, ended.values()):
        experiment.take(found)
    return experiment


def _ended(planned: PlannedRun, before: Mapping[str, Any]) -> Outcome | None:
    """Return a run's outcome from its records, or from runs.json where it failed for good; None if
    it has not ended.
    """
    if plan.is_finished(planned):
        return Outcome(planned, "finished", was_there=True)
    if before.get("status") == "failed":
        return Outcome(planned, "failed", reason=before["reason"])
    # A run that the probes refused has records but no steps; one that was interrupted is still to
    # come.
    found = read_outcome(planned, 0.0, None) if (planned.folder / "run.json").exists() else None
    return found if found and found.status == "refused" else None


def _make_workers(
    on: On, address: str, at_once: int | None, gpus: float, keep_checkpoints: bool
) -> Workers:
    if on == "local":
        return Workers(at_once, keep_checkpoints)
    from uptrend.lab.ray_workers import RayWorkers

    return RayWorkers(address, at_once, gpus, keep_checkpoints)


@contextmanager
def _stoppable(again: str) -> Iterator[None]:
    """Treat SIGTERM, with which clusters end jobs, as Ctrl-C, and print how to continue."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        print(f"Nothing is lost. Continue with: {again}", file=sys.stderr)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def _choose(notebook: Notebook, ids: Sequence[str], all_: bool, anyway: bool) -> list[Hypothesis]:
    """Return the hypotheses to run; refuse one whose prerequisites are neither decided nor run
    along with it.
    """
    if bool(ids) == all_:
        raise LabError(
            "Name hypotheses (uptrend lab run h01 h02), or all without a verdict (uptrend lab run"
            " --all)."
        )
    chosen = [notebook.hypothesis(id) for id in dict.fromkeys(ids)]
    if all_:
        chosen = [h for h in notebook.hypotheses if h.status in (Status.PENDING, Status.TESTING)]
    if not chosen:
        raise LabError(
            f"Every hypothesis of {notebook.folder} has a verdict. Name one to run it again."
        )
    for h in chosen:
        waits = [
            notebook.hypothesis(id) for id in h.prerequisites if id not in {h.id for h in chosen}
        ]
        undecided = [
            f"{w.id} ({w.status})"
            for w in waits
            if w.status not in (Status.VALIDATED, Status.INVALIDATED)
        ]
        if undecided and not anyway:
            raise LabError(
                f"{h.id} waits for {', '.join(undecided)}. Run that first, or run this one with"
                " --anyway."
            )
        if undecided:
            typer.echo(f"warning: {h.id} waits for {', '.join(undecided)}.", err=True)
    return prerequisites_first(chosen)


def _announce(experiment: ExperimentRuns) -> Iterator[str]:
    """Describe the runs to make, and the power of so many seeds."""
    h = experiment.hypothesis
    if experiment.changes:
        yield (
            f"{h.id}: the specification changed after the first step:"
            f" {'; '.join(experiment.changes)}. Nothing is run, and the verdict is void. Undo the"
            f" change, or start again: uptrend lab run {h.id} --restart"
        )
        return
    there = sum(plan.is_finished(planned) for planned in experiment.planned_runs)
    runs = f"{len(h.arms)} arms × {len(h.seeds)} seeds = {len(experiment.planned_runs)} runs"
    yield f"{h.id} {titled(h)}: {runs}{f', {there} there already' if there else ''}"
    steps = min(planned.config["learning"]["steps"] for planned in experiment.planned_runs)
    for warning in warn_of_length(h, steps):
        yield f"{h.id}: warning: {warning}"
    # Before any run only shares have a known scale; other metrics deviate by who knows how much.
    if is_share(h.metric):
        seen = compare.plan(h, SUPPOSED)
        needed = (
            f"; 80% would take {seen.seeds_for_80} seeds"
            if seen.seeds_for_80 and seen.power < 0.8
            else ""
        )
        yield (
            f"{h.id}: if differences deviate by {amount(h.metric, SUPPOSED)} between seeds, an"
            f" effect of {amount(h.metric, h.smallest)} is validated with a chance of"
            f" {percent(seen.power, 0)}{needed}"
        )


def _finish(
    experiments: Sequence[ExperimentRuns],
    verdicts: Sequence[Verdict],
    seconds: float | None,
    format: Format,
) -> None:
    judged = list(zip(experiments, verdicts, strict=True))
    written = [
        journal.record(e.notebook, e.hypothesis, verdict, _entry(e, seconds))
        for e, verdict in judged
    ]
    if format == "json":
        print_json(
            [
                plain({**asdict(verdict), "runs": experiment.rows()})
                for experiment, verdict in judged
            ]
        )
        return
    console = terminal(soft_wrap=True)
    for (experiment, verdict), paths in zip(judged, written, strict=True):
        head = Text(f"\n{experiment.hypothesis.id} {titled(experiment.hypothesis)}: ", "bold")
        console.print(head.append(verdict.outcome, COLORS[verdict.status]))
        console.print(f"{verdict.sentence}\nConfidence {verdict.confidence}: {verdict.because}.")
        for note in experiment.notes:
            console.print(f"note: {note}")
        console.print(
            f"Written: {next(path for path in paths if path.suffix == '.md')}", style="dim"
        )


def _entry(experiment: ExperimentRuns, seconds: float | None) -> journal.Entry:
    arms = experiment.specification.arms
    control = experiment.hypothesis.control.name
    differences = {
        name: difference(
            plan.what_matters(arms[control]["config"]), plan.what_matters(arm["config"])
        )
        for name, arm in arms.items()
        if name != control and control in arms
    }
    folders = [
        planned.folder
        for planned in experiment.planned_runs
        if (planned.folder / "run.json").exists()
    ]
    machine = platform.machine()
    if folders:
        info = Run(folders[0]).info.get("machine", {})
        threads = plural(info.get("threads") or 1, "thread")
        machine = str(info.get("gpu") or f"{info.get('cpu', 'a CPU')}, {threads} per run")
    return journal.Entry(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        command=shlex.join(["uptrend", *sys.argv[1:]]),
        recipe=experiment.hypothesis.recipe,
        differences=differences,
        runs=tuple(build(journal.ArmRun, row) for row in experiment.rows()),
        seconds=seconds,
        machine=machine,
        version=experiment.specification.uptrend,
        notes=experiment.notes,
    )


def sweep(
    recipe: Annotated[
        Path | None, typer.Argument(help="Recipe: a TOML file.", show_default=False)
    ] = None,
    sets: Annotated[
        list[str] | None, typer.Option("--set", help="Values to try: learning.lr=1e-6,1e-5.")
    ] = None,
    listed: Annotated[
        Path | None, typer.Option("--list", help="TOML file with recipe, [grid], [arms.NAME].")
    ] = None,
    seeds: Annotated[str, typer.Option(help="0-4, or 0,2,5.", show_default="0-4")] = "",
    metric: Annotated[
        str, typer.Option(help="Metric to compare.", show_default="eval/accuracy")
    ] = "",
    steps: Annotated[int, typer.Option(min=0, help="Steps per run; 0 for the recipe's.")] = 0,
    folder: Annotated[
        Path, typer.Option("--dir", help="Folder for runs and results; a lab, or any.")
    ] = Path("."),
    at_once: AtOnce = None,
    on: OnOption = "local",
    address: Address = "local",
    gpus: Gpus = 1.0,
    keep_checkpoints: Keep = False,
    format: AsFormat = "text",
) -> None:
    """Compare config values over seeds.

    \b
    uptrend lab sweep recipes/tiny.toml --dir debug \\
        --set learning.lr=1e-5,2.5e-4 --seeds 0-4
    uptrend lab sweep --list examples/sweeps/d1.toml

    Existing runs are reused and shared with hypotheses. A sweep shows where to look: it has no
    verdict.
    """
    need_train_extra()
    asked = make_sweep(recipe, sets or (), listed, seeds, metric, steps)
    launcher = TrainLauncher()
    h = Hypothesis(
        "sweep", asked.title, str(asked.recipe), asked.arms, metric=asked.metric, seeds=asked.seeds
    )
    fixed = {"learning.steps": asked.steps} if asked.steps else {}
    resolved = {arm.name: plan.resolve(h, arm, asked.recipe, launcher, **fixed) for arm in h.arms}
    planned_runs = plan.planned_runs(h, resolved, folder)
    # Points with the same config would show a difference of exactly 0.
    first = dict[str, PlannedRun]()
    for planned in planned_runs:
        if (other := first.setdefault(planned.hash, planned)) is not planned:
            raise LabError(
                f"The points {other.arm} and {planned.arm} have the same config. Leave one of them"
                " out."
            )
    view = LabView(
        [Board(asked.title, asked.metric, planned_runs)], terminal(stderr=format == "json")
    )
    points = plural(len(asked.arms), "point")
    count = plural(len(planned_runs), "run")
    view.say(f"{asked.title}: {points} × {plural(len(asked.seeds), 'seed')} = {count}")
    workers = _make_workers(on, address, at_once, gpus, keep_checkpoints)
    outcomes: list[Outcome] = []
    making = closing(workers.run(planned_runs, launcher, lambda _: True, view))
    with _stoppable("the same command"), view, making as ended:
        for each in ended:
            outcomes.append(each)
            view.ended(each)
    finished = sorted(
        (o.planned for o in outcomes if o.status == "finished"), key=planned_runs.index
    )
    measured = [measure(Run(e.folder), asked.metric, e.arm, e.seed, folder) for e in finished]
    rows = sweep_rows(asked, measured)
    failed = [o for o in outcomes if o.status != "finished"]
    notes = [f"{o.planned.arm}, seed {o.planned.seed} {o.status}: {o.reason}" for o in failed]
    for arm in dict.fromkeys(planned.arm for planned in finished):
        # the first run of every point
        examined = next(planned for planned in finished if planned.arm == arm)
        notes += [
            f"{arm}: the doctor found {fault}" for fault in faults(Run(examined.folder), set())
        ]
    told = {
        "title": asked.title,
        "recipe": asked.recipe,
        "metric": asked.metric,
        "seeds": asked.seeds,
    }
    arms = {arm.name: arm.overrides for arm in asked.arms}
    runs = [
        {"arm": m.arm, "seed": m.seed, "value": m.value, "before": m.before, "folder": m.run}
        for m in measured
    ]
    says = best_point(asked, rows)
    lines = [asdict(row) for row in rows]
    result = plain(
        {
            "schema": 1,
            **told,
            "arms": arms,
            "rows": lines,
            "runs": runs,
            "notes": notes,
            "says": says,
        }
    )
    path = folder / "sweeps" / f"{slug(asked.title)}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(result, indent=1, ensure_ascii=False).encode() + b"\n")
    if format == "json":
        print_json(result)
        return
    _print_rows(asked, rows)
    for note in result["notes"]:
        typer.echo(f"note: {note}")
    typer.echo(f"{result['says']}\nWritten: {path}")


def _print_rows(asked: Sweep, rows: Sequence[SweepRow]) -> None:
    """Print one row per point: over seeds with intervals, or with one seed by tasks."""
    metric = asked.metric
    least, most = bounds(metric) or (-math.inf, math.inf)
    lines = []
    for row in rows:
        ends = NO_VALUE
        against = ""
        d = row.difference
        # no wider than the metric itself can be
        if row.interval is not None and math.isfinite(row.interval.low):
            ends = (
                f"{level(metric, max(least, row.interval.low))} to"
                f" {level(metric, min(most, row.interval.high))}"
            )
        if d is not None:
            against = f"{change(metric, d.effect)} ({interval_text(metric, d, 1.0)})"
        if row.only is not None:
            against = f"{row.only[0]} and {row.only[1]} tasks (McNemar p {p_value(row.p)})"
        lines.append([row.arm, str(len(row.seeds)), level(metric, row.mean), ends, against])
    numbers = ["seeds", metric, "95% interval of the mean", f"against {asked.arms[0].name}"]
    terminal().print(columns("point", *numbers, rows=lines, right=numbers))
