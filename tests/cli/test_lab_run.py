"""`uptrend lab run, judge and sweep`: with a real model to the verdict, killed and continued; views
and refusals.
"""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from rich.console import Console

from quick_runs import QuickLauncher, QuickWorkers
from quick_runs import main as make_quick_run
from synthetic import write_run
from uptrend.cli import experiments
from uptrend.cli.experiments import take_outcomes
from uptrend.cli.lab_view import Board, LabView
from uptrend.lab.experiment import ExperimentRuns, run_experiments
from uptrend.lab.notebook import Notebook
from uptrend.lab.plan import PlannedRun
from uptrend.lab.workers import Outcome
from uptrend.records import Arm, Hypothesis, LabError, Method, Run, Source
from uptrend.runner.runs import TrainLauncher

Uptrend = Callable[..., Any]
QUICK = 'name = "quick"\nmodel = { name = "finish" }\nlearning = { steps = 1 }\n'
RECIPE = """
name = "tiny"
model = { name = "tiny" }
tasks = { name = "arithmetic", operations = ["+", "-"], train = 200, reward = "partial" }
eval = { name = "arithmetic", operations = ["+", "-"], tasks = 40, every = 0 }
sampling = { groups = 4, size = 8, temperature = 0.7, max_tokens = 5 }
learning = { steps = 4, lr = 5e-4 }
checkpoints = { every = 1 }
compute = { device = "cpu" }
"""
H = Hypothesis(
    "h01", "A rate of nothing learns as much", "base.toml",
    (Arm("control", {}, True), Arm("nothing", {"learning.lr": 1e-9})), seeds=(0, 1), stops_early=False,
    alpha=0.3,  # with which two seeds can decide
    allows=("optimizer.lr-small", "optimizer.lr-large", "run.collapsed"),
)  # fmt: skip
OURS = ("seconds/", "memory/", "time")


def make_lab(folder: Path, recipe: str = RECIPE, h: Hypothesis = H) -> Notebook:
    notebook = Notebook.init(folder)
    (folder / "base.toml").write_text(recipe)
    notebook.add(h, {})
    return notebook


def read(notebook: Notebook, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((notebook.results("h01") / name).read_text())
    return found


def numbers(notebook: Notebook) -> dict[str, Any]:
    """Return everything that runs recorded, except durations."""
    found: dict[str, Any] = {}
    for folder in sorted(notebook.runs.glob("*/")):
        made = Run(folder)
        steps = [
            {k: v for k, v in line.items() if not k.startswith(OURS)} for line in made.metric_lines
        ]
        rows = [made.eval_rollouts(step).drop(["run", "seconds"]).to_pylist() for step in (0, 4)]
        found[folder.name] = (made.status, steps, rows)
    return found


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "uptrend", "lab", "run", *map(str, words)]


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Notebook:
    """An experiment that nobody disturbed."""
    notebook = make_lab(tmp_path_factory.mktemp("calm") / "lab")
    subprocess.run(command("h01", "--dir", notebook.folder, "--at-once", 2), check=True)
    return notebook


@pytest.mark.slow
def test_the_verdict_is_written_where_it_belongs(calm: Notebook) -> None:
    verdict = read(calm, "verdict.json")
    assert verdict["specification"] == read(calm, "specification.json")["hash"]
    assert verdict["status"] == calm.hypothesis("h01").status
    assert verdict["entry"]["differences"] == {"nothing": {"learning.lr": [5e-4, 1e-9]}}
    assert f"uptrend:entry h01 {verdict['entry']['date']}" in calm.log.read_text()
    runs = read(calm, "runs.json")["runs"]
    assert {row["status"] for row in runs} == {"finished"}
    values = {(row["arm"], row["seed"]): row["value"] for row in runs}
    assert list(values) == [("control", 0), ("nothing", 0), ("control", 1), ("nothing", 1)]
    expected = [values["nothing", seed] - values["control", seed] for seed in (0, 1)]
    assert verdict["comparisons"][0]["differences"] == pytest.approx(expected)
    for run in map(Run, calm.runs.glob("*/")):
        assert run.config["compute"]["threads"] == 1
        assert not (run.path / "checkpoints").exists()
        # Only the first seed of an arm asks the probes.
        assert any(e["event"] == "preflight" for e in run.events) == (run.config["seed"] == 0)


