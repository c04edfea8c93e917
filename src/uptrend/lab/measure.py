"""From a finished run to the one number by which a hypothesis compares it, and the same by held-out task."""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from uptrend.records import LabError, Measured, Run
from uptrend.stats.intervals import pass_at_k

METRICS = ("eval/accuracy", "eval/reward", "eval/part/NAME", "eval/pass@K")
"""What is measured on the held-out tasks after the last step; words in capitals stand for a name or a number."""
STEP_METRICS = (
    "reward/mean", "reward/std", "reward/min", "reward/max", "reward/part/NAME/mean", "reward/correct/share",
    "advantage/abs/mean", "advantage/dead/share", "advantage/dead_low/share", "advantage/dead_high/share",
    "sampling/rollouts/count", "sampling/failed/count", "sampling/resampled/groups", "sampling/length/mean",
    "sampling/length/max", "sampling/turns/mean", "sampling/distinct/share", "sampling/ended/HOW/share",
    "sampler/kl/mean", "sampler/ratio/mean", "sampler/ess/share", "sampler/gap/mean", "sampler/gap/max",
    "learner/entropy/mean",
    "kl/reference/mean", "loss/total", "loss/policy", "loss/kl", "loss/entropy", "clip/low/share", "clip/high/share",
    "learner/ratio/mean", "gradient/norm/before", "gradient/norm/after", "optimizer/lr", "optimizer/updates/count",
    "optimizer/skipped/count", "weights/norm", "weights/update/norm", "weights/update/GROUP/norm",
    "weights/changed/share", "tokens/ROLE/count", "tokens/trained/ROLE/count", "tokens/padding/share",
    "seconds/PHASE", "memory/peak/gib",
)  # fmt: skip
"""What every step records; its mean over the last quarter of the steps is compared."""
LAST = 4
"""One part in so many of the steps counts as the end of a run."""

Row = Mapping[str, Any]


def is_known(metric: str) -> bool:
    """Whether a hypothesis can be about this metric."""
    return any(_pattern(known).fullmatch(metric) for known in (*METRICS, *STEP_METRICS))


def bounds(metric: str) -> tuple[float, float] | None:
    """Between what a metric lies by its nature; none where it has no bounds."""
    is_share = metric == "eval/accuracy" or metric.startswith("eval/pass@") or metric.endswith("/share")
    return (0.0, 1.0) if is_share else None


def measure(run: Run, metric: str, arm: str, seed: int, folder: Path) -> Measured:
    """A finished run as a verdict sees it; its path is told relative to `folder`."""
    if not is_known(metric):
        raise LabError(f"{metric} is no metric. Write {', '.join(METRICS)}, or one of docs/metrics.md: reward/mean.")
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
    found = line["parts"].get(name) if kind == "part" else line.get(kind)
    if kind.startswith("pass@"):
        found = line["pass_at"].get(kind.removeprefix("pass@"))
    return None if found is None else float(found)


def _what_there_is(line: Row, kind: str) -> str:
    if kind == "part":
        return f"Its reward has the parts {', '.join(line['parts']) or 'none'}."
    if kind.startswith("pass@"):
        has = ", ".join(f"pass@{k}" for k in line["pass_at"])
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
    """What one greedy answer counts; none where it could not be scored and the metric is about those that could."""
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


def _pattern(metric: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"[A-Z]+", "[^/]+", metric.replace("@K", "@[1-9][0-9]*")))
