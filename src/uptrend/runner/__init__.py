"""Joins the packages into runs: train, resume, evaluate, warm start, replay, preflight, diagnose. Loads no torch."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from uptrend.records import Report, Run
from uptrend.runner.evaluation import evaluate
from uptrend.runner.runs import resume, train

__all__ = ["diagnose", "evaluate", "replay", "reports_of", "resume", "train"]


def replay(
    run: str | Path,
    step: int,
    *,
    steps: int | None = None,
    overrides: Iterable[str] = (),
    runs: str | Path = "runs",
    name: str | None = None,
) -> Run:
    """Learn again from a run's recorded rollouts, starting at `step`, with part of the update changed."""
    from uptrend.runner.replays import replay as launch

    return launch(Run(run), step, steps=steps, overrides=overrides, runs=Path(runs), name=name)


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
