"""Whole logs in other trainers' formats, each with a known defect that the doctor names."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks import logs

import uptrend
from uptrend.bridge.importers import read_views
from uptrend.records import Report, Severity, TrendKind
from uptrend.records.view import RunView

LOGS = Path(__file__).parents[1] / "data" / "logs"
CASES = sorted(path.parent for path in LOGS.glob("*/meta.json"))
by_case = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])


def meta(case: Path) -> dict[str, Any]:
    return dict(json.loads((case / "meta.json").read_text(encoding="utf-8")))


def longest(path: Path) -> RunView:
    return max(read_views(path), key=lambda view: len(view.steps))


def ids(report: Report, *, warnings: bool) -> set[str]:
    """Causes that a report names, explained ones included; all, or those that warn."""
    found = [finding for top in report.findings for finding in (top, *top.explains)]
    return {
        finding.id for finding in found if not warnings or finding.severity is not Severity.NOTE
    }


@by_case
def test_the_log_has_the_recorded_points_levels_and_settings(case: Path) -> None:
    known, view = meta(case), longest(logs.log_of(case))
    stats = known["stats"]
    steps, rewards = view.curve("reward/mean")
    quarter = len(rewards) // 4
    assert (len(rewards), steps[0], steps[-1]) == (
        stats["points"],
        stats["first_step"],
        stats["last_step"],
    )
    levels = rewards[:quarter].mean(), rewards[-quarter:].mean()
    np.testing.assert_allclose(levels, (stats["q1_mean"], stats["q4_mean"]), rtol=1e-3, atol=1e-4)
    assert {key: view.value(key) for key in known.get("config", {})} == known.get("config", {})
    assert {name: list(at) for name, at in view.nonfinite.items()} == known.get("nonfinite", {})
    assert (len(view.evals), len(read_views(logs.log_of(case)))) == (
        known.get("evals", 0),
        known.get("runs", 1),
    )
    assert all(any(text in note for note in view.notes) for text in known.get("notes", []))
    assert len(longest(logs.log_of(case).parent).steps) == stats["points"]


@by_case
def test_the_defect_is_named_and_nothing_else_is_warned_of(case: Path) -> None:
    report = uptrend.diagnose(logs.log_of(case))
    labels = meta(case)["labels"]
    assert report.trend.kind in logs.expected(labels)
    assert ids(report, warnings=True) == set(meta(case)["warnings"])
    named = ids(report, warnings=False) | (
        {"run.too-short"} if report.trend.kind is TrendKind.TOO_SHORT else set()
    )
    assert [
        label for label in labels if label in logs.FOUND_BY and not named & logs.FOUND_BY[label]
    ] == []


def test_a_spread_between_prompts_is_not_one_within_groups() -> None:
    view = longest(logs.log_of(LOGS / "harbor-default"))
    assert view.metrics["reward/group_std/mean"].max() < 1e-3
    assert view.metrics["reward/part/pilot/std"].min() > 0.05


def test_each_arm_of_a_table_has_its_own_report() -> None:
    base, taught = uptrend.diagnose(LOGS / "two-arms" / "raw" / "curves.csv").runs
    assert (base.trend.kind, taught.trend.kind) == (TrendKind.LEARNING, TrendKind.FLAT)
    assert "sampling.entropy-collapse" in ids(taught, warnings=True) - ids(base, warnings=True)


def test_the_benchmark_scores_a_folder_of_cases(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    logs.main([str(LOGS)])
    *_, last = capsys.readouterr().out.splitlines()
    assert f"read {len(CASES)} of {len(CASES)}; labels found" in last
    assert last.count("(100%)") == 3
    with pytest.raises(SystemExit, match=r"python benchmarks/logs\.py FOLDER"):
        logs.main([])
    with pytest.raises(SystemExit, match="holds no cases"):
        logs.main([str(tmp_path)])


def test_a_log_that_can_not_be_read_is_a_result_of_the_benchmark(tmp_path: Path) -> None:
    (tmp_path / "meta.json").write_text('{"labels": ["flat"]}')
    (tmp_path / "series.jsonl").write_text("")
    score = logs.score(tmp_path)
    assert score.trend.startswith("unread")
    assert not score.agrees
