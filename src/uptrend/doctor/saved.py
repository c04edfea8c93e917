"""The report of a run directory: one per run, in its findings.json, dated by its step.

Whoever shows findings asks for it here, so that all show the same ones.
"""

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from uptrend.records import RecordError, Report, Run, view_of
from uptrend.records.directory import LINES, write_whole


def save_report(path: Path, reports: Sequence[Report]) -> dict[str, Any]:
    """Write the report of a run into its directory, and return it as JSON."""
    from uptrend.doctor.report import to_table

    table = to_table(reports)
    write_whole(path / "findings.json", json.dumps(table, indent=1, ensure_ascii=False).encode())
    return table


def saved_report(run: Run, points: int | None = None) -> dict[str, Any] | None:
    """Return findings.json where it knows all that was recorded, `points` metrics lines by default
    all; else None.
    """
    path = run.path / "findings.json"
    lines = [run.path / name for name in LINES.values()]
    if not path.exists() or path.stat().st_mtime < max(
        (f.stat().st_mtime for f in lines if f.exists()), default=0.0
    ):
        return None
    report = run.report
    points = len(run.metric_lines) if points is None else points
    return report if report is not None and report["steps"] == points else None


def latest_report(run: Run) -> dict[str, Any]:
    """Return the report on all that was recorded: the one on disk where it is up to date, else a
    new one.
    """
    report = None
    with contextlib.suppress(OSError, RecordError):
        report = saved_report(run)
    if report is None:
        # Imported here: scipy only where a run has to be judged.
        from uptrend.doctor.diagnose import diagnose
        from uptrend.doctor.report import to_table

        report = to_table([diagnose(view_of(run))])
    return report
