"""Summary of a run for tables, pages and sentences: one row, its evaluations, and its curves."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from uptrend.records.directory import LOG_PATH
from uptrend.records.errors import RecordError
from uptrend.records.finding import causes, headline
from uptrend.records.metrics import shown_metrics
from uptrend.records.run import Run
from uptrend.records.table import Row
from uptrend.records.view import Floats, taskset_names, value_at, values_of

HELDOUT_CURVE = "held-out accuracy"
"""Name of the accuracy's curve, and of the evaluations of a run."""
SETTING_COLUMNS = {"model": "model.name", "loss": "learning.loss", "seed": "seed"}
"""Settings in the row of a run, by column."""


@dataclass(frozen=True)
class HeldoutSummary:
    """Accuracy of one evaluation, with its 95% interval."""

    step: int
    accuracy: float
    low: float
    high: float
    correct: int
    tasks: int


def heldout(run: Run, label: str = "") -> list[HeldoutSummary]:
    """Return a run's evaluations in order; those on a further set by its label."""
    names = [field.name for field in fields(HeldoutSummary)]
    summaries: list[HeldoutSummary] = []
    for line in run.eval_lines:
        figures = line.get("sets", {}).get(label) if label else line
        if figures is not None:
            summaries.append(HeldoutSummary(**{name: figures[name] for name in names}))
    return summaries


def heldout_sets(run: Run) -> dict[str, list[HeldoutSummary]]:
    """Return a run's evaluations on further held-out sets, by label."""
    labels: dict[str, None] = {}  # a set that keeps its order
    for line in run.eval_lines:
        labels.update(dict.fromkeys(line.get("sets", ())))
    return {label: heldout(run, label) for label in labels}


def before_and_after(
    evaluations: Sequence[HeldoutSummary], start: int
) -> tuple[HeldoutSummary | None, HeldoutSummary | None]:
    """Return the evaluation of the weights that a run began with, and the last one of a trained
    model.
    """
    before = None
    after = None
    for evaluation in evaluations:
        if evaluation.step == start and before is None:
            before = evaluation
        elif evaluation.step > start:
            after = evaluation
    return before, after


def correct_by_task(table: pa.Table) -> dict[str, bool]:
    """Return True by task for correct greedy answers of an evaluation; one that could not be scored
    is not correct.
    """
    correct: dict[str, bool] = {}
    # A task's first row is its greedy answer; sampled attempts for pass@k come after it.
    for row in table.select(["task", "correct"]).to_pylist():
        correct.setdefault(row["task"], bool(row["correct"]))
    return correct


def run_row(
    *,
    name: str,
    path: str,
    status: str,
    step: int,
    steps: int | None,
    config: Mapping[str, Any],
    before: Row | None,
    after: Row | None,
    reward: float | None,
    created: str | None = None,
    per_step: float | None = None,
) -> Row:
    """Return a run as a row of a table, with the same columns for every trainer.

    `before` and `after` are its evaluations before the first step and after the last, `created` is
    the time as run.json has it, `per_step` the usual seconds of a step.
    """
    settings: dict[str, Any] = {"taskset": taskset_names(config)}
    for column, key in SETTING_COLUMNS.items():
        value = value_at(config, key)
        settings[column] = None if isinstance(value, Mapping) else value
    return {
        "name": name,
        "path": path,
        "status": status,
        "step": step,
        "steps": steps,
        **settings,
        "before": before,
        "after": after,
        "reward": reward,
        "created": created,
        "per_step": per_step,
    }


def summarize(run: Run, read: Callable[[str], Floats] | None = None) -> Row:
    """Summarize a run for one line of a list.

    `read` returns a metric by step, NaN where a step lacks it, for callers that have the columns
    already.
    """
    if read is None:
        read = partial(values_of, run.metric_lines)
    steps = read("step")
    rewards = read("reward/mean")
    seconds = read("seconds/step")
    scored = rewards[np.isfinite(rewards)]
    timed = seconds[np.isfinite(seconds)]
    before, after = before_and_after(heldout(run), run.start)
    return run_row(
        name=run.name,
        path=str(run.path),
        status=run.status,
        step=int(steps[-1]) if len(steps) else 0,
        steps=run.steps,
        config=run.config,
        before=None if before is None else asdict(before),
        after=None if after is None else asdict(after),
        reward=float(scored[-1]) if len(scored) else None,
        created=run.info.get("created"),
        per_step=float(np.median(timed)) if len(timed) else None,
    )


