"""`uptrend lab run` with a real model: to its verdict, stopped and gone on with, on Ray, and what it refuses."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from uptrend.cli.main import app
from uptrend.lab.notebook import Notebook
from uptrend.records import Arm, Hypothesis, LabError, Run

pytestmark = pytest.mark.slow

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
    allows=("optimizer.lr-small", "optimizer.lr-large", "run.collapsed"),
)  # fmt: skip
OURS = ("seconds/", "memory/", "time")


def make_lab(folder: Path) -> Notebook:
    notebook = Notebook.init(folder)
    (folder / "base.toml").write_text(RECIPE)
    notebook.add(H, {})
    return notebook


def run(*words: object) -> Any:
    return CliRunner().invoke(app, ["lab", "run", *map(str, words)])


def numbers(notebook: Notebook) -> dict[str, Any]:
    """All that runs recorded, but how long it took."""
    told: dict[str, Any] = {}
    for folder in sorted(notebook.runs.glob("*/")):
        made = Run(folder)
        steps = [{k: v for k, v in line.items() if not k.startswith(OURS)} for line in made.metric_lines]
        rows = [made.eval_rollouts(step).drop(["run", "seconds"]).to_pylist() for step in (0, 4)]
        told[folder.name] = (made.status, steps, rows)
    return told


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Notebook:
    """An experiment that nobody disturbed."""
    notebook = make_lab(tmp_path_factory.mktemp("calm") / "lab")
    told = run("h01", "--dir", notebook.folder, "--at-once", 2)
    assert told.exit_code == 0, told.output
    assert "h01: where differences deviate by 5 points between seeds" in told.output
    assert "h01 control, seed 0: finished, eval/accuracy" in told.output
    assert "[4 of 4 runs]" in told.output
    return notebook


def test_the_verdict_is_written_where_it_belongs(calm: Notebook) -> None:
    results = calm.results("h01")
    verdict = json.loads((results / "verdict.json").read_text())
    specification = json.loads((results / "specification.json").read_text())
    assert verdict["specification"] == specification["hash"]
    assert verdict["status"] == calm.hypothesis("h01").status
    assert verdict["entry"]["differences"] == {"nothing": {"learning.lr": [5e-4, 1e-9]}}
    assert f"uptrend:entry h01 {verdict['entry']['date']}" in calm.log.read_text()
    runs = json.loads((results / "runs.json").read_text())["runs"]
    assert [(row["arm"], row["seed"], row["status"]) for row in runs] == [
        ("control", 0, "finished"), ("nothing", 0, "finished"), ("control", 1, "finished"), ("nothing", 1, "finished"),
    ]  # fmt: skip
    values = {(row["arm"], row["seed"]): row["value"] for row in runs}
    expected = [values["nothing", seed] - values["control", seed] for seed in (0, 1)]
    assert verdict["comparisons"][0]["differences"] == pytest.approx(expected)


def test_runs_have_one_thread_and_leave_no_weights(calm: Notebook) -> None:
    for folder in calm.runs.glob("*/"):
        assert Run(folder).config["compute"]["threads"] == 1
        assert not (folder / "checkpoints").exists()


def test_only_the_first_seed_of_an_arm_asks_the_probes(calm: Notebook) -> None:
    asked = {Run(f).config["seed"]: any(e["event"] == "preflight" for e in Run(f).events) for f in calm.runs.glob("*/")}
    assert asked == {0: True, 1: False}


def copy_of(notebook: Notebook, folder: Path) -> Notebook:
    return Notebook(shutil.copytree(notebook.folder, folder))


def test_again_it_runs_nothing_and_says_the_same(calm: Notebook, tmp_path: Path) -> None:
    lab = copy_of(calm, tmp_path / "lab")
    told = run("h01", "--dir", lab.folder, "--format", "json")
    (verdict,) = json.loads(told.stdout)
    assert verdict["sentence"] == json.loads((calm.results("h01") / "verdict.json").read_text())["sentence"]
    assert told.stderr.count("there already, ") == 4
    assert "begun" not in told.stderr
    judged = CliRunner().invoke(app, ["lab", "judge", "h01", "--dir", str(lab.folder), "--format", "json"])
    assert json.loads(judged.stdout) == [verdict]


def test_a_changed_file_is_reported_by_name_and_voids_the_verdict(calm: Notebook, tmp_path: Path) -> None:
    lab = copy_of(calm, tmp_path / "lab")
    page = lab.path_of("h01")
    page.write_text(page.read_text().replace("smallest = 0.05", "smallest = 0.02"))
    told = run("h01", "--dir", lab.folder)
    assert told.exit_code == 1
    assert "the specification changed after the first step: smallest 0.05 → 0.02. Nothing is run" in told.output
    assert json.loads((lab.results("h01") / "verdict.json").read_text())["void"]
    again = run("h01", "--dir", lab.folder, "--restart")
    assert again.exit_code == 0
    assert (lab.results("h01") / "before-1" / "specification.json").exists()
    assert "begun anew once" in again.output


def test_an_experiment_that_was_killed_and_gone_on_with_on_ray_equals_an_undisturbed_one(
    calm: Notebook, tmp_path: Path
) -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    lab = make_lab(tmp_path / "lab")
    command = [sys.executable, "-m", "uptrend", "lab", "run", "h01", "--dir", str(lab.folder), "--at-once", "2"]
    parent = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=os.environ)
    for _ in range(1200):
        steps = [path for path in lab.folder.glob("runs/*/checkpoints/step-*") if path.name[-1] in "123"]
        if steps or parent.poll() is not None:
            break
        threading.Event().wait(0.1)
    assert steps
    child = next(e["pid"] for e in Run(steps[0].parents[1]).events if "pid" in e)
    parent.send_signal(signal.SIGINT)
    os.kill(child, signal.SIGKILL)
    assert "Nothing is lost. Go on with: uptrend lab run h01" in parent.communicate(timeout=120)[1].decode()
    assert parent.returncode == 130
    told = run("h01", "--dir", lab.folder, "--on", "ray", "--address", "local")
    assert told.exit_code == 0, told.output
    assert numbers(lab) == numbers(calm)
    events = [event["event"] for folder in lab.runs.glob("*/") for event in Run(folder).events]
    assert "resumed" in events
    sentences = [json.loads((each.results("h01") / "verdict.json").read_text())["sentence"] for each in (lab, calm)]
    assert sentences[0] == sentences[1]


def refused(*words: object) -> str:
    told = run(*words)
    assert isinstance(told.exception, LabError)
    return str(told.exception)


def test_what_it_does_not_run(tmp_path: Path) -> None:
    lab = make_lab(tmp_path / "lab")
    lab.add(replace(H, id="h02", title="Later", prerequisites=("h01",)), {})
    assert "Name hypotheses" in refused("--dir", lab.folder)
    assert "Name hypotheses" in refused("h01", "--all", "--dir", lab.folder)
    assert "There is no hypothesis h09" in refused("h09", "--dir", lab.folder)
    assert "h02 waits for h01 (pending)" in refused("h02", "--dir", lab.folder)
    judged = CliRunner().invoke(app, ["lab", "judge", "h01", "--dir", str(lab.folder)])
    assert "h01 has not been run yet" in str(judged.exception)
    assert not list(lab.folder.glob("experimental-results/*/specification.json"))
