"""Reports of the doctor for pages; and for the reader process, functions that read logs and judge
runs.
"""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from uptrend.config.tables import flatten
from uptrend.dashboard.curves import from_columns, sparkline, write_columns
from uptrend.dashboard.journals import tree
from uptrend.dashboard.sources import DashboardSource
from uptrend.doctor.catalogue import CATALOGUE
from uptrend.doctor.pages import cause_page
from uptrend.doctor.report import TRAINER_LABELS, changes_for_trainer, to_table
from uptrend.present.drawing import Integers
from uptrend.present.formatting import assignments
from uptrend.records import RecordError, Run, view_of
from uptrend.records.finding import causes, headline
from uptrend.records.lines import plain
from uptrend.records.summary import run_row
from uptrend.records.view import Floats
from uptrend.runner import views_of

Report = dict[str, Any]
# Events that a curve is marked with.
MARKED_EVENTS = (
    "finding",
    "withdrawn",
    "probed",
    "checkpoint",
    "resumed",
    "stopped",
    "failed",
    "reference-reset",
)
# Put before the names of a log's columns whose meaning is not known.
UNKNOWN_PREFIX = "other/"
# Names of folders that say nothing about the log inside them.
PLAIN_FOLDER_NAMES = ("raw", "logs", "output")
SEVERITIES = ("critical", "warning", "note")
# Stands in a command for the user's recipe, whose path is not known.
RECIPE_PLACEHOLDER = "RECIPE"
# Fields of a report that a page shows as they are.
REPORT_FIELDS = (
    "trend",
    "headline",
    "sentence",
    "effect",
    "interval",
    "power",
    "held_out",
    "differential",
    "cannot_tell",
    "normal",
    "missing",
    "step",
    "notes",
    "unknown",
    "steps",
)


def read_log(path: str, columns: str, stem: str) -> list[dict[str, Any]]:
    """Read and judge every run of a log; write their curves to files of columns.

    The files are in the folder `columns`, and have the run's number in place of the one that `stem`
    ends with.
    """
    from uptrend.doctor.diagnose import diagnose

    file_name = stem.rpartition("-")[0]
    log_runs: list[dict[str, Any]] = []
    for number, view in enumerate(views_of(Path(path))):
        curves = dict(view.metrics)
        for name, values in view.unknown.items():
            curves[f"{UNKNOWN_PREFIX}{name}"] = values
        table = from_columns(view.steps.tolist(), curves)
        write_columns(table, Path(columns) / f"{file_name}-{number}.arrow")

        _, rewards = view.curve("reward/mean")
        log_run = {
            "name": view.name,
            "trainer": view.trainer,
            "evals": plain(list(view.evals)),
            "config": plain(view.config),
            "notes": list(view.notes),
            "last_step": int(view.steps[-1]) if len(view.steps) else 0,
            "reward": float(rewards[-1]) if len(rewards) else None,
            "sparkline": sparkline(np.asarray(rewards)),
            "rollout_steps": list(view.rollout_steps),
            "report": to_table([diagnose(view)]),
        }
        log_runs.append(log_run)
    return log_runs


def _log_name(path: Path) -> str:
    """Return the name of a log: with its folder's if it says little by itself."""
    if path.is_file() or path.name in PLAIN_FOLDER_NAMES:
        return f"{path.parent.name}/{path.name}"
    return path.name


def has_score(evaluation: Mapping[str, Any]) -> bool:
    """Return True for an evaluation with an accuracy, or a reward where it has no accuracy."""
    score = evaluation.get("accuracy", evaluation.get("reward"))
    return isinstance(score, int | float)


