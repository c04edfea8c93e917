"""Each benchmark in its smallest shape, started as its docstring says: it reaches its end and
prints its table.

benchmarks/step.py has a file of its own; benchmarks/logs.py is read by tests/doctor/test_logs.py.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from uptrend.policy.known import TINY_FOLDER

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
SMALL = ("sampling.groups=2", "sampling.size=2", "eval.tasks=4", "learning.warmup=0")


def run(*words: object, folder: Path | None = None) -> str:
    """Run Python with these words and return what it printed."""
    variables = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(
        command, cwd=folder or ROOT, env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout


def table_rows(printed: str) -> list[list[str]]:
    """Return the cells of a Markdown table, without its heading."""
    lines = [line for line in printed.splitlines() if line.startswith("|") and "---" not in line]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def test_features(tmp_path: Path) -> None:
    out = tmp_path / "features.json"
    sizes = ("--steps", 2, "--out", out, "--set", "model.name=tiny", *SMALL)
    ((name, *_),) = table_rows(
        run(BENCHMARKS / "features.py", "--only", "plain", *sizes, folder=tmp_path)
    )
    assert name == "plain"
    assert json.loads(out.read_text())["plain"][0]["seconds"] > 0


def test_layouts(tmp_path: Path) -> None:
    sets = [word for each in SMALL for word in ("--set", each)]
    printed = run(
        BENCHMARKS / "scale.py",
        "--layouts",
        "one",
        "--steps",
        4,
        *sets,
        "--out",
        tmp_path,
        folder=tmp_path,
    )
    ((name, *cells),) = table_rows(printed)
    assert name == "one"
    assert "→" in cells[-1]


def test_scripted_players_of_machine_learning_tasks(tmp_path: Path) -> None:
    options = ("--examples", 1, "--problems", "titanic", "--sandbox", "process", "--json")
    rows = json.loads(run(BENCHMARKS / "mlgym.py", *options, folder=tmp_path))
    assert {row["task"] for row in rows} == {"titanic"}
    assert {"baseline", "random"} <= {row["player"] for row in rows}


def test_the_blind_arm_of_multi_hop_questions(tmp_path: Path) -> None:
    sets = [word for each in (*SMALL, "learning.steps=1") for word in ("--set", each)]
    words = (
        "blind",
        ROOT / "recipes" / "tiny.toml",
        "--name",
        "blind-0",
        "--runs",
        tmp_path / "runs",
    )
    run(BENCHMARKS / "musique.py", *words, *sets, folder=tmp_path)
    assert (tmp_path / "runs" / "blind-0" / "metrics.jsonl").read_text().count("\n") == 1


@pytest.mark.parametrize("words", [("musique.py", "run"), ("musique.py", "real"), ("musique.py", "report"),
                                   ("retrieval.py",)])  # fmt: skip
def test_what_needs_a_model_that_has_to_be_downloaded_tells_its_options(
    words: tuple[str, ...],
) -> None:
    script, *rest = words
    assert "--help" in run(BENCHMARKS / script, *rest, "--help")


@pytest.mark.needs_package("chromium")
def test_the_dashboard_in_a_browser(tmp_path: Path) -> None:
    script, made = BENCHMARKS / "dashboard.py", tmp_path / "made"
    # A click goes to the last run but one, and the last rollout that is opened is ten steps beyond
    # the middle.
    run(script, "make", made, "--runs", 3, "--steps", 24)
    seconds = {
        name: first for name, first, _ in table_rows(run(script, "measure", made, "--tries", 1))
    }
    for page in ("first page, a table of runs", "a rollout, from a page that is open"):
        assert float(seconds[f"Uptrend: {page}"].split()[0]) > 0


def test_the_dashboard_beside_others(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    pytest.importorskip("trackio", reason="trackio is not installed")
    made = tmp_path / "made"
    run(BENCHMARKS / "dashboard.py", "make", made, "--runs", 1, "--steps", 4)
    run(BENCHMARKS / "dashboard.py", "others", made)
    for name in ("tensorboard", "trackio"):
        assert any(path.is_file() for path in (tmp_path / f"made-{name}").rglob("*"))


def test_the_cost_of_watching() -> None:
    pytest.importorskip("trl", reason="the extra trl is not installed")
    printed = run(
        "-m", "benchmarks.watched_overhead", "--model", TINY_FOLDER, "--steps", 2, "--rounds", 1
    )
    assert "median of 1 rounds: wall " in printed


def test_a_planted_fault_is_found_and_scored(tmp_path: Path) -> None:
    printed = run("-m", "benchmarks.faults", "sample", "--only", "run.nonfinite", "--to", tmp_path)
    assert "first  at 0: run.nonfinite" in printed
    assert table_rows(run("-m", "benchmarks.faults", "score", tmp_path))


@pytest.mark.parametrize("module", ["make", "score"])
def test_the_blind_trial_tells_its_options(module: str) -> None:
    """What they do is in tests/doctor/test_blind_benchmark.py."""
    assert "--help" in run("-m", f"benchmarks.faults.blind.{module}", "--help")


def test_verdicts() -> None:
    assert len(table_rows(run("-m", "benchmarks.verdicts", 20))) > 20
