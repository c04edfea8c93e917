"""From a finished run to the one number by which a hypothesis compares it, and metrics in words.

`eval/accuracy/first-step@0.8` is the step at which a held-out metric first reaches a value. A run
that never does has no such step: it counts as later than every step that was run
(`Measured.reached` is False), and no mean is computed.

`eval/accuracy/gain` is a held-out metric's last value less its first. It alone compares arms with
other held-out tasks, seed by seed: what a run gained means the same on each, and no task of one is
a task of the other.

`reward/mean/fall` is how far the end of a run lies below its best stretch: 0 where the end is the
best. It measures a collapse, which a final value does not: a run may end low because it never rose.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from uptrend.config.load import nearest
from uptrend.lab import lab_error
from uptrend.present import formatting
from uptrend.records import Direction, Hypothesis, Interval, LabError, Measured, Run
from uptrend.records.metrics import (
    FALL_SUFFIX,
    GAIN_SUFFIX,
    compared_metrics,
    compared_row,
    first_step,
    is_fall,
    is_gain,
    name_of,
    outcome_of,
)
from uptrend.records.table import RolloutTable
from uptrend.stats.intervals import pass_at_k

# The last 1/LAST of the steps count as the end of a run.
LAST = 4

Row = Mapping[str, Any]


def is_known(metric: str) -> bool:
    """Return True for a metric that a hypothesis can be about."""
    base, _ = first_step(metric) or (metric, None)
    row = compared_row(base)
    return row is not None and bool(row.compared)


def unknown_metric(metric: str) -> LabError:
    """Return an error that names the nearest metric and those of the held-out tasks."""
    known = compared_metrics()
    heldout = ", ".join(name for name in known if name.startswith("eval/"))
    return lab_error("unknown-metric", metric=metric, hint=nearest(metric, known), known=heldout)


def bounds(metric: str) -> tuple[float, float] | None:
    """Return the least and greatest value that a metric can have; None where it has no such
    bounds.
    """
    row = compared_row(metric)
    return None if row is None or row.low is None or row.high is None else (row.low, row.high)


def room(metric: str, direction: Direction, level: float) -> float:
    """Return how far a metric can still go from a level in the claimed direction; infinite where
    nothing bounds it.
    """
    row = compared_row(metric)
    up = math.inf if row is None or row.high is None else row.high - level
    down = math.inf if row is None or row.low is None else level - row.low
    return {Direction.UP: up, Direction.DOWN: down, Direction.EITHER: max(up, down)}[direction]


def curve_of(metric: str) -> str:
    """Return the metric whose curve shows what is compared: of a fall, that which fell."""
    return metric.removesuffix(FALL_SUFFIX) if is_fall(metric) else metric


def measure(run: Run, metric: str, arm: str, seed: int, folder: Path) -> Measured:
    """Return a finished run as a verdict sees it; its path is told relative to `folder`."""
    if not is_known(metric):
        raise unknown_metric(metric)
    if run.status != "finished":
        raise LabError(
            f"{run.path} is {run.status}, after {run.last_step} steps; only a finished run is"
            " compared."
        )
    path = run.path.resolve()
    lab = folder.resolve()
    named = path.relative_to(lab).as_posix() if path.is_relative_to(lab) else str(path)
    if not metric.startswith("eval/"):
        recorded = curve_of(metric)
        values = [line[recorded] for line in run.metric_lines if line.get(recorded) is not None]
        if not values:
            raise LabError(f"{run.path} recorded no {recorded}.")
        width = max(1, len(values) // LAST)
        end = math.fsum(values[-width:]) / width
        # the best stretch is as long as the end, so that noise lifts both alike
        if is_fall(metric):
            stretches = np.convolve(values, np.ones(width) / width, "valid")
            return Measured(arm, seed, max(0.0, float(stretches.max()) - end), run=named)
        return Measured(arm, seed, end, run=named)
    lines = run.eval_lines
    if not lines:
        raise LabError(f"{run.path} was never evaluated, so that it has no {metric}.")
    value = _value(run, lines[-1], metric)
    if (goal := first_step(metric)) is not None:
        steps = [
            line["step"]
            for line in lines
            if (seen := in_line(line, metric)) is not None and seen >= goal[1]
        ]
        step = steps[0] if steps else lines[-1]["step"] + 1
        return Measured(arm, seed, float(step), run=named, reached=bool(steps))
    before = (
        _value(run, lines[0], metric) if lines[0]["step"] == run.start and len(lines) > 1 else None
    )
    if is_gain(metric):
        if before is None:
            raise LabError(
                f"{run.path} was not evaluated before its first step, so that it has no {metric}."
            )
        return Measured(arm, seed, value - before, 0.0, run=named)
    tasks, families = _by_task(run, int(lines[-1]["step"]), metric)
    return Measured(arm, seed, value, before, tasks, families, named)


def in_line(line: Row, metric: str) -> float | None:
    """Return a held-out metric as an evaluation's line has it, for a first step the metric that is
    to reach a value.
    """
    base, _ = first_step(metric) or (_ungained(metric), None)
    kind, _, name = base.removeprefix("eval/").partition("/")
    found = line.get("parts", {}).get(name) if kind == "part" else line.get(kind)
    if kind.startswith("pass@"):
        found = line.get("pass_at", {}).get(kind.removeprefix("pass@"))
    return None if found is None else float(found)


def _value(run: Run, line: Row, metric: str) -> float:
    found = in_line(line, metric)
    if found is not None:
        return found
    has = ", ".join([*line.get("parts", ()), *(f"pass@{k}" for k in line.get("pass_at", ()))])
    raise lab_error("no-metric", run=run.path, metric=metric, step=line["step"], has=has or "none")


def _by_task(run: Run, step: int, metric: str) -> tuple[dict[str, float], dict[str, str]]:
    columns = ["group", "sequence", "task", "family", "correct", "reward", "parts"]
    table = RolloutTable(step, run.eval_rollouts(step).select(columns))
    tasks = table.values("task")
    correct = [bool(value) for value in table.values("correct")]
    values: dict[str, float] = {}
    if metric.startswith("eval/pass@"):
        k = int(metric.removeprefix("eval/pass@"))
        attempts: dict[str, list[bool]] = {}
        for place in np.flatnonzero(~table.greedy_n).tolist():
            attempts.setdefault(tasks[place], []).append(correct[place])
        values = {task: pass_at_k(sum(right), len(right), k) for task, right in attempts.items()}
    else:
        scores: list[Any] = correct
        if metric == "eval/reward":
            scores = table.values("reward")
        elif metric != "eval/accuracy":
            name = metric.removeprefix("eval/part/")
            parts_by_name = [
                {part["name"]: part["value"] for part in parts or ()}
                for parts in table.values("parts")
            ]
            scores = [parts.get(name) for parts in parts_by_name]
        for place in np.flatnonzero(table.greedy_n).tolist():
            # an answer that was not scored counts in the accuracy only
            if scores[place] is not None:
                values[tasks[place]] = float(scores[place])
    families = dict(zip(tasks, table.values("family"), strict=True))
    return values, {task: family for task, family in families.items() if task in values}


def is_share(metric: str) -> bool:
    """Return True for a share, which is shown in percent and compared in points."""
    row = compared_row(metric)
    return row is not None and row.is_share


def _ungained(metric: str) -> str:
    return metric.removesuffix(GAIN_SUFFIX) if is_gain(metric) else metric


def titled(h: Hypothesis) -> str:
    """Return a hypothesis's title, followed by what is measured where the title itself does not say
    it.

    A verdict beside a title holds for nothing else: "the run does not collapse" is not shown by a
    final accuracy.
    """
    outcome = outcome_of(h.metric, h.direction)
    is_said = not h.arms or outcome.casefold() in h.title.casefold()
    return h.title if is_said else f"{h.title} (measured: {outcome})"


def level(metric: str, value: float | None) -> str:
    """Format a value of a metric: 31.2%, or 0.312."""
    return formatting.level(value, is_share(metric))


def change(metric: str, value: float) -> str:
    """Format a difference with its sign, without its unit: +6.3, for points, or +0.063."""
    return formatting.change(value, is_share(metric))


def amount(metric: str, value: float) -> str:
    """Format a size with its unit: 5 points."""
    if is_share(metric):
        return f"{100 * value:g} points"
    return f"{value:g} steps" if first_step(metric) else f"{value:g}"


def effect_text(metric: str, effect: float) -> str:
    """Format an effect with its unit: +6.3 points of held-out accuracy, or −20 steps to held-out
    accuracy 0.8.
    """
    unit = "" if first_step(metric) else " points of" if is_share(metric) else " of"
    unit = " in the" if is_fall(metric) else unit
    return f"{change(metric, effect)}{unit} {name_of(metric)}"


def interval_text(metric: str, interval: Interval, sign: float) -> str:
    """Format an interval's ends as measured, the lesser first: +2.1 to +10.5."""
    ends = sorted((sign * interval.low, sign * interval.high))
    return formatting.interval(ends[0], ends[1], is_share(metric))
