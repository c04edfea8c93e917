"""`uptrend lab sweep`: config values over seeds, side by side."""

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from uptrend.cli.console import terminal
from uptrend.cli.lab.run import Address, AtOnce, Gpus, Keep, On, OnOption, make_workers, stoppable
from uptrend.cli.lab.table import Board, choose_view
from uptrend.cli.options import Format
from uptrend.doctor.report.table import plain
from uptrend.lab import plan, sweep, sweep_rows
from uptrend.lab.faults import faults
from uptrend.lab.journal.stored import asdict
from uptrend.lab.journal.verdicts import level
from uptrend.lab.launcher import PlannedRun
from uptrend.lab.measure import bounds, measure
from uptrend.lab.naming import slug
from uptrend.lab.units import change, interval_text
from uptrend.lab.workers.work import Outcome
from uptrend.policy.known import need_train_extra
from uptrend.records import Hypothesis, Interval, LabError, Measured, Run
from uptrend.records.directory import write_whole
from uptrend.runner.launcher import TrainLauncher
from uptrend.stats.formatting import NONE, p_value, plural


def command(
    recipe: Annotated[Path | None, typer.Argument(help="A recipe: a TOML file.", show_default=False)] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", help="Values to try: --set learning.lr=1e-6,1e-5. Repeat for every combination."),
    ] = None,
    listed: Annotated[
        Path | None, typer.Option("--list", help="A TOML file with recipe, [grid] and [arms.NAME].")
    ] = None,
    seeds: Annotated[str, typer.Option(help="0-4, or 0,2,5.", show_default="0-4")] = "",
    metric: Annotated[str, typer.Option(help="What is compared.", show_default="eval/accuracy")] = "",
    steps: Annotated[int, typer.Option(min=0, help="Steps a run; 0 for the recipe's.")] = 0,
    folder: Annotated[Path, typer.Option("--dir", help="Where runs and results go; a lab, or any folder.")] = Path("."),
    at_once: AtOnce = None,
    on: OnOption = On.LOCAL,
    address: Address = "local",
    gpus: Gpus = 1.0,
    keep_checkpoints: Keep = False,
    format: Annotated[Format, typer.Option("--format", "-f", help="How to print the table.")] = Format.TEXT,
) -> None:
    """Run a grid or a list of config values over seeds, and compare them.

    \b
    uptrend lab sweep recipes/tiny.toml --set learning.lr=1e-5,2.5e-4 --seeds 0-4 --dir debug
    uptrend lab sweep recipes/tiny.toml --set learning.lr=1e-4,3e-4 --set sampling.size=8,16 --dir debug
    uptrend lab sweep --list examples/sweeps/d1.toml --dir debug

    Runs that exist are not made again, and are shared with hypotheses. A sweep finds where to look: it has no verdict.
    """
    need_train_extra()
    asked = sweep.make(recipe, sets or (), listed, seeds, metric, steps)
    launcher = TrainLauncher()
    h = Hypothesis("sweep", asked.title, str(asked.recipe), asked.arms, metric=asked.metric, seeds=asked.seeds)
    resolved = {arm.name: plan.resolve(h, arm, asked.recipe, launcher, **_steps(asked)) for arm in h.arms}
    planned_runs = _told_apart(plan.planned_runs(h, resolved, folder))
    view = choose_view([Board(asked.title, asked.metric, planned_runs)], quiet=format is Format.JSON)
    counts = plural(len(asked.arms), "point"), plural(len(asked.seeds), "seed"), plural(len(planned_runs), "run")
    view.say("{}: {} × {} = {}".format(asked.title, *counts))
    workers = make_workers(on, address, at_once, gpus, keep_checkpoints)
    outcomes: list[Outcome] = []
    with (
        stoppable("the same command"),
        view,
        closing(workers.run(planned_runs, launcher, lambda _: True, view)) as ended,
    ):
        for outcome in ended:
            outcomes.append(outcome)
            view.ended(outcome)
    finished = sorted((o.planned for o in outcomes if o.status == "finished"), key=planned_runs.index)
    measured = [measure(Run(e.folder), asked.metric, e.arm, e.seed, folder) for e in finished]
    rows = sweep_rows.rows(asked, measured)
    notes = _notes(asked, outcomes)
    told = _told(asked, rows, measured, notes)
    path = _write(folder, asked, told)
    if format is Format.JSON:
        typer.echo(json.dumps(told, indent=1, ensure_ascii=False))
        return
    print_rows(asked, rows)
    for note in notes:
        typer.echo(f"note: {note}")
    typer.echo(f"{told['says']}\nWritten: {path}")


