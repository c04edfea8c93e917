"""The doctor against an expert's reading of public runs, where those lie beside the checkout."""

import importlib.util
import sys
from pathlib import Path

import pytest

RUNS = Path(__file__).parents[2].parent / "shared" / "data" / "runs"
BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "logs.py"


@pytest.mark.skipif(not RUNS.exists(), reason="the logs of public runs are not beside the checkout")
def test_the_expert_is_not_contradicted() -> None:
    spec = importlib.util.spec_from_file_location("logs", BENCHMARK)
    assert spec is not None
    assert spec.loader is not None
    logs = importlib.util.module_from_spec(spec)
    sys.modules["logs"] = logs  # its dataclasses look themselves up
    spec.loader.exec_module(logs)
    scores = [logs.score(path.parent) for path in sorted(RUNS.glob("*/meta.json"))]
    found, missed = sum(len(s.found) for s in scores), sum(len(s.missed) for s in scores)
    right, wrong = sum(len(s.right) for s in scores), sum(len(s.wrong) for s in scores)
    assert [s.case for s in scores if s.trend.startswith("unread")] == []
    assert found / (found + missed) >= 0.85
    assert right / (right + wrong) >= 0.95
    assert sum(s.agrees for s in scores) / len(scores) >= 0.9
