"""The command lines by which the lab has runs made."""

from pathlib import Path

import pytest

from quick_runs import QuickLauncher, main
from uptrend.lab.plan import PlannedRun
from uptrend.records import LabError, Method, Source
from uptrend.runner.launcher import TrainLauncher

RECIPE = 'name = "quick"\nmodel = { name = "finish" }\nlearning = { steps = 2 }\n'


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "base.toml"
    path.write_text(RECIPE)
    return path


def planned(recipe: Path, source: Path, **overrides: object) -> PlannedRun:
    config = QuickLauncher().resolve(recipe, {"seed": 0, **overrides}).config
    return PlannedRun("arm", 0, "ab", config, source.parent / "again", (), Method.REPLAY, Source(str(source), 0))


def made(recipe: Path, folder: Path, **overrides: object) -> Path:
    main(folder, dict(QuickLauncher().resolve(recipe, {"seed": 0, **overrides}).config), [])
    return folder


def test_a_replay_is_told_what_differs_from_its_source_and_nothing_else(recipe: Path, tmp_path: Path) -> None:
    source = made(recipe, tmp_path / "source")
    where = ["replay", str(source), "--step", "0"]
    there = ["--runs", str(tmp_path), "--name", "again"]
    command = TrainLauncher().command
    assert command(planned(recipe, source))[3:] == [*where, *there, "--quiet"]
    changed = planned(recipe, source, **{"learning.lr": 2e-3, "learning.steps": 1, "seed": 7})
    assert command(changed)[3:] == [*where, "--steps", "1", *there, "--set", "learning.lr=0.002", "--quiet"]


def test_a_replay_can_leave_nothing_out_of_its_source(recipe: Path, tmp_path: Path) -> None:
    source = made(recipe, tmp_path / "source", **{"model.lora.r": 8})
    with pytest.raises(LabError, match=r"has model\.lora\.r, and arm arm has none"):
        TrainLauncher().command(planned(recipe, source))
