"""Joins the packages into runs: train, resume, evaluate, warm start, replay, preflight, diagnose.
Loads no torch.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path

from uptrend.records import RecordError, Report, Run, RunView, view_of
from uptrend.records.errors import damage_as_error
from uptrend.runner.evaluation import evaluate
from uptrend.runner.runs import replay

__all__ = ["diagnose", "evaluate", "replay", "reports_of", "reports_of_text", "views_of"]

# A run of a log with several is a fragment where it has fewer points than this, or than this share
# of the longest one's.
MIN_RUN_POINTS = 5
MIN_SHARE_OF_LONGEST = 0.1


def diagnose(path: str | Path) -> Report:
    """Diagnose a run directory or another trainer's log; of several runs, the longest, with all
    under `runs`.
    """
    reports = reports_of(Path(path))
    longest = max(reports, key=lambda report: report.steps)
    if len(reports) == 1:
        return longest
    return replace(longest, runs=tuple(reports))


def reports_of(path: Path, named: Mapping[str, str] | None = None) -> list[Report]:
    """Diagnose every run that a path holds, the longest first; a bare name is looked up under
    ./runs.
    """
    return _reports_of_views(views_of(path, named))


def reports_of_text(data: bytes, named: Mapping[str, str] | None = None) -> list[Report]:
    """Diagnose every run of a text that was pasted or piped, the longest first."""
    from uptrend.bridge.importers import read_pasted_views

    views = _with_names(read_pasted_views(data), named)
    return _reports_of_views(_without_fragments(views))


def _reports_of_views(views: list[RunView]) -> list[Report]:
    from uptrend.doctor.diagnose import diagnose as diagnose_view

    if len(views) == 1:
        return [diagnose_view(views[0])]
    reports: list[Report] = []
    failures: list[str] = []
    for view in views:
        # A damaged record may hold anything anywhere, and the next one is not to blame.
        try:
            reports.append(diagnose_view(view))
        except Exception as error:
            failures.append(
                f"Left out: {view.source} could not be judged: {type(error).__name__} {error}."
            )
    if not reports:
        raise RecordError(" ".join(failures))
    return [replace(report, notes=(*report.notes, *failures)) for report in reports]


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
    views = _with_names(views, named)
    if all(view.trainer == "uptrend" for view in views):
        return views
    return _without_fragments(views)


def _with_names(views: list[RunView], named: Mapping[str, str] | None) -> list[RunView]:
    if not named:
        return views
    from uptrend.bridge.importers.views import with_names

    return [with_names(view, named) for view in views]


def _without_fragments(views: list[RunView]) -> list[RunView]:
    """Leave fragments out, note them in their log's longest run, and sort the longest first."""
    runs_by_source: dict[str, list[RunView]] = {}
    fragment_sizes: dict[str, list[int]] = {}
    for view in _longest_first(views):
        runs = runs_by_source.setdefault(view.source, [])
        is_fragment = False
        if runs and view.runs_in_log > 1:
            min_points = max(MIN_RUN_POINTS, MIN_SHARE_OF_LONGEST * len(runs[0].steps))
            is_fragment = len(view.steps) < min_points
        if is_fragment:
            fragment_sizes.setdefault(view.source, []).append(len(view.steps))
        else:
            runs.append(view)

    for source, sizes in fragment_sizes.items():
        longest = runs_by_source[source][0]
        count = f"{len(sizes)} more fragments with {sum(sizes)} points in all"
        note = f"{count} were left out: each is far shorter than this run."
        runs_by_source[source][0] = replace(longest, notes=(*longest.notes, note))
    return _longest_first(chain.from_iterable(runs_by_source.values()))


def _longest_first(views: Iterable[RunView]) -> list[RunView]:
    return sorted(views, key=lambda view: -len(view.steps))
