"""The doctor on logs in other trainers' formats, each with a known defect: tests/data/logs."""

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks import logs

import uptrend
from uptrend.records import Report, Severity, TrendKind

LOGS = Path(__file__).parents[1] / "data" / "logs"
CASES = sorted(path.parent for path in LOGS.glob("*/meta.json"))
by_case = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])


def meta(case: Path) -> dict[str, Any]:
    return dict(json.loads((case / "meta.json").read_text(encoding="utf-8")))


def ids(report: Report, *, warnings: bool) -> set[str]:
    """Causes that a report names, explained ones included; all, or those that warn."""
    found = [finding for top in report.findings for finding in (top, *top.explains)]
    return {finding.id for finding in found if not warnings or finding.severity is not Severity.NOTE}


@by_case
def test_the_defect_is_named_and_nothing_else_is_warned_of(case: Path) -> None:
    report = uptrend.diagnose(logs.log_of(case))
    labels = meta(case)["labels"]
    assert report.trend.kind in logs.expected(labels)
    assert ids(report, warnings=True) == set(meta(case)["warnings"])
    named = ids(report, warnings=False) | ({"run.too-short"} if report.trend.kind is TrendKind.TOO_SHORT else set())
    assert [label for label in labels if label in logs.FOUND_BY and not named & logs.FOUND_BY[label]] == []


def test_each_arm_of_a_table_has_its_own_report() -> None:
    base, taught = uptrend.diagnose(LOGS / "two-arms" / "raw" / "curves.csv").runs
    assert (base.trend.kind, taught.trend.kind) == (TrendKind.LEARNING, TrendKind.FLAT)
    assert "sampling.entropy-collapse" in ids(taught, warnings=True) - ids(base, warnings=True)


def test_the_benchmark_scores_a_folder_of_cases(capsys: pytest.CaptureFixture[str]) -> None:
    logs.main([str(LOGS)])
    *_, last = capsys.readouterr().out.splitlines()
    assert f"read {len(CASES)} of {len(CASES)}; labels found" in last
    assert last.count("(100%)") == 3


def test_the_benchmark_says_what_it_needs(tmp_path: Path) -> None:
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