def _told_apart(planned_runs: Sequence[PlannedRun]) -> list[PlannedRun]:
    """The runs, if no two of them are one: points with the same config would look like a difference of nothing."""
    first = dict[str, PlannedRun]()
    for planned in planned_runs:
        if (other := first.setdefault(planned.hash, planned)) is not planned:
            raise LabError(f"The points {other.arm} and {planned.arm} come to the same config. Leave one of them out.")
    return list(planned_runs)


def _steps(asked: sweep.Sweep) -> dict[str, Any]:
    return {"learning.steps": asked.steps} if asked.steps else {}


def _notes(asked: sweep.Sweep, outcomes: Sequence[Outcome]) -> list[str]:
    """What failed, what was refused, and what the doctor finds in a point's first run."""
    notes = [
        f"{o.planned.arm}, seed {o.planned.seed} {o.status}: {o.reason}" for o in outcomes if o.status != "finished"
    ]
    for arm in asked.arms:
        first = next((o for o in outcomes if o.planned.arm == arm.name and o.status == "finished"), None)
        if first is not None:
            notes += [f"{arm.name}: the doctor found {fault}" for fault in faults(Run(first.planned.folder), set())]
    return notes


def _told(
    asked: sweep.Sweep, rows: Sequence[sweep_rows.SweepRow], measured: Sequence[Measured], notes: Sequence[str]
) -> dict[str, Any]:
    runs = [{"arm": m.arm, "seed": m.seed, "value": m.value, "before": m.before, "folder": m.run} for m in measured]
    table: dict[str, Any] = plain(
        {
            "schema": 1,
            "title": asked.title,
            "recipe": str(asked.recipe),
            "metric": asked.metric,
            "seeds": asked.seeds,
            "arms": {arm.name: arm.overrides for arm in asked.arms},
            "rows": [asdict(row) for row in rows],
            "runs": runs,
            "notes": notes,
            "says": sweep_rows.best(asked, rows),
        }
    )
    return table


def _write(folder: Path, asked: sweep.Sweep, told: Mapping[str, Any]) -> Path:
    path = folder / "sweeps" / f"{slug(asked.title)}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(told, indent=1, ensure_ascii=False).encode() + b"\n")
    return path


def print_rows(asked: sweep.Sweep, rows: Sequence[sweep_rows.SweepRow]) -> None:
    """The table: a point a row."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    has_seeds = len(asked.seeds) > 1
    against = f"against {asked.arms[0].name}"
    headings = ["95% interval of the mean", against] if has_seeds else [f"{against}: tasks only one got right"]
    for heading in ("point", "seeds", asked.metric, *headings):
        table.add_column(heading, justify="left" if heading == "point" else "right")
    for row in rows:
        cells = [_ends(asked.metric, row.interval), _change(asked, row)] if has_seeds else [_two_models(row)]
        table.add_row(row.arm, str(len(row.seeds)), level(asked.metric, row.mean), *cells)
    terminal().print(table)


def _ends(metric: str, interval: Interval | None) -> str:
    """A mean's interval, no wider than the metric itself can be."""
    if interval is None or not math.isfinite(interval.low):
        return NONE
    least, most = bounds(metric) or (-math.inf, math.inf)
    return f"{level(metric, max(least, interval.low))} to {level(metric, min(most, interval.high))}"


def _change(asked: sweep.Sweep, row: sweep_rows.SweepRow) -> str:
    if row.difference is None:
        return ""
    return f"{change(asked.metric, row.difference.effect)} ({interval_text(asked.metric, row.difference, 1.0)})"


def _two_models(row: sweep_rows.SweepRow) -> str:
    if row.only is None or row.p is None:
        return ""
    return f"{row.only[0]} and {row.only[1]} (McNemar p {p_value(row.p)})"