def find_runs(folder: Path) -> tuple[list[Row], dict[Path, str]]:
    """Summarize the runs of a folder, newest first; return unreadable ones with the reason."""
    runs: list[Row] = []
    broken: dict[Path, str] = {}
    for path in sorted(folder.glob("*/run.json")):
        try:
            runs.append(summarize(Run(path.parent)))
        except RecordError as error:
            broken[path.parent] = str(error)
        except Exception as error:
            # A damaged record may hold anything anywhere, and must not hide the next run.
            broken[path.parent] = (
                f"{path.parent} does not read as a run: {type(error).__name__} {error}."
            )
    return sorted(runs, key=lambda run: str(run["created"] or ""), reverse=True), broken


def curves(run: Run) -> dict[str, list[float | None]]:
    """Return the curves to show, by metric: one value per step, or per evaluation."""
    values_by_curve: dict[str, list[float | None]] = {}
    values_by_curve[HELDOUT_CURVE] = [evaluation.accuracy for evaluation in heldout(run)]
    for label, evaluations in heldout_sets(run).items():
        accuracies: list[float | None] = [evaluation.accuracy for evaluation in evaluations]
        values_by_curve[f"eval/set/{label}/accuracy"] = accuracies
    for key in shown_metrics("curves", run.metric_lines):
        values_by_curve[key] = [line.get(key) for line in run.metric_lines]
    for key, values in list(values_by_curve.items()):
        if all(value is None for value in values):
            del values_by_curve[key]
    return values_by_curve


def phases(lines: list[Row]) -> dict[str, float]:
    """Return the mean seconds of each phase of a step."""
    sums: defaultdict[str, float] = defaultdict(float)
    for line in lines:
        for key, value in line.items():
            if key.startswith("seconds/") and key != "seconds/step" and value is not None:
                sums[key.removeprefix("seconds/")] += value
    return {phase: total / len(lines) for phase, total in sums.items()}


def describe(run: Run, report: Mapping[str, Any]) -> Row:
    """Describe a run in full, with a report of the doctor as findings.json has it."""
    stopped = None
    if run.stopped is not None:
        stopped = {"by": run.stopped.by, "why": run.stopped.sentence}
    sets: dict[str, list[Row]] = {}
    for label, evaluations in heldout_sets(run).items():
        sets[label] = [asdict(evaluation) for evaluation in evaluations]
    log = run.path / LOG_PATH
    return {
        **summarize(run),
        "stopped": stopped,
        "doctor": _diagnosis(run, report),
        "config": run.config,
        **{key: run.info.get(key) for key in ("uptrend", "tasks", "eval", "machine")},
        "notes": [*(run.info.get("notes") or ()), *run.notes],
        "weights": run.info.get("model"),
        "evaluations": [asdict(evaluation) for evaluation in heldout(run)],
        "sets": sets,
        "curves": curves(run),
        "phases": phases(run.metric_lines),
        "checkpoints": [path.name for path in run.checkpoints],
        "files": _sizes(run.path),
        "log": str(log) if log.exists() else None,
    }


def _sizes(folder: Path) -> Counter[str]:
    """Return the bytes of each file and of each folder at the top of a run directory."""
    sizes = Counter[str]()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.name.startswith("."):
            top = path.relative_to(folder).parts[0]
            sizes[top if path.parent == folder else f"{top}/"] += path.stat().st_size
    return sizes


def _diagnosis(run: Run, report: Mapping[str, Any]) -> Row:
    findings = []
    for cause in causes(report):
        finding = {key: cause[key] for key in ("id", "severity", "confidence", "summary")}
        findings.append({**finding, "fix": cause["fix"] and cause["fix"]["sentence"]})
    return {
        "step": report["step"],
        "trend": report["trend"],
        "headline": headline(report),
        "sentence": report["sentence"],
        "findings": findings,
        "more": f"uptrend doctor {run.path}",
    }
