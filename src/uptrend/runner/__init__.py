"""Joins the packages into runs: train, resume, evaluate, warm start, replay, preflight, diagnose. Loads no torch."""

from dataclasses import replace
from pathlib import Path

from uptrend.bridge.environments import ENVIRONMENTS
from uptrend.records import Report
from uptrend.runner.evaluation import evaluate
from uptrend.runner.runs import replay, resume, train
from uptrend.tasks.registry import register

__all__ = ["diagnose", "evaluate", "replay", "reports_of", "resume", "train"]

for _prefix, (_line, _resolve) in ENVIRONMENTS.items():
    register(_prefix, _line, _resolve)


def diagnose(path: str | Path) -> Report:
    """Diagnose a run directory or another trainer's log; of several runs, the longest, with all under `runs`."""
    reports = reports_of(Path(path))
    longest = max(reports, key=lambda report: report.steps)
    return replace(longest, runs=tuple(reports)) if len(reports) > 1 else longest


def reports_of(path: Path) -> list[Report]:
    """Diagnose every run that a path holds; a bare name is looked up under ./runs."""
    from uptrend.bridge.importers import read_views
    from uptrend.doctor.diagnose import diagnose as diagnose_view

    if not path.exists() and (Path("runs") / path / "run.json").exists():
        path = Path("runs") / path
    return [diagnose_view(view) for view in read_views(path)]
