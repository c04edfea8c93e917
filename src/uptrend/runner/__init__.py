"""Joins the packages into runs: train, resume, evaluate, warm start, replay, preflight, diagnose.
Loads no torch.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from uptrend.records import RecordError, Report, Run, RunView, view_of
from uptrend.records.errors import damage_as_error
from uptrend.runner.evaluation import evaluate
from uptrend.runner.runs import replay

__all__ = ["diagnose", "evaluate", "replay", "reports_of", "views_of"]

FRAGMENT = 0.1  # share of the longest run's points up to which another run of its log is a fragment


def diagnose(path: str | Path) -> Report:
    """Diagnose a run directory or another trainer's log; of several runs, the longest, with all
    under `runs`.
    """
    reports = reports_of(Path(path))
    longest = max(reports, key=lambda report: report.steps)
    return replace(longest, runs=tuple(reports)) if len(reports) > 1 else longest


def reports_of(path: Path, named: Mapping[str, str] | None = None) -> list[Report]:
    """Diagnose every run that a path holds, the longest first; a bare name is looked up under
    ./runs.
    """
    from uptrend.doctor.diagnose import diagnose as diagnose_view

    views = views_of(path, named)
    if len(views) == 1:
        return [diagnose_view(views[0])]
    reports = list[Report]()
    broken = list[str]()
    for view in views:
        try:
            reports.append(diagnose_view(view))
        except (
            Exception
        ) as error:  # a damaged record may hold anything anywhere, and the next one is not to blame
            broken.append(
                f"Left out: {view.source} could not be judged: {type(error).__name__} {error}."
            )
    if not reports:
        raise RecordError(" ".join(broken))
    return [replace(report, notes=(*report.notes, *broken)) for report in reports]


def views_of(path: Path, named: Mapping[str, str] | None = None) -> list[RunView]:
    """Return every run that a path holds, the longest first; a bare name is looked up under ./runs.

    `named` gives columns of another trainer's log with the metric that each is. Fragments of a log,
    as a damaged one or one of many restarts has them, are left out and named in the longest run's
    notes.
    """
    if not path.exists() and (Path("runs") / path / "run.json").exists():
        path = Path("runs") / path
    if (path / "run.json").exists():
        with damage_as_error(path):
            views = [view_of(Run(path))]
    else:
        from uptrend.bridge.importers import read_views

        views = read_views(path)
    if named:
        from uptrend.bridge.importers.views import with_names

        views = [with_names(view, named) for view in views]
    if all(view.trainer == "uptrend" for view in views):
        return views
    return _without_fragments(views)


def _without_fragments(views: list[RunView]) -> list[RunView]:
    longest_first = sorted(views, key=lambda view: -len(view.steps))
    by_source: dict[str, list[RunView]] = {}
    fragments: dict[str, list[int]] = {}
    for view in longest_first:
        runs = by_source.setdefault(view.source, [])
        if (
            runs
            and view.runs_in_log > 1
            and len(view.steps) < max(5.0, FRAGMENT * len(runs[0].steps))
        ):
            fragments.setdefault(view.source, []).append(len(view.steps))
        else:
            runs.append(view)
    for source, sizes in fragments.items():
        longest = by_source[source][0]
        count = f"{len(sizes)} more fragments with {sum(sizes)} points in all"
        note = f"{count} were left out: each is far shorter than this run."
        by_source[source][0] = replace(longest, notes=(*longest.notes, note))
    return sorted(
        (view for runs in by_source.values() for view in runs), key=lambda view: -len(view.steps)
    )
