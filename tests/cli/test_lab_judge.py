"""`uptrend lab judge` takes in what ended, and judges nothing whose runs are gone."""

import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest

from quick_runs import QuickLauncher, QuickWorkers
from uptrend.cli.lab.judge import _with_runs
from uptrend.lab.experiment import ExperimentRuns, together
from uptrend.lab.notebook import Notebook
from uptrend.records import Arm, Hypothesis, LabError, Verdict

H = Hypothesis(
    "h01", "A greater rate learns more", "base.toml", (Arm("control", {}, True), Arm("fast", {"learning.lr": 8e-3})),
    seeds=(0, 1, 2), stops_early=False,
)  # fmt: skip
RECIPE = 'name = "quick"\nmodel = { name = "finish" }\nlearning = { steps = 1 }\n'


def ran(folder: Path, *more: Arm) -> tuple[Notebook, Hypothesis, Verdict]:
    notebook = Notebook.init(folder)
    (folder / "base.toml").write_text(RECIPE)
    h = Hypothesis(**{**vars(H), "arms": (*H.arms, *more)})
    notebook.add(h, {})
    launcher = QuickLauncher()
    return notebook, h, together([ExperimentRuns(notebook, h, launcher)], launcher, QuickWorkers(), Mock())[0]


def test_what_the_probes_refused_and_what_failed_is_taken_in_too(tmp_path: Path) -> None:
    broken, unlucky = Arm("broken", {"model.name": "refuse"}), Arm("unlucky", {"model.name": "fail"})
    notebook, h, verdict = ran(tmp_path / "lab", broken, unlucky)
    assert list(verdict.refused) == ["broken"]
    again = _with_runs(ExperimentRuns(notebook, h, QuickLauncher()), notebook.folder)
    assert again.judge() == verdict


def test_a_verdict_whose_runs_are_gone_is_left_alone(tmp_path: Path) -> None:
    notebook, h, _ = ran(tmp_path / "lab")
    gone = min(notebook.runs.glob("quick-s1-*/"))
    shutil.rmtree(gone)
    with pytest.raises(LabError, match=rf"h01: 1 of its runs are not there any more \(runs/{gone.name} for one\)"):
        _with_runs(ExperimentRuns(notebook, h, QuickLauncher()), notebook.folder)
