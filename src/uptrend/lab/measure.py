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
    is_first_step,
    is_gain,
    name_of,
    outcome_of,
)
from uptrend.records.table import RolloutTable
from uptrend.stats.intervals import pass_at_k

# A run's end is the last of this many equal parts of its steps.
PARTS_OF_RUN = 4

EvaluationLine = Mapping[str, Any]


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
    """Return the least and greatest value that a metric can have; None if it is not bounded."""
    row = compared_row(metric)
    if row is None or row.low is None or row.high is None:
        return None
    return row.low, row.high


def headroom(metric: str, direction: Direction, level: float) -> float:
    """Return how far a metric can still go from a level in the claimed direction; infinite where
    nothing bounds it.
    """
    row = compared_row(metric)
    up = math.inf
    down = math.inf
    if row is not None and row.high is not None:
        up = row.high - level
    if row is not None and row.low is not None:
        down = level - row.low
    if direction is Direction.EITHER:
        return max(up, down)
    return up if direction is Direction.UP else down


def curve_of(metric: str) -> str:
    """Return the metric whose curve shows what is compared: of a fall, that which fell."""
    return metric.removesuffix(FALL_SUFFIX) if is_fall(metric) else metric


def measure(run: Run, metric: str, arm: str, seed: int, folder: Path) -> Measured:
    """Return a finished run as a verdict sees it, with its path relative to `folder`."""
    if not is_known(metric):
        raise unknown_metric(metric)
    if run.status != "finished":
        raise LabError(
            f"{run.path} is {run.status}, after {run.last_step} steps; only a finished run is"
            " compared."
        )
    path = run.path.resolve()
    lab = folder.resolve()
    name = path.relative_to(lab).as_posix() if path.is_relative_to(lab) else str(path)
    if not metric.startswith("eval/"):
        return Measured(arm, seed, _value_of_steps(run, metric), run=name)

    evaluations = run.eval_lines
    if not evaluations:
        raise LabError(f"{run.path} was never evaluated, so that it has no {metric}.")
    last = evaluations[-1]
    value = _value(run, last, metric)
    first_step_goal = first_step(metric)
    if first_step_goal is not None:
        _, goal = first_step_goal
        for line in evaluations:
            reached = in_line(line, metric)
            if reached is not None and reached >= goal:
                return Measured(arm, seed, float(line["step"]), run=name)
        return Measured(arm, seed, float(last["step"] + 1), run=name, reached=False)

    before = None
    if evaluations[0]["step"] == run.start and len(evaluations) > 1:
        before = _value(run, evaluations[0], metric)
    if is_gain(metric):
        if before is None:
            raise LabError(
                f"{run.path} was not evaluated before its first step, so that it has no {metric}."
            )
        return Measured(arm, seed, value - before, 0.0, run=name)
    tasks, families = _values_by_task(run, int(last["step"]), metric)
    return Measured(arm, seed, value, before, tasks, families, name)


