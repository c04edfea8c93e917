"""From a finished run to the one number by which a hypothesis compares it, and the same by held-out task."""

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from uptrend.config.load import nearest
from uptrend.records import LabError, Measured, Run
from uptrend.records.metrics import compared_metrics, find_metric
from uptrend.stats.intervals import pass_at_k

LAST = 4
"""One part in so many of the steps counts as the end of a run."""

Row = Mapping[str, Any]


def is_known(metric: str) -> bool:
    """Return True for a metric that a hypothesis can be about."""
    row = find_metric(metric)
    return row is not None and bool(row.compared)


def unknown_metric(metric: str) -> str:
    """Explain that a metric is unknown, and name the nearest one and those of the held-out tasks."""
    known = compared_metrics()
    held_out = ", ".join(name for name in known if name.startswith("eval/"))
    return f"is no metric.{nearest(metric, known)} Write {held_out}, or one of docs/metrics.md: reward/mean."


def bounds(metric: str) -> tuple[float, float] | None:
    """Return the least and greatest value that a metric can have; None where it has no such bounds."""
    row = find_metric(metric)
    return None if row is None or row.low is None or row.high is None else (row.low, row.high)


def measure(run: Run, metric: str, arm: str, seed: int, folder: Path) -> Measured:
    """A finished run as a verdict sees it; its path is told relative to `folder`."""
    if not is_known(metric):
        raise LabError(f"{metric} {unknown_metric(metric)}")
    if run.status != "finished":
        raise LabError(f"{run.path} is {run.status}, after {run.last_step} steps; only a finished run is compared.")
    named = _relative(run.path, folder)
    if not metric.startswith("eval/"):
        return Measured(arm, seed, _at_the_end(run, metric), run=named)
    lines = run.eval_lines
    if not lines:
        raise LabError(f"{run.path} was never evaluated, so that it has no {metric}.")
    value = _value(run, lines[-1], metric)
    before = _value(run, lines[0], metric) if lines[0]["step"] == run.start and len(lines) > 1 else None
    tasks, families = _by_task(run, int(lines[-1]["step"]), metric)
    return Measured(arm, seed, value, before, tasks, families, named)


def _relative(path: Path, folder: Path) -> str:
    path, folder = path.resolve(), folder.resolve()
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else str(path)


def _at_the_end(run: Run, metric: str) -> float:
    values = [line[metric] for line in run.metric_lines if line.get(metric) is not None]
    if not values:
        raise LabError(f"{run.path} recorded no {metric}.")
    last = values[-max(1, len(values) // LAST) :]
    return math.fsum(last) / len(last)


def _value(run: Run, line: Row, metric: str) -> float:
    """The metric of one evaluation, from its line."""
    found = in_line(line, metric)
    if found is None:
        kind = metric.removeprefix("eval/").partition("/")[0]
        raise LabError(f"{run.path} has no {metric} after step {line['step']}. {_what_there_is(line, kind)}")
    return found


def in_line(line: Row, metric: str) -> float | None:
    """A held-out metric as an evaluation's line has it; none where it lacks it."""
    kind, _, name = metric.removeprefix("eval/").partition("/")
    found = line.get("parts", {}).get(name) if kind == "part" else line.get(kind)
    if kind.startswith("pass@"):
        found = line.get("pass_at", {}).get(kind.removeprefix("pass@"))
    return None if found is None else float(found)


def _what_there_is(line: Row, kind: str) -> str:
    if kind == "part":
        return f"Its reward has the parts {', '.join(line.get('parts', ())) or 'none'}."
    if kind.startswith("pass@"):
        has = ", ".join(f"pass@{k}" for k in line.get("pass_at", ()))
        return f"It has {has}." if has else "Set eval.attempts to sample several answers a task."
    return "No held-out task could be scored."


def _by_task(run: Run, step: int, metric: str) -> tuple[dict[str, float], dict[str, str]]:
    """The metric of each held-out task, and which taskset each is of."""
    columns = ["group", "index", "sequence", "task", "family", "correct", "reward", "parts"]
    rows = run.eval_rollouts(step).select(columns).to_pylist()
    plays = [row for row in rows if row["sequence"] == 0]
    greedy, attempts = _greedy_and_attempts(plays)
    if metric.startswith("eval/pass@"):
        values = _pass_at(attempts, int(metric.removeprefix("eval/pass@")))
    else:
        score = _score_of(metric)
        values = {row["task"]: value for row in greedy if (value := score(row)) is not None}
    return values, {row["task"]: row["family"] for row in greedy if row["task"] in values}


def _greedy_and_attempts(plays: Iterable[Row]) -> tuple[list[Row], list[Row]]:
    """The greedy answer of each task comes first in the file; sampled attempts follow."""
    first: dict[str, Row] = {}
    rest = [row for row in plays if first.setdefault(row["group"], row) is not row]
    return list(first.values()), rest


def _score_of(metric: str) -> Callable[[Row], float | None]:
    """Score of one greedy answer; None where it was not scored and the metric counts scored ones only."""
    if metric == "eval/accuracy":
        return lambda row: float(bool(row["correct"]))
    if metric == "eval/reward":
        return lambda row: row["reward"]
    name = metric.removeprefix("eval/part/")
    return lambda row: next((part["value"] for part in row["parts"] if part["name"] == name), None)


def _pass_at(attempts: Iterable[Row], k: int) -> dict[str, float]:
    rights: dict[str, list[bool]] = {}
    for row in attempts:
        rights.setdefault(row["task"], []).append(bool(row["correct"]))
    return {task: pass_at_k(sum(right), len(right), k) for task, right in rights.items()}
