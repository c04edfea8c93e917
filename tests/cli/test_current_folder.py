"""Files that lie in the current folder are data: no command imports them in the place of a
module.
"""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from synthetic import write_run
from uptrend.lab.notebook import Notebook
from uptrend.records import Arm, Hypothesis, Run

# Modules that children of ours import first, and what Python itself looks for.
MODULES = ("json", "numpy", "pyarrow", "torch", "pip", "transformers", "sitecustomize", "uptrend")
RECIPE = """
model = {{ name = "tiny" }}
tasks = {{ name = "arithmetic", operations = ["+"], train = 20 }}
eval = {{ name = "arithmetic", operations = ["+"], tasks = 2, every = 0 }}
sampling = {{ groups = 2, size = 4, max_tokens = 4 }}
learning = {{ steps = 2 }}
compute = {{ device = "cpu", processes = {processes} }}
"""
HYPOTHESIS = Hypothesis(
    "h01",
    "A rate of nothing learns as much",
    "base.toml",
    (Arm("control", {}, True), Arm("nothing", {"learning.lr": 1e-9})),
    seeds=(0, 1),
    stops_early=False,
    alpha=0.3,  # with which two seeds can decide
    allows=("optimizer.lr-small", "optimizer.lr-large", "run.collapsed"),
)
UPTREND = [sys.executable, "-P", "-m", "uptrend"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of somebody else's files; a module that is imported leaves a file."""
    for name in MODULES:
        program = f"open({str(tmp_path / f'{name}.ran')!r}, 'w')\nraise ImportError('{name} of the folder')\n"
        (tmp_path / f"{name}.py").write_text(program)
    return tmp_path


def imported(folder: Path) -> list[str]:
    return sorted(file.stem for file in folder.glob("*.ran"))


def variables(folder: Path) -> dict[str, str]:
    nowhere = {
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
        "PIP_RETRIES": "0",
        "PIP_NO_INDEX": "1",
    }
    # A relative or empty entry would be the user's own wish to import from the current folder.
    path = os.pathsep.join(
        part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part
    )
    home = {"UPTREND_HOME": str(folder / "home"), "PYTHONPATH": path}
    return os.environ | nowhere | home


def run(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*UPTREND, *words],
        cwd=folder,
        env=variables(folder),
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )


@pytest.mark.slow
def test_an_experiment_runs_nothing_of_the_folder(folder: Path) -> None:
    notebook = Notebook.init(folder / "lab")
    (notebook.folder / "base.toml").write_text(RECIPE.format(processes=2))
    notebook.add(HYPOTHESIS, {})
    done = run(folder, "lab", "run", "h01", "--dir", "lab")
    assert imported(folder) == []
    runs = [Run(path) for path in (folder / "lab" / "runs").glob("*/")]
    assert len(runs) == 4, done.stderr
    assert {each.status for each in runs} == {"finished"}, done.stderr


@pytest.mark.slow
def test_a_run_with_its_live_doctor_runs_nothing_of_the_folder(folder: Path) -> None:
    (folder / "recipe.toml").write_text(RECIPE.format(processes=1))
    done = run(folder, "train", "recipe.toml", "--no-preflight", "--set", "doctor.live=true")
    assert imported(folder) == []
    assert done.returncode == 0, done.stderr


def test_a_model_is_fetched_by_pip_and_not_by_a_file_of_that_name(folder: Path) -> None:
    done = run(folder, "models", "pull", "smollm2-135m")
    assert imported(folder) == []
    assert done.returncode == 2
    assert "could not be downloaded" in done.stderr


@pytest.mark.slow
def test_the_dashboard_runs_nothing_of_the_folder_that_it_shows(folder: Path) -> None:
    write_run(folder / "runs" / "healthy", steps=3)
    command = [*UPTREND, "serve", ".", "--no-open", "--port", "0"]
    with subprocess.Popen(
        command,
        cwd=folder,
        env=variables(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as server:
        assert server.stdout is not None
        address = ""
        while "http://" not in address:
            address = server.stdout.readline()
            assert address, "the server has ended"
        place, _, token = address.split("http://")[1].strip().partition("/?token=")
        status = urllib.request.Request(
            f"http://{place}/api/status", headers={"Authorization": f"Bearer {token}"}
        )
        until = time.monotonic() + 300
        while json.loads(urllib.request.urlopen(status, timeout=60).read())["indexing"]:
            assert time.monotonic() < until
            time.sleep(0.1)
        server.send_signal(signal.SIGINT)
        server.communicate(timeout=60)
    assert imported(folder) == []
