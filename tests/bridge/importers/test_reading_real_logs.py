"""Logs of public runs, as they lie: each raw file gives the points and the levels that its case records."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from uptrend.bridge.importers import read_views
from uptrend.records.view import RunView

RUNS = Path(__file__).parents[4] / "shared" / "data" / "runs"
CASES = sorted(path.parent for path in RUNS.glob("*/meta.json"))
pytestmark = pytest.mark.skipif(not CASES, reason="the logs of public runs are not beside this checkout")


def logs() -> list[Path]:
    """Every raw log; where a case has none, its decoded points."""
    found = []
    for case in CASES:
        raw = [path for path in sorted(case.glob("raw/*")) if path.name != "training_summary.json"]
        found += raw or [case / "series.jsonl"]
    return found


def name(path: Path) -> str:
    return str(path.relative_to(RUNS))


def expected(path: Path) -> dict[str, Any]:
    case = next(case for case in CASES if case in path.parents)
    stats: dict[str, Any] = json.loads((case / "meta.json").read_text(encoding="utf-8"))["stats"]
    return stats


def agrees(view: RunView, stats: dict[str, Any]) -> bool:
    steps, rewards = view.curve("reward/mean")
    quarter = len(rewards) // 4
    levels = (rewards[:quarter].mean(), rewards[-quarter:].mean()) if quarter else (np.nan, np.nan)
    return (
        len(rewards) == stats["points"]
        and steps[0] == stats["first_step"]
        and steps[-1] == stats["last_step"]
        and bool(np.allclose(levels, (stats["q1_mean"], stats["q4_mean"]), rtol=1e-3, atol=1e-4))
    )


@pytest.mark.parametrize("path", logs(), ids=name)
def test_the_longest_run_has_the_recorded_points_and_levels(path: Path) -> None:
    views = read_views(path)
    longest = max(len(view.steps) for view in views)
    assert any(agrees(view, expected(path)) for view in views if len(view.steps) == longest)


@pytest.mark.parametrize("case", CASES, ids=name)
def test_decoded_points_read_too(case: Path) -> None:
    stats = expected(case / "series.jsonl")
    (view,) = read_views(case / "series.jsonl")
    assert len(view.curve("reward/mean")[1]) == stats["points"]


@pytest.mark.parametrize("case", CASES, ids=name)
def test_folders_of_raw_files_read_as_one_run_or_more(case: Path) -> None:
    if not (case / "raw").exists():
        pytest.skip("no raw log")
    assert max(len(view.steps) for view in read_views(case / "raw")) == expected(case / "series.jsonl")["points"]


def view(case: str, file: str) -> RunView:
    return max(read_views(RUNS / case / "raw" / file), key=lambda found: len(found.steps))


def test_what_some_of_them_are_known_for() -> None:
    assert view("econ-agent-grpo-n1-short", "grpo_train.log").value("sampling.size") == 1
    assert view("econ-agent-grpo-n1-short", "grpo_train.log").value("learning.kl.beta") == 0.0
    assert view("hotpot-v1-kl-runaway", "grpo.log").value("sampling.size") == 4
    assert view("supply-chain-clipped-doublecount", "training_metrics.csv").value("sampling.max_tokens") == 768
    broken = view("unlearn-run4-learning-then-nan", "train_run4.log").nonfinite
    assert broken == {"gradient/norm/before": (458,), "kl/reference/mean": (458,)}
    assert len(read_views(RUNS / "sentinel-oversight-200" / "raw" / "training_metrics.jsonl")) == 6
    assert any("10 times" in note for note in view("fair-rlvr-bbq-ceiling", "step_logs.json").notes)
    dead = view("f1-strategist-zero-variance", "trainer_state.json")
    assert dead.metrics["reward/group_std/mean"].max() < 1e-3
    assert len(view("game24-sft-grpo-flat", "curves_phase1.csv").evals) == 9
