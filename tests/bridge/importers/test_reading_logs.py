"""Whole logs with the defects that logs have: each gives the points, levels and settings that its case records."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from uptrend.bridge.importers import read_views
from uptrend.records.view import RunView

LOGS = Path(__file__).parents[2] / "data" / "logs"
CASES = sorted(path.parent for path in LOGS.glob("*/meta.json"))
by_case = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])


def log_of(case: Path) -> Path:
    raw = [path for path in sorted(case.glob("raw/*")) if path.name != "training_summary.json"]
    return raw[0] if raw else case / "series.jsonl"


def meta(case: Path) -> dict[str, Any]:
    return dict(json.loads((case / "meta.json").read_text(encoding="utf-8")))


def longest(path: Path) -> RunView:
    return max(read_views(path), key=lambda view: len(view.steps))


@by_case
def test_the_run_has_the_recorded_points_and_levels(case: Path) -> None:
    stats = meta(case)["stats"]
    steps, rewards = longest(log_of(case)).curve("reward/mean")
    quarter = len(rewards) // 4
    assert len(rewards) == stats["points"]
    assert (steps[0], steps[-1]) == (stats["first_step"], stats["last_step"])
    levels = rewards[:quarter].mean(), rewards[-quarter:].mean()
    np.testing.assert_allclose(levels, (stats["q1_mean"], stats["q4_mean"]), rtol=1e-3, atol=1e-4)


@by_case
def test_a_folder_reads_as_its_log(case: Path) -> None:
    assert len(longest(log_of(case).parent).steps) == meta(case)["stats"]["points"]


KNOWN = [case for case in CASES if {"config", "nonfinite", "evals", "runs", "notes"} & meta(case).keys()]


@pytest.mark.parametrize("case", KNOWN, ids=[case.name for case in KNOWN])
def test_settings_evaluations_restarts_and_broken_values_are_read(case: Path) -> None:
    known, view = meta(case), longest(log_of(case))
    assert {key: view.value(key) for key in known.get("config", {})} == known.get("config", {})
    assert {name: list(steps) for name, steps in view.nonfinite.items()} == known.get("nonfinite", {})
    assert len(view.evals) == known.get("evals", 0)
    assert len(read_views(log_of(case))) == known.get("runs", 1)
    assert all(any(text in note for note in view.notes) for text in known.get("notes", []))


def test_a_spread_between_prompts_is_not_one_within_groups() -> None:
    view = longest(log_of(LOGS / "harbor-default"))
    assert view.metrics["reward/group_std/mean"].max() < 1e-3
    assert view.metrics["reward/part/pilot/std"].min() > 0.05