def _value_of_steps(run: Run, metric: str) -> float:
    """Return the mean of a metric of the steps over a run's end, or its fall to there."""
    recorded = curve_of(metric)
    values = [line[recorded] for line in run.metric_lines if line.get(recorded) is not None]
    if not values:
        raise LabError(f"{run.path} recorded no {recorded}.")
    width = max(1, len(values) // PARTS_OF_RUN)
    end = math.fsum(values[-width:]) / width
    if not is_fall(metric):
        return end
    # The best stretch is as long as the end, so that noise lifts both alike.
    stretches = np.convolve(values, np.ones(width) / width, "valid")
    return max(0.0, float(stretches.max()) - end)


def in_line(line: EvaluationLine, metric: str) -> float | None:
    """Return a held-out metric from an evaluation's line, for a first step the metric that is to
    reach a value.
    """
    base, _ = first_step(metric) or (_without_gain(metric), None)
    kind, _, name = base.removeprefix("eval/").partition("/")
    if kind == "part":
        value = line.get("parts", {}).get(name)
    elif kind.startswith("pass@"):
        value = line.get("pass_at", {}).get(kind.removeprefix("pass@"))
    else:
        value = line.get(kind)
    return None if value is None else float(value)


def _value(run: Run, line: EvaluationLine, metric: str) -> float:
    """Return a held-out metric from an evaluation's line that should have it."""
    value = in_line(line, metric)
    if value is not None:
        return value
    names = list(line.get("parts", ()))
    names += [f"pass@{k}" for k in line.get("pass_at", ())]
    recorded = ", ".join(names) or "none"
    raise lab_error("no-metric", run=run.path, metric=metric, step=line["step"], recorded=recorded)


def _values_by_task(run: Run, step: int, metric: str) -> tuple[dict[str, float], dict[str, str]]:
    """Return a held-out metric and the taskset by task."""
    columns = ["group", "sequence", "task", "family", "correct", "reward", "parts"]
    table = RolloutTable(step, run.eval_rollouts(step).select(columns))
    tasks = table.values("task")
    correct = [bool(value) for value in table.values("correct")]

    values: dict[str, float] = {}
    if metric.startswith("eval/pass@"):
        k = int(metric.removeprefix("eval/pass@"))
        attempts: dict[str, list[bool]] = {}
        for n in np.flatnonzero(~table.greedy_n).tolist():
            attempts.setdefault(tasks[n], []).append(correct[n])
        for task, is_right in attempts.items():
            values[task] = pass_at_k(sum(is_right), len(is_right), k)
    else:
        scores: list[Any] = correct
        if metric == "eval/reward":
            scores = table.values("reward")
        elif metric != "eval/accuracy":
            scores = _part_scores(table, metric.removeprefix("eval/part/"))
        for n in np.flatnonzero(table.greedy_n).tolist():
            # An answer that was not scored counts in the accuracy only.
            if scores[n] is not None:
                values[tasks[n]] = float(scores[n])

    families: dict[str, str] = {}
    for task, family in zip(tasks, table.values("family"), strict=True):
        if task in values:
            families[task] = family
    return values, families


def _part_scores(table: RolloutTable, name: str) -> list[float | None]:
    """Return one part of each rollout's reward; None where it has no such part."""
    scores: list[float | None] = []
    for parts in table.values("parts"):
        values = {part["name"]: part["value"] for part in parts or ()}
        scores.append(values.get(name))
    return scores


def is_share(metric: str) -> bool:
    """Return True for a share, which is shown in percent and compared in points."""
    row = compared_row(metric)
    return row is not None and row.is_share


def _without_gain(metric: str) -> str:
    """Return the metric whose gain this is, else the metric itself."""
    return metric.removesuffix(GAIN_SUFFIX) if is_gain(metric) else metric


def titled(hypothesis: Hypothesis) -> str:
    """Return a hypothesis's title, followed by what is measured unless the title names it.

    A verdict beside a title holds for nothing else: "the run does not collapse" is not shown by a
    final accuracy.
    """
    outcome = outcome_of(hypothesis.metric, hypothesis.direction)
    if not hypothesis.arms or outcome.casefold() in hypothesis.title.casefold():
        return hypothesis.title
    return f"{hypothesis.title} (measured: {outcome})"


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
    return f"{value:g} steps" if is_first_step(metric) else f"{value:g}"


def effect_text(metric: str, effect: float) -> str:
    """Format an effect with its unit: +6.3 points of held-out accuracy, or −20 steps to held-out
    accuracy 0.8.
    """
    if is_fall(metric):
        unit = " in the"
    elif is_first_step(metric):
        unit = ""
    elif is_share(metric):
        unit = " points of"
    else:
        unit = " of"
    return f"{change(metric, effect)}{unit} {name_of(metric)}"


def interval_text(metric: str, interval: Interval, sign: float) -> str:
    """Format an interval's ends as measured, the lesser first: +2.1 to +10.5."""
    low, high = sorted((sign * interval.low, sign * interval.high))
    return formatting.interval(low, high, is_share(metric))
