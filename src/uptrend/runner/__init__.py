"""Joins the packages into runs: train, resume, evaluate, warm start, replay, preflight, diagnose. Loads no torch."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from uptrend.records import RecordError, Report, RunView
from uptrend.runner.evaluation import evaluate
from uptrend.runner.runs import replay

__all__ = ["diagnose", "evaluate", "replay", "reports_of", "views_of"]

FRAGMENT = 0.1  # share of the longest run's points up to which another run of its log is a fragment


def diagnose(path: str | Path) -> Report:
    """Diagnose a run directory or another trainer's log; of several runs, the longest, with all under `runs`."""
    reports = reports_of(Path(path))
    longest = max(reports, key=lambda report: report.steps)
    return replace(longest, runs=tuple(reports)) if len(reports) > 1 else longest


def reports_of(path: Path, named: Mapping[str, str] | None = None) -> list[Report]:
    """Diagnose every run that a path holds, the longest first; a bare name is looked up under ./runs."""
    from uptrend.doctor.diagnose import diagnose as diagnose_view

    views = views_of(path, named)
    if len(views) == 1:
        return [diagnose_view(views[0])]
    reports, broken = list[Report](), list[str]()
    for view in views:
        try:
            reports.append(diagnose_view(view))
        except Exception as error:  # a damaged record may hold anything anywhere, and the next one is not to blame
            broken.append(f"Left out: {view.source} could not be judged: {type(error).__name__} {error}.")
    if not reports:
        raise RecordError(" ".join(broken))
    return [replace(report, notes=(*report.notes, *broken)) for report in reports]


def views_of(path: Path, named: Mapping[str, str] | None = None) -> list[RunView]:
    """Return every run that a path holds, the longest first; a bare name is looked up under ./runs.

    `named` gives columns of another trainer's log with the metric that each is. Fragments of a log, as a damaged one
    or one of many restarts has them, are left out and named in the longest run's notes.
    """
    from uptrend.bridge.importers import read_views
    from uptrend.bridge.importers.views import with_names

    if not path.exists() and (Path("runs") / path / "run.json").exists():
        path = Path("runs") / path
    views = [with_names(view, named) if named else view for view in read_views(path)]
    if all(view.trainer == "uptrend" for view in views):
        return views
    views.sort(key=lambda view: -len(view.steps))
    kept: dict[str, list[RunView]] = {}
    fragments: dict[str, list[int]] = {}
    for view in views:
        runs = kept.setdefault(view.source, [])
        if runs and view.runs_in_log > 1 and len(view.steps) < max(5.0, FRAGMENT * len(runs[0].steps)):
            fragments.setdefault(view.source, []).append(len(view.steps))
        else:
            runs.append(view)
    for source, sizes in fragments.items():
        longest, points = kept[source][0], sum(sizes)
        count = f"{len(sizes)} more fragments with {points} points in all"
        note = f"{count} were left out: each is far shorter than this run."
        kept[source][0] = replace(longest, notes=(*longest.notes, note))
    return sorted((view for runs in kept.values() for view in runs), key=lambda view: -len(view.steps))
