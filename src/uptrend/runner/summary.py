"""Summaries of runs as plain objects: the same for the terminal, for --json and for the dashboard."""

import itertools
import statistics
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from uptrend.config import difference
from uptrend.config.load import nearest
from uptrend.config.tables import flatten
from uptrend.doctor.saved import latest_report
from uptrend.present.formatting import estimate
from uptrend.records import RecordError, Run
from uptrend.records.directory import LOG

CURVES = (
    "reward/mean", "advantage/dead/share", "sampling/length/mean", "kl/reference/mean", "learner/entropy/mean",
    "gradient/norm/before",
)  # fmt: skip
HELD_OUT = "held-out accuracy"
SETTINGS = {"model": "model.name", "taskset": "tasks.name", "loss": "learning.loss", "seed": "seed"}
CAVEAT = (
    "This compares these two models on these tasks. It does not say that one config is better than the "
    "other: another seed of the same config is another model."
)


@dataclass(frozen=True)
class HeldOutSummary:
    """Accuracy of one evaluation, with its 95% interval."""

    step: int
    accuracy: float
    low: float
    high: float
    correct: int
    tasks: int

    def __str__(self) -> str:
        return estimate(self.accuracy, self.low, self.high)


def open_run(named: str | Path, folder: Path = Path("runs")) -> Run:
    """Open a run by its path, or by its name under ./runs."""
    for path in (Path(named), folder / named):
        if (path / "run.json").exists():
            return Run(path)
    if Path(named).exists():
        raise RecordError(
            f"{named} is no run of Uptrend: it has no run.json. Other trainers' logs: uptrend doctor {named}"
        )
    names = sorted(path.parent.name for path in folder.glob("*/run.json"))
    here = f" {folder}/ holds {', '.join(names)}." if names else ""
    raise RecordError(f"There is no run at {named} or {folder / named}.{nearest(str(named), names) or here}")


def find_runs(folder: Path) -> tuple[list[dict[str, Any]], dict[Path, str]]:
    """Summarize the runs of a folder, newest first; return unreadable ones with the reason."""
    runs: list[dict[str, Any]] = []
    broken: dict[Path, str] = {}
    for path in sorted(folder.glob("*/run.json")):
        try:
            runs.append(summarize(Run(path.parent)))
        except RecordError as error:
            broken[path.parent] = str(error)
        except Exception as error:  # a damaged record may hold anything anywhere, and the next one is not to blame
            broken[path.parent] = f"{path.parent} does not read as a run: {type(error).__name__} {error}."
    return sorted(runs, key=lambda run: str(run["started"] or ""), reverse=True), broken


def held_out(run: Run, label: str = "") -> list[HeldOutSummary]:
    """Return a run's evaluations in order; those on a further set by its label."""
    names = [field.name for field in fields(HeldOutSummary)]
    lines = [line.get("sets", {}).get(label) if label else line for line in run.eval_lines]
    return [HeldOutSummary(**{name: line[name] for name in names}) for line in lines if line is not None]


def further_sets(run: Run) -> dict[str, list[HeldOutSummary]]:
    """Return a run's evaluations on further held-out sets, by label."""
    return {label: held_out(run, label) for line in run.eval_lines for label in line.get("sets", ())}


def summarize(run: Run) -> dict[str, Any]:
    """Summarize a run for one line of a list."""
    config, evaluations = flatten(run.config), [asdict(e) for e in held_out(run)]
    seconds = [line["seconds/step"] for line in run.metric_lines if line.get("seconds/step") is not None]
    return {
        "name": run.name,
        "path": str(run.path),
        "status": run.status,
        "step": run.last_step,
        "steps": run.steps,
        **{name: config.get(key) for name, key in SETTINGS.items()},
        "before": next((e for e in evaluations if e["step"] == run.start), None),
        "after": next((e for e in reversed(evaluations) if e["step"] > run.start), None),
        "reward": run.metric_lines[-1].get("reward/mean") if run.metric_lines else None,
        "started": run.info.get("created"),
        "seconds_per_step": statistics.median(seconds) if seconds else None,
    }


def curves(run: Run) -> dict[str, list[float | None]]:
    """Return the curves to show, by metric: one value per step, or per evaluation."""
    shown: dict[str, list[float | None]] = {HELD_OUT: [e.accuracy for e in held_out(run)]}
    shown |= {f"eval/set/{label}/accuracy": [e.accuracy for e in found] for label, found in further_sets(run).items()}
    for key in CURVES:
        shown[key] = [line.get(key) for line in run.metric_lines]
    return {key: values for key, values in shown.items() if any(value is not None for value in values)}