def log_row(source: DashboardSource, log_run: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of one run of a log, from what `read_log` returned for it."""
    config = flatten(log_run["config"])
    scores: list[dict[str, Any]] = []
    for evaluation in filter(has_score, log_run["evals"]):
        score = {
            "accuracy": evaluation.get("accuracy"),
            "reward": evaluation.get("reward"),
            "step": evaluation.get("step", 0),
        }
        scores.append(score)
    row = run_row(
        name=log_run["name"] or _log_name(source.path),
        path=str(source.path),
        status="log",
        step=log_run["last_step"],
        steps=config.get("learning.steps"),
        config=log_run["config"],
        before=scores[0] if len(scores) > 1 else None,
        after=scores[-1] if scores else None,
        reward=log_run["reward"],
    )
    last_time_ns, _ = source.stamp()[0]
    return {
        **row,
        "kind": "log",
        "trainer": log_run["trainer"],
        "sparkline": log_run["sparkline"],
        **report_columns(log_run["report"]),
        "updated": last_time_ns / 1e9,
        "seconds": None,
        "config": config,
    }


def diagnose_run(path: str) -> Report:
    """Judge a run directory; nothing is written into it."""
    from uptrend.doctor.diagnose import diagnose

    return to_table([diagnose(view_of(Run(path)))])


def report_columns(report: Report | None) -> dict[str, Any]:
    """Return what a run's row has of its report: the trend, the same in words, the number of causes
    by severity, the first cause, and the step that dates them; None for each without a report.
    """
    if report is None:
        return dict.fromkeys(("trend", "headline", "findings", "finding", "of_step"))
    findings = causes(report)
    severities = [finding["severity"] for finding in findings]
    counts = {severity: severities.count(severity) for severity in SEVERITIES}
    first_cause = None
    if findings and findings[0]["severity"] != "note":
        first_cause = findings[0]["id"]
    return {
        "trend": report["trend"],
        "headline": headline(report),
        "findings": counts,
        "finding": first_cause,
        "of_step": report.get("step"),
    }


def page_report(report: Report | None, run: str, trainer: str) -> Report | None:
    """Return a report for a page: causes in order with their symptoms, fixes in the run's own
    words, and commands.
    """
    if report is None:
        return None
    symptoms = {
        finding["id"]: finding
        for finding in report["findings"]
        if finding["symptom_of"] is not None
    }
    findings: list[dict[str, Any]] = []
    for cause in causes(report):
        changes = changes_for_trainer((cause["fix"] or {}).get("changes") or {}, trainer)
        settings_by_trainer = [
            {"trainer": TRAINER_LABELS.get(name, name), "line": _config_lines(settings)}
            for name, settings in changes.items()
        ]
        explained = [symptoms.get(id, {"id": id, "summary": ""}) for id in cause["explains"]]
        finding = {
            **cause,
            "explains": explained,
            "settings": settings_by_trainer,
            "command": _next_command(cause, run, trainer),
            "known": cause["id"] in CATALOGUE,
        }
        findings.append(finding)
    return {**{key: report.get(key) for key in REPORT_FIELDS}, "findings": findings}


def _config_lines(settings: Mapping[str, Any]) -> str:
    """Return settings as lines to paste into a config."""
    return "\n".join(assignments({key: value}) for key, value in settings.items())


def _next_command(finding: Mapping[str, Any], run: str, trainer: str) -> str:
    """Return the command that makes a finding a hypothesis, or runs the probe that settles it;
    empty if there is neither.
    """
    experiment = finding["experiment"] or {}
    if experiment.get("arms"):
        source = f"--from '{run}#{finding['id']}'" if trainer == "uptrend" else finding["id"]
        return f"uptrend lab new {source} --dir LAB --recipe {RECIPE_PLACEHOLDER}"
    probe = experiment.get("probe")
    return f"uptrend preflight {RECIPE_PLACEHOLDER} --only {probe}" if probe else ""


def explain(id: str) -> dict[str, Any]:
    """Return a cause's page as a tree."""
    if id not in CATALOGUE:
        raise RecordError(f"There is no cause {id}. Their ids: uptrend explain")
    return {"id": id, "page": tree(cause_page(CATALOGUE[id]))}


def settings(config: Mapping[str, Any], trainer: str) -> list[dict[str, Any]]:
    """Return every config value, with its default if it differs and the trainer is Uptrend; a key
    whose value the run may have chosen has none.
    """
    defaults: dict[str, Any] = {}
    chosen: frozenset[str] = frozenset()
    if trainer == "uptrend":
        from uptrend.config import Config, to_table
        from uptrend.config.load import chosen_keys

        defaults = flatten(to_table(Config()))
        chosen = chosen_keys()
    rows: list[dict[str, Any]] = []
    for key, value in sorted(flatten(config).items()):
        row = {"key": key, "value": value}
        if defaults and key not in chosen and defaults.get(key) != value:
            row["default"] = defaults.get(key)
        rows.append(row)
    return rows


def markers(run: Run, steps: Integers, times: Floats) -> list[dict[str, Any]]:
    """Return what happened at which step: findings and their withdrawal, checkpoints, resumes, and
    why it ended.

    `times` says when each of `steps` ended.
    """
    markers: list[dict[str, Any]] = []
    for event in run.events:
        kind = event.get("event")
        if kind not in MARKED_EVENTS:
            continue
        # A damaged event, whose step or time is no number, has no place on a curve.
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            step = event.get("step")
            if step is None and len(steps):
                step = _last_step_before(float(event.get("time", 0.0)), steps, times)
            text = event.get("summary") or event.get("reason") or event.get("error") or ""
            marker = {
                "step": int(step or 0),
                "kind": kind,
                "id": event.get("id"),
                "text": str(text),
            }
            markers.append(marker)
    return markers


def _last_step_before(time: float, steps: Integers, times: Floats) -> int:
    """Return the last step that had ended by a time, 0 if none had."""
    n_ended = int(np.searchsorted(times, time))
    if n_ended == 0:
        return 0
    return int(steps[n_ended - 1])
