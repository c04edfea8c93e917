"""Reports of the doctor for pages, and the work that a process of its own does: reading logs and
judging runs.
"""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from uptrend.config.tables import flatten
from uptrend.dashboard.curves import from_columns, sparkline, write_columns
from uptrend.dashboard.journals import tree
from uptrend.dashboard.sources import FoundSource
from uptrend.doctor.catalogue import CATALOGUE
from uptrend.doctor.pages import cause_page
from uptrend.doctor.report import TRAINERS, changes_for_trainer, to_table
from uptrend.present.formatting import assignments
from uptrend.records import RecordError, Run, view_of
from uptrend.records.finding import causes, headline
from uptrend.records.lines import plain
from uptrend.records.summary import run_row
from uptrend.runner import views_of

Report = dict[str, Any]
MARKED = (
    "finding",
    "withdrawn",
    "probed",
    "checkpoint",
    "resumed",
    "stopped",
    "failed",
    "reference-reset",
)
UNKNOWN = "other/"
"""Put before the columns of a log whose meaning is not known."""


def read_log(path: str, columns: str, stem: str) -> list[dict[str, Any]]:
    """Read and judge every run of a log; their curves go to files of columns."""
    from uptrend.doctor.diagnose import diagnose

    told = []
    for number, view in enumerate(views_of(Path(path))):
        unknown = {f"{UNKNOWN}{name}": values for name, values in view.unknown.items()}
        table = from_columns(view.steps.tolist(), {**view.metrics, **unknown})
        write_columns(table, Path(columns) / f"{stem.rpartition('-')[0]}-{number}.arrow")
        _, rewards = view.curve("reward/mean")
        told.append(
            {
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
        )
    return told


def _log_name(path: Path) -> str:
    """Return the name of a log: with its folder's, where it says little by itself."""
    return (
        f"{path.parent.name}/{path.name}"
        if path.is_file() or path.name in ("raw", "logs", "output")
        else path.name
    )


def log_row(source: FoundSource, told: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of one run of a log, from what `read_log` told of it."""
    config = flatten(told["config"])
    evals = told["evals"]
    scores = [e for e in evals if isinstance(e.get("accuracy", e.get("reward")), int | float)]
    ends = [
        {"accuracy": e.get("accuracy"), "reward": e.get("reward"), "step": e.get("step", 0)}
        for e in scores
    ]
    row = run_row(
        name=told["name"] or _log_name(source.path),
        path=str(source.path),
        status="log",
        step=told["last_step"],
        steps=config.get("learning.steps"),
        config=told["config"],
        before=ends[0] if len(ends) > 1 else None,
        after=ends[-1] if ends else None,
        reward=told["reward"],
    )
    return {
        **row,
        "kind": "log",
        "trainer": told["trainer"],
        "sparkline": told["sparkline"],
        **found_in(told["report"]),
        "updated": source.stamp()[0][0] / 1e9,
        "seconds": None,
        "config": config,
    }


def diagnose_run(path: str) -> Report:
    """Judge a run directory; nothing is written into it."""
    from uptrend.doctor.diagnose import diagnose

    return to_table([diagnose(view_of(Run(path)))])


def found_in(report: Report | None) -> dict[str, Any]:
    """Return the trend, the same in words, and the number of causes by severity, with the step that
    dates them; no doctor looked: None.
    """
    if report is None:
        names = ("trend", "headline", "findings", "finding", "of_step")
        return dict.fromkeys(names)
    named = causes(report)
    counts = {
        kind: sum(f["severity"] == kind for f in named) for kind in ("critical", "warning", "note")
    }
    first = named[0]["id"] if named and named[0]["severity"] != "note" else None
    return {
        "trend": report["trend"],
        "headline": headline(report),
        "findings": counts,
        "finding": first,
        "of_step": report.get("step"),
    }


def told(report: Report | None, run: str, trainer: str) -> Report | None:
    """Return a report for a page: causes in order with their symptoms, fixes in the run's own
    words, and commands.
    """
    if report is None:
        return None
    recipe = "RECIPE"
    symptoms = {f["id"]: f for f in report["findings"] if f["symptom_of"] is not None}
    findings = []
    for finding in causes(report):
        changes = changes_for_trainer((finding["fix"] or {}).get("changes") or {}, trainer)
        findings.append(
            {
                **finding,
                "explains": [
                    symptoms.get(id, {"id": id, "summary": ""}) for id in finding["explains"]
                ],
                "settings": [
                    {"trainer": TRAINERS.get(who, who), "line": _lines(keys)}
                    for who, keys in changes.items()
                ],
                "command": _hypothesis(finding, run, trainer, recipe),
                "known": finding["id"] in CATALOGUE,
            }
        )
    keys = (
        "trend",
        "headline",
        "sentence",
        "effect",
        "interval",
        "power",
        "held_out",
        "cannot_tell",
        "missing",
        "step",
    )
    return {
        **{key: report.get(key) for key in (*keys, "notes", "unknown", "steps")},
        "findings": findings,
    }


def _lines(settings: Mapping[str, Any]) -> str:
    """Return settings as lines to paste into a config."""
    return "\n".join(assignments({key: value}) for key, value in settings.items())


def _hypothesis(finding: Mapping[str, Any], run: str, trainer: str, recipe: str) -> str:
    """Return the command that makes a finding a hypothesis, or settles it; empty where there is
    neither.
    """
    experiment = finding["experiment"] or {}
    if experiment.get("arms"):
        source = f"--from '{run}#{finding['id']}'" if trainer == "uptrend" else finding["id"]
        return f"uptrend lab new {source} --dir LAB --recipe {recipe}"
    probe = experiment.get("probe")
    return f"uptrend preflight {recipe} --only {probe}" if probe else ""


def explain(id: str) -> dict[str, Any]:
    """Return a cause's page as a tree."""
    if id not in CATALOGUE:
        raise RecordError(f"There is no cause {id}. Their ids: uptrend explain")
    return {"id": id, "page": tree(cause_page(CATALOGUE[id]))}


def settings(config: Mapping[str, Any], trainer: str) -> list[dict[str, Any]]:
    """Return every config value with its default where it differs; of other trainers only what is
    known.
    """
    defaults: dict[str, Any] = {}
    if trainer == "uptrend":
        from uptrend.config import Config, to_table

        defaults = flatten(to_table(Config()))
    flat = flatten(config)
    rows = []
    for key in sorted(flat):
        row = {"key": key, "value": flat[key]}
        if defaults and defaults.get(key) != flat[key]:
            row["default"] = defaults.get(key)
        rows.append(row)
    return rows


def markers(run: Run, steps: Any, times: Any) -> list[dict[str, Any]]:
    """Return what happened at which step: findings and their withdrawal, checkpoints, resumes, and
    why it ended.
    """
    found = []
    for event in run.events:
        kind = event.get("event")
        step = event.get("step")
        if kind not in MARKED:
            continue
        text = event.get("summary") or event.get("reason") or event.get("error") or ""
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            if step is None and len(steps):  # as far as it had come by then
                place = int(np.searchsorted(times, float(event.get("time", 0.0))))
                step = int(steps[min(max(place - 1, 0), len(steps) - 1)]) if place else 0
            found.append(
                {"step": int(step or 0), "kind": kind, "id": event.get("id"), "text": str(text)}
            )
    return found