def phases(lines: list[dict[str, Any]]) -> dict[str, float]:
    """Return the mean seconds of each phase of a step."""
    sums: defaultdict[str, float] = defaultdict(float)
    for key, value in itertools.chain.from_iterable(line.items() for line in lines):
        if key.startswith("seconds/") and key != "seconds/step" and value is not None:
            sums[key.removeprefix("seconds/")] += value
    return {phase: total / len(lines) for phase, total in sums.items()}


def describe(run: Run) -> dict[str, Any]:
    """Describe a run in full."""
    files = Counter[str]()
    for path in sorted(run.path.rglob("*")):
        if path.is_file() and not path.name.startswith("."):
            top = path.relative_to(run.path).parts[0]
            files[f"{top}/" if path.parent != run.path else top] += path.stat().st_size
    return {
        **summarize(run),
        "stopped": None if run.stopped is None else {"by": run.stopped.by, "why": run.stopped.sentence},
        "doctor": diagnosis(run),
        "config": run.config,
        **{key: run.info.get(key) for key in ("uptrend", "tasks", "eval", "machine")},
        "notes": [*(run.info.get("notes") or ()), *run.notes],
        "weights": run.info.get("model"),
        "evaluations": [asdict(e) for e in held_out(run)],
        "sets": {label: [asdict(e) for e in found] for label, found in further_sets(run).items()},
        "curves": curves(run),
        "phases": phases(run.metric_lines),
        "checkpoints": [path.name for path in run.checkpoints],
        "files": files,
        "log": str(run.path / LOG) if (run.path / LOG).exists() else None,
    }


def diagnosis(run: Run) -> dict[str, Any]:
    """Return the trend and the causes of a run's report, and the step that dates it."""
    report = latest_report(run)
    causes = [finding for finding in report["findings"] if finding["symptom_of"] is None]
    return {
        "step": report["step"],
        "trend": report["trend"],
        "sentence": report["sentence"],
        "findings": [
            {**{key: cause[key] for key in ("id", "severity", "confidence", "summary")},
             "fix": cause["fix"] and cause["fix"]["sentence"]} for cause in causes
        ],
        "more": f"uptrend doctor {run.path}",
    }  # fmt: skip


def compare(a: Run, b: Run) -> dict[str, Any]:
    """Describe two runs side by side."""
    curves_a, curves_b = curves(a), curves(b)
    keys = dict.fromkeys([*curves_a, *curves_b])
    return {
        "a": summarize(a),
        "b": summarize(b),
        "difference": {key: list(pair) for key, pair in difference(a.config, b.config).items()},
        "curves": {key: {"a": curves_a.get(key, []), "b": curves_b.get(key, [])} for key in keys},
        "paired": pair_up(a, b),
    }


def pair_up(a: Run, b: Run) -> dict[str, Any] | None:
    """Compare the last evaluations of two runs task by task, `effect` is B less A; None where they share no task."""
    correct_a, correct_b = _correct_tasks(a), _correct_tasks(b)
    answers = Counter((correct_a[task], correct_b[task]) for task in correct_a if task in correct_b)
    if not answers:
        return None
    # scipy only where two runs are compared: `runs list` stays fast
    from uptrend.stats.comparison import mcnemar, paired_interval

    gained, lost = answers[False, True], answers[True, False]
    return {
        "step_a": a.eval_lines[-1]["step"],
        "step_b": b.eval_lines[-1]["step"],
        "tasks": answers.total(),
        "both": answers[True, True],
        "only_a": answers[True, False],
        "only_b": answers[False, True],
        "neither": answers[False, False],
        "effect": (gained - lost) / answers.total(),
        "interval": paired_interval(gained, lost, answers.total()),
        "p": mcnemar(lost, gained),
        "caveat": CAVEAT,
    }


def _correct_tasks(run: Run) -> dict[str, bool]:
    """Return by task if the last greedy answer was correct; one that could not be scored was not."""
    if not run.eval_lines:
        return {}
    correct: dict[str, bool] = {}
    # A task's first row is its greedy answer; sampled attempts for pass@k come after it.
    for row in run.eval_rollouts(run.eval_lines[-1]["step"]).select(["task", "correct"]).to_pylist():
        correct.setdefault(row["task"], bool(row["correct"]))
    return correct
