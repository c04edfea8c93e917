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
from uptrend.records import Hypothesis, LabError, Measured, Run, Status, Verdict
from uptrend.records.files import write_atomically
from uptrend.records.lines import plain
from uptrend.runner.runs import TrainLauncher

# Deviation of differences between seeds that the power announced before any run supposes: 4 to 7
# points were seen with 200 tasks.
SUPPOSED_DEVIATION = 0.05
# Power below which the seeds that would reach it are announced.
USUAL_POWER = 0.8
# Version of a sweep's JSON file.
SWEEP_SCHEMA = 1
STATUS_COLORS = {
    Status.VALIDATED: "bold green",
    Status.INVALIDATED: "bold red",
    Status.INCONCLUSIVE: "bold yellow",
}

WorkerPlace = Literal["local", "ray"]
AtOnce = Annotated[
    int | None, typer.Option(min=1, help="Runs side by side. Default: as many as fit.")
]
WorkerPlaceOption = Annotated[
    WorkerPlace, typer.Option("--on", help="Make runs in processes here, or on a Ray cluster.")
]
Address = Annotated[
    str, typer.Option(help="Ray cluster: local, auto, HOST:PORT or ray://HOST:PORT.")
]
Gpus = Annotated[float, typer.Option(min=0.01, help="Share of a GPU per run on Ray.")]
KeepCheckpoints = Annotated[
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
    on: WorkerPlaceOption = "local",
    address: Address = "local",
    gpus: Gpus = 1.0,
    keep_checkpoints: KeepCheckpoints = False,
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
    hypotheses = _choose(notebook, ids or [], all_, anyway)

    # All are checked before any is restarted or extended.
    if restart or seeds_more:
        for hypothesis in hypotheses:
            recorded = None if restart else specification.read(notebook, hypothesis.id)
            n_added = len(recorded.more) if recorded else 0
            refuse.check(hypothesis, notebook.folder, more_seeds=n_added + seeds_more)
    for hypothesis in hypotheses:
        if restart:
            specification.restart(notebook, hypothesis.id)
        if seeds_more:
            frozen = specification.freeze(notebook, hypothesis, launcher)
            specification.extend(notebook, frozen, seeds_more)

    workers = _make_workers(on, address, at_once, gpus, keep_checkpoints)
    experiments = [ExperimentRuns(notebook, hypothesis, launcher) for hypothesis in hypotheses]
    boards = []
    announcements: list[str] = []
    for experiment in experiments:
        hypothesis = experiment.hypothesis
        title = f"{hypothesis.id} {hypothesis.title}"
        board = Board(title, hypothesis.metric, experiment.planned_runs, experiment.refused)
        boards.append(board)
        announcements += _announce(experiment)
    view = LabView(boards, terminal(stderr=format == "json"))
    for line in announcements:
        view.say(line)

    command = f"uptrend lab run {' '.join(each.id for each in hypotheses)} --dir {folder}"
    with _stoppable(command), view:
        verdicts = run_experiments(experiments, launcher, workers, view)
    _report(experiments, verdicts, round(time.time() - began, 1), format)
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
        hypothesis = notebook.hypothesis(id)
        if specification.read(notebook, hypothesis.id) is None:
            raise LabError(
                f"{hypothesis.id} has not been run yet. Run it: uptrend lab run {hypothesis.id}"
                f" --dir {folder}"
            )
        experiment = ExperimentRuns(notebook, hypothesis, launcher, makes_runs=False)
        take_outcomes(experiment)
        experiments.append(experiment)
    _report(experiments, judge_all(experiments), None, format)


def take_outcomes(experiment: ExperimentRuns) -> None:
    """Give an experiment the outcome of every run that has ended, in the order in which they are
    made.
    """
    recorded_rows = {row["hash"]: row for row in experiment.rows_before()}
    outcomes: dict[str, Outcome] = {}
    for planned in experiment.planned_runs:
        outcome = _read_ended(planned, recorded_rows.get(planned.hash, {}))
        if outcome is not None:
            outcomes[planned.hash] = outcome

    missing = []
    for hash, row in recorded_rows.items():
        if row["status"] == "finished" and hash not in outcomes:
            missing.append(row["folder"])
    if missing and not experiment.changes:
        id = experiment.hypothesis.id
        raise LabError(
            f"{id}: {len(missing)} of its runs are missing ({missing[0]} for one). Put them back,"
            f" or make them again: uptrend lab run {id} --dir {experiment.notebook.folder}"
        )
    for outcome in outcomes.values():
        experiment.take(outcome)


def _read_ended(planned: PlannedRun, recorded_row: Mapping[str, Any]) -> Outcome | None:
    """Return a run's outcome from its records, or from its row of runs.json where it failed for
    good; None if it has not ended.
    """
    if plan.is_finished(planned):
        return Outcome(planned, "finished", was_there=True)
    if recorded_row.get("status") == "failed":
        return Outcome(planned, "failed", reason=recorded_row["reason"])
    # A run that the probes refused has records but no steps; one that was interrupted is still to
    # come.
    if (planned.folder / "run.json").exists():
        outcome = read_outcome(planned, 0.0, None)
        if outcome.status == "refused":
            return outcome
    return None


def _make_workers(
    on: WorkerPlace, address: str, at_once: int | None, gpus: float, keep_checkpoints: bool
) -> Workers:
    if on == "local":
        return Workers(at_once, keep_checkpoints)
    from uptrend.lab.ray_workers import RayWorkers

    return RayWorkers(address, at_once, gpus, keep_checkpoints)


@contextmanager
def _stoppable(command: str) -> Iterator[None]:
    """Treat SIGTERM, with which clusters end jobs, as Ctrl-C, and print the command that
    continues.
    """
    previous_handler = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        print(f"Nothing is lost. Continue with: {command}", file=sys.stderr)
        raise
    finally:
        signal.signal(signal.SIGTERM, previous_handler)


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
        open_statuses = (Status.PENDING, Status.TESTING)
        chosen = [each for each in notebook.hypotheses if each.status in open_statuses]
    if not chosen:
        raise LabError(
            f"Every hypothesis of {notebook.folder} has a verdict. Name one to run it again."
        )
    chosen_ids = {hypothesis.id for hypothesis in chosen}
    for hypothesis in chosen:
        undecided = []
        for id in hypothesis.prerequisites:
            if id in chosen_ids:
                continue
            prerequisite = notebook.hypothesis(id)
            if prerequisite.status not in (Status.VALIDATED, Status.INVALIDATED):
                undecided.append(f"{prerequisite.id} ({prerequisite.status})")
        if not undecided:
            continue
        reason = f"{hypothesis.id} waits for {', '.join(undecided)}."
        if not anyway:
            raise LabError(f"{reason} Run that first, or run this one with --anyway.")
        typer.echo(f"warning: {reason}", err=True)
    return prerequisites_first(chosen)


def _announce(experiment: ExperimentRuns) -> Iterator[str]:
    """Describe the runs to make, and the power of an experiment with that many seeds."""
    hypothesis = experiment.hypothesis
    id = hypothesis.id
    metric = hypothesis.metric
    if experiment.changes:
        yield (
            f"{id}: the specification changed after the first step:"
            f" {'; '.join(experiment.changes)}. Nothing is run, and the verdict is void. Undo the"
            f" change, or start again: uptrend lab run {id} --restart"
        )
        return
    planned_runs = experiment.planned_runs
    line = (
        f"{id} {titled(hypothesis)}: {len(hypothesis.arms)} arms × {len(hypothesis.seeds)} seeds ="
        f" {len(planned_runs)} runs"
    )
    n_finished = sum(plan.is_finished(planned) for planned in planned_runs)
    if n_finished:
        line += f", {n_finished} there already"
    yield line
    steps = min(planned.config["learning"]["steps"] for planned in planned_runs)
    for warning in (*experiment.side_effects, *warn_of_length(hypothesis, steps)):
        yield f"{id}: warning: {warning}"
    # Before any run only shares have a known scale: the deviation of other metrics is unknown.
    if is_share(metric):
        power = compare.plan(hypothesis, SUPPOSED_DEVIATION)
        line = (
            f"{id}: if differences deviate by {amount(metric, SUPPOSED_DEVIATION)} between seeds,"
            f" an effect of {amount(metric, hypothesis.smallest)} is validated with a chance of"
            f" {percent(power.power, 0)}"
        )
        if power.seeds_for_80 and power.power < USUAL_POWER:
            line += f"; 80% would take {power.seeds_for_80} seeds"
        yield line


def _report(
    experiments: Sequence[ExperimentRuns],
    verdicts: Sequence[Verdict],
    seconds: float | None,
    format: Format,
) -> None:
    """Write verdicts into the journal, then print them."""
    journal_files = []
    for experiment, verdict in zip(experiments, verdicts, strict=True):
        entry = _make_entry(experiment, seconds)
        paths = journal.record(experiment.notebook, experiment.hypothesis, verdict, entry)
        journal_files.append(next(path for path in paths if path.suffix == ".md"))
    if format == "json":
        tables = []
        for experiment, verdict in zip(experiments, verdicts, strict=True):
            tables.append(plain({**asdict(verdict), "runs": experiment.rows()}))
        print_json(tables)
        return
    console = terminal(soft_wrap=True)
    for experiment, verdict, path in zip(experiments, verdicts, journal_files, strict=True):
        heading = Text(f"\n{experiment.hypothesis.id} {titled(experiment.hypothesis)}: ", "bold")
        console.print(heading.append(verdict.outcome, STATUS_COLORS[verdict.status]))
        console.print(f"{verdict.sentence}\nConfidence {verdict.confidence}: {verdict.because}.")
        for note in experiment.notes:
            console.print(f"note: {note}")
        console.print(f"Written: {path}", style="dim")


def _make_entry(experiment: ExperimentRuns, seconds: float | None) -> journal.Entry:
    """Return the journal's entry on an experiment."""
    arms = experiment.specification.arms
    control = experiment.hypothesis.control.name
    differences = {}
    if control in arms:
        control_config = plan.what_matters(arms[control]["config"])
        for name, arm in arms.items():
            if name != control:
                arm_config = plan.what_matters(arm["config"])
                differences[name] = difference(control_config, arm_config)
    machine = platform.machine()
    for planned in experiment.planned_runs:
        if (planned.folder / "run.json").exists():
            info = Run(planned.folder).info.get("machine", {})
            threads = plural(info.get("threads") or 1, "thread")
            machine = str(info.get("gpu") or f"{info.get('cpu', 'a CPU')}, {threads} per run")
            break
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
    value_lists: Annotated[
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
    on: WorkerPlaceOption = "local",
    address: Address = "local",
    gpus: Gpus = 1.0,
    keep_checkpoints: KeepCheckpoints = False,
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
    grid = make_sweep(recipe, value_lists or (), listed, seeds, metric, steps)
    launcher = TrainLauncher()
    planned_runs = _plan_points(grid, folder, launcher)

    # Make the runs.
    board = Board(grid.title, grid.metric, planned_runs)
    view = LabView([board], terminal(stderr=format == "json"))
    points = plural(len(grid.arms), "point")
    n_runs = plural(len(planned_runs), "run")
    view.say(f"{grid.title}: {points} × {plural(len(grid.seeds), 'seed')} = {n_runs}")
    workers = _make_workers(on, address, at_once, gpus, keep_checkpoints)
    outcomes: list[Outcome] = []
    outcome_stream = workers.run(planned_runs, launcher, lambda _: True, view)
    with _stoppable("the same command"), view, closing(outcome_stream):
        for outcome in outcome_stream:
            outcomes.append(outcome)
            view.ended(outcome)

    # Measure those that finished, in the order of the points.
    finished = [outcome.planned for outcome in outcomes if outcome.status == "finished"]
    finished.sort(key=planned_runs.index)
    measured = []
    for planned in finished:
        run = Run(planned.folder)
        measured.append(measure(run, grid.metric, planned.arm, planned.seed, folder))
    rows = sweep_rows(grid, measured)

    result = {
        "schema": SWEEP_SCHEMA,
        "title": grid.title,
        "recipe": grid.recipe,
        "metric": grid.metric,
        "seeds": grid.seeds,
        "arms": {arm.name: arm.overrides for arm in grid.arms},
        "rows": [asdict(row) for row in rows],
        "runs": [_measured_table(each) for each in measured],
        "notes": list(_sweep_notes(outcomes, finished)),
        "says": best_point(grid, rows),
    }
    result = plain(result)
    path = folder / "sweeps" / f"{slug(grid.title)}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(result, indent=1, ensure_ascii=False).encode() + b"\n")
    if format == "json":
        print_json(result)
        return
    _print_rows(grid, rows)
    for note in result["notes"]:
        typer.echo(f"note: {note}")
    typer.echo(f"{result['says']}\nWritten: {path}")


def _plan_points(grid: Sweep, folder: Path, launcher: TrainLauncher) -> list[PlannedRun]:
    """Plan the runs of all points, and refuse two points with the same config."""
    hypothesis = Hypothesis(
        "sweep", grid.title, str(grid.recipe), grid.arms, metric=grid.metric, seeds=grid.seeds
    )
    steps = {"learning.steps": grid.steps} if grid.steps else {}
    resolved = {}
    for arm in grid.arms:
        resolved[arm.name] = plan.resolve(hypothesis, arm, grid.recipe, launcher, **steps)
    planned_runs = plan.planned_runs(hypothesis, resolved, folder)
    # Points with the same config would show a difference of exactly 0.
    first_by_hash: dict[str, PlannedRun] = {}
    for planned in planned_runs:
        first = first_by_hash.setdefault(planned.hash, planned)
        if first is not planned:
            raise LabError(
                f"The points {first.arm} and {planned.arm} have the same config. Leave one of them"
                " out."
            )
    return planned_runs


def _measured_table(measured: Measured) -> dict[str, Any]:
    return {
        "arm": measured.arm,
        "seed": measured.seed,
        "value": measured.value,
        "before": measured.before,
        "folder": measured.run,
    }


def _sweep_notes(outcomes: Sequence[Outcome], finished: Sequence[PlannedRun]) -> Iterator[str]:
    """Write which runs did not finish, and what the doctor finds in the first run of each point."""
    for outcome in outcomes:
        if outcome.status != "finished":
            planned = outcome.planned
            yield f"{planned.arm}, seed {planned.seed} {outcome.status}: {outcome.reason}"
    examined_arms: set[str] = set()
    for planned in finished:
        if planned.arm not in examined_arms:
            examined_arms.add(planned.arm)
            for fault in faults(Run(planned.folder), set()):
                yield f"{planned.arm}: the doctor found {fault}"


def _print_rows(grid: Sweep, rows: Sequence[SweepRow]) -> None:
    """Print one row per point: over seeds with intervals, or with one seed by tasks."""
    metric = grid.metric
    lowest, highest = bounds(metric) or (-math.inf, math.inf)
    lines = []
    for row in rows:
        interval = NO_VALUE
        if row.interval is not None and math.isfinite(row.interval.low):
            # No wider than the metric's own range.
            low = level(metric, max(lowest, row.interval.low))
            high = level(metric, min(highest, row.interval.high))
            interval = f"{low} to {high}"
        against = ""
        if row.difference is not None:
            effect = change(metric, row.difference.effect)
            against = f"{effect} ({interval_text(metric, row.difference, 1.0)})"
        if row.only is not None:
            against = f"{row.only[0]} and {row.only[1]} tasks (McNemar p {p_value(row.p)})"
        lines.append([row.arm, str(len(row.seeds)), level(metric, row.mean), interval, against])
    numbers = ["seeds", metric, "95% interval of the mean", f"against {grid.arms[0].name}"]
    terminal().print(columns("point", *numbers, rows=lines, right=numbers))