@pytest.mark.slow
def test_again_it_runs_nothing_and_a_change_voids_the_verdict(
    calm: Notebook, tmp_path: Path, uptrend: Uptrend
) -> None:
    lab = Notebook(shutil.copytree(calm.folder, tmp_path / "lab"))
    where = ("--dir", lab.folder, "--format", "json")
    printed = uptrend("lab", "run", "h01", *where)
    (verdict,) = printed.json
    assert verdict["sentence"] == read(calm, "verdict.json")["sentence"]
    assert printed.err.count("there already, ") == 4
    assert "begun" not in printed.err
    assert uptrend("lab", "judge", "h01", *where).json == [verdict]
    page = lab.path_of("h01")
    page.write_text(page.read_text().replace("smallest = 0.05", "smallest = 0.02"))
    assert "smallest 0.05 → 0.02" in uptrend("lab", "run", "h01", "--dir", lab.folder, code=1).out
    assert read(lab, "verdict.json")["void"]
    assert "note: " in uptrend("lab", "run", "h01", "--dir", lab.folder, "--restart").out
    assert (lab.results("h01") / "before-1" / "specification.json").exists()


@pytest.mark.slow
def test_an_experiment_that_was_killed_and_continued_on_ray_equals_an_undisturbed_one(
    calm: Notebook, tmp_path: Path, uptrend: Uptrend
) -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    lab = make_lab(tmp_path / "lab")
    started = command("h01", "--dir", lab.folder, "--at-once", 2)
    parent = subprocess.Popen(started, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    for _ in range(1200):
        steps = [
            path for path in lab.folder.glob("runs/*/checkpoints/step-*") if path.name[-1] in "123"
        ]
        if steps or parent.poll() is not None:
            break
        threading.Event().wait(0.1)
    assert steps
    child = next(e["pid"] for e in Run(steps[0].parents[1]).events if "pid" in e)
    parent.send_signal(signal.SIGINT)
    os.kill(child, signal.SIGKILL)
    assert "Continue with: uptrend lab run h01" in parent.communicate(timeout=120)[1].decode()
    assert parent.returncode == 130
    uptrend("lab", "run", "h01", "--dir", lab.folder, "--on", "ray", "--address", "local")
    assert numbers(lab) == numbers(calm)
    assert "resumed" in [
        event["event"] for folder in lab.runs.glob("*/") for event in Run(folder).events
    ]
    assert read(lab, "verdict.json")["sentence"] == read(calm, "verdict.json")["sentence"]


def test_what_it_does_not_run(tmp_path: Path, uptrend: Uptrend) -> None:
    lab = make_lab(tmp_path / "lab")
    lab.add(replace(H, id="h02", title="Later", prerequisites=("h01",)), {})
    for words, message in {
        ("run",): "Name hypotheses",
        ("run", "h01", "--all"): "Name hypotheses",
        ("run", "h09"): "There is no hypothesis h09",
        ("run", "h02"): "h02 waits for h01 (pending)",
        ("judge", "h01"): "h01 has not been run yet",
    }.items():
        assert message in uptrend("lab", *words, "--dir", lab.folder, code=2).err
    assert not list(lab.folder.glob("experimental-results/*/specification.json"))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that are made at once, without a model."""
    monkeypatch.setattr(experiments, "TrainLauncher", QuickLauncher)
    monkeypatch.setattr(experiments, "Workers", lambda *_: QuickWorkers())


@pytest.mark.usefixtures("quick")
def test_quick_runs_from_the_command_line(tmp_path: Path, uptrend: Uptrend) -> None:
    fast = Arm("fast", {"learning.lr": 8e-3})
    lab = make_lab(tmp_path / "lab", QUICK, replace(H, arms=(H.arms[0], fast), seeds=(0, 1, 2)))
    lab.add(replace(H, id="h02", title="Later", prerequisites=("h01",), arms=(H.arms[0], fast)), {})
    where = ("--dir", lab.folder)
    assert "warning: h02 waits for h01" in uptrend("lab", "run", "h02", "--anyway", *where).err
    assert (
        "h01 A rate of nothing learns as much (measured: held-out accuracy ends higher): validated"
        in uptrend("lab", "run", "--all", *where).out
    )
    assert "has a verdict" in uptrend("lab", "run", "--all", *where, code=2).err
    more = uptrend("lab", "run", "h01", "--seeds-more", 2, "--format", "json", *where).json
    assert [row["seed"] for row in more[0]["runs"]] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


@pytest.mark.usefixtures("quick")
def test_a_sweep(tmp_path: Path, uptrend: Uptrend) -> None:
    recipe = tmp_path / "base.toml"
    recipe.write_text(QUICK)
    where = (recipe, "--dir", tmp_path)
    rates = ("--set", "learning.lr=1e-6,8e-3")
    assert (
        "2 points × 3 seeds = 6 runs"
        in uptrend("lab", "sweep", *where, *rates, "--seeds", "0-2").flat
    )
    found = uptrend("lab", "sweep", *where, *rates, "--seeds", "0-2", "--format", "json").json
    (written,) = (tmp_path / "sweeps").iterdir()
    assert json.loads(written.read_text()) == found
    assert [(row["arm"], row["seeds"]) for row in found["rows"]] == [
        ("lr=1e-06", [0, 1, 2]),
        ("lr=0.008", [0, 1, 2]),
    ]
    assert found["rows"][1]["difference"]["effect"] > 0.1
    assert "McNemar p" in uptrend("lab", "sweep", *where, *rates, "--seeds", "0", "--steps", 2).flat
    failing = ("--set", "model.name=finish,fail", "--seeds", "0")
    assert "note: name=fail, seed 0 failed" in uptrend("lab", "sweep", *where, *failing).flat
    error = uptrend("lab", "sweep", *where, "--set", "learning.lr=1e-3,0.001", code=2).err
    assert "same config" in error or "more than once" in error


def test_judging_takes_in_refused_and_failed_runs_and_misses_none(tmp_path: Path) -> None:
    arms = (
        *H.arms,
        Arm("broken", {"model.name": "refuse"}),
        Arm("unlucky", {"model.name": "fail"}),
    )
    h = replace(H, arms=arms, seeds=(0, 1, 2))
    notebook, launcher = make_lab(tmp_path / "lab", QUICK, h), QuickLauncher()
    verdict = run_experiments(
        [ExperimentRuns(notebook, h, launcher)], launcher, QuickWorkers(), Mock()
    )[0]
    assert list(verdict.refused) == ["broken"]
    experiment = ExperimentRuns(notebook, h, launcher)
    take_outcomes(experiment)
    assert experiment.judge() == verdict
    made = [
        folder
        for folder in notebook.runs.glob("quick-s1-*/")
        if Run(folder).config["model"]["name"] == "finish"
    ]
    shutil.rmtree(made[0])
    with pytest.raises(LabError, match="h01: 1 of its runs are missing"):
        take_outcomes(ExperimentRuns(notebook, h, launcher))


def test_a_replay_is_given_only_what_differs_from_its_source(tmp_path: Path) -> None:
    recipe, source = tmp_path / "base.toml", tmp_path / "source"
    recipe.write_text(QUICK)

    def planned(**overrides: object) -> PlannedRun:
        config = QuickLauncher().resolve(recipe, {"seed": 0, **overrides}).config
        return PlannedRun(
            "arm", 0, "ab", config, tmp_path / "again", (), Method.REPLAY, Source(str(source), 0)
        )

    make_quick_run(source, dict(planned().config), [])
    where, there = (
        ["replay", str(source), "--step", "0"],
        ["--runs", str(tmp_path), "--name", "again"],
    )
    command = TrainLauncher().command(planned())
    assert command[command.index("replay") :] == [*where, *there, "--quiet"]
    changed = planned(**{"learning.lr": 2e-3, "learning.steps": 2, "seed": 7})
    expected = [*where, "--steps", "2", *there, "--set", "learning.lr=0.002", "--quiet"]
    command = TrainLauncher().command(changed)
    assert command[command.index("replay") :] == expected
    shutil.rmtree(source)
    make_quick_run(source, dict(planned(**{"model.lora.r": 8}).config), [])
    with pytest.raises(LabError, match=r"has model\.lora\.r, and arm arm has none"):
        TrainLauncher().command(planned())


def board(folder: Path, seeds: int = 2, title: str = "h01 more is more") -> Board:
    """Two arms; the runs of seed 0 and the control's second one are recorded."""
    planned_runs = [
        PlannedRun(
            arm, seed, f"{title}{arm}{seed}", {"learning": {"steps": 20}}, folder / f"{arm}-{seed}"
        )
        for seed in range(seeds)
        for arm in ("control", "fast")
    ]
    for planned, right in zip(planned_runs[:3], (10, 20, 14), strict=True):
        write_run(planned.folder, rights=(8, right))
    return Board(title, "eval/accuracy", planned_runs, {})


def drawn(boards: list[Board], width: int) -> list[str]:
    """Draw boards whose first two runs are done and whose third is running."""
    view = LabView(boards, Console(file=io.StringIO(), width=width))
    for each in boards:
        for planned in each.planned_runs[2:3]:
            view.began(planned)
        for planned in each.planned_runs[:2]:
            view.ended(Outcome(planned, "finished", 30.0))
    console = Console(file=io.StringIO(), width=width, record=True)
    console.print(view.draw())
    return [line.rstrip() for line in console.export_text().splitlines()]


def test_the_table_of_an_experiment(tmp_path: Path) -> None:
    one = board(tmp_path)
    assert [line.split() for line in drawn([one], 60)[1:]] == [
        ["arm", "by", "seed", "mean"],
        ["control", "25.0%", "100%", "25.0%"],
        ["fast", "50.0%", "·", "50.0%"],
        ["2", "of", "4", "runs,", "about", "30", "s", "left"],
    ]
    one.refused["fast"] = "the doctor found something"  # type: ignore[index]
    lines = drawn([one], 60)
    assert lines[3].split() == ["fast", "50.0%", "refused", "50.0%"]
    assert lines[4].startswith("1 of 2 runs")
    done = replace(board(tmp_path / "done", title="h02 done"), planned_runs=one.planned_runs[:2])
    assert "h02" not in " ".join(drawn([one, done], 60))  # finished tables make room for the others
    assert all(len(line) <= 30 for line in drawn([board(tmp_path / "narrow", seeds=8)], 30))


@pytest.mark.parametrize("is_terminal", [False, True])
def test_every_run_has_its_lines(tmp_path: Path, is_terminal: bool) -> None:
    out, one = io.StringIO(), board(tmp_path)
    with LabView(
        [one], Console(file=out, width=90, force_terminal=is_terminal, color_system=None)
    ) as view:
        view.began(one.planned_runs[0])
        view.ended(Outcome(one.planned_runs[0], "finished", 30.0))
        view.ended(Outcome(one.planned_runs[1], "finished", was_there=True))
        view.ended(Outcome(one.planned_runs[3], "failed", 2.0, "out of luck"))
    for line in (
        "h01 control, seed 0: begun",
        "h01 control, seed 0: finished, eval/accuracy 25.0%, 30 s  [1 of 4 runs, about 1 min 30 s left]",
        "h01 fast, seed 0: there already, eval/accuracy 50.0%  [2 of 4 runs, about 1 min left]",
        "h01 fast, seed 1: failed, eval/accuracy –, 2.0 s: out of luck  [3 of 4 runs, about 30 s left]",
    ):
        assert line in out.getvalue()
    assert ("by seed" in out.getvalue()) == is_terminal
