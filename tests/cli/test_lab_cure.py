"""Cures: refused before the first run where too few seeds could decide, and not tested where the
control is not ill.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quick_runs import QuickLauncher, QuickWorkers
from uptrend.cli import experiments
from uptrend.dashboard.journals import hypothesis, overview
from uptrend.dashboard.library import Library
from uptrend.lab.journal.page import page
from uptrend.lab.journal.stored import read_verdict
from uptrend.lab.notebook import Notebook
from uptrend.records import Arm, Direction, Hypothesis, Method, Source

Uptrend = Callable[..., Any]
QUICK = 'name = "quick"\nmodel = { name = "finish" }\nlearning = { steps = 40 }\n'
TINY = """
name = "tiny"
model = { name = "tiny" }
tasks = { name = "arithmetic", operations = ["+", "-"], train = 200, reward = "partial" }
eval = { name = "arithmetic", operations = ["+", "-"], tasks = 40, every = 0 }
sampling = { groups = 8, size = 8, temperature = 0.7, max_tokens = 5 }
learning = { steps = 12, lr = 3e-4 }
compute = { device = "cpu" }
"""
# A healthy control, and an arm that ends higher; the title says more than held-out accuracy can
# show.
CURE = Hypothesis(
    "h01", "The run does not collapse", "base.toml",
    (Arm("control", {}, True), Arm("gentle", {"learning.lr": 8e-3})), cause="optimizer.lr-large", stops_early=False,
)  # fmt: skip
ILL = {"model.name": "collapse"}
SIX = {"seeds": (0, 1, 2, 3, 4, 5)}  # so many equal differences decide
LESS = {"learning.lr": 2e-3}
FALL = {"metric": "reward/mean/fall", "direction": Direction.DOWN, "smallest": 0.1}
MEASURED = "The run does not collapse (measured: held-out accuracy ends higher)"
HEALTHY = "the doctor finds no sign of optimizer.lr-large in 5 finished runs of control"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that are made at once, without a model."""
    monkeypatch.setattr(experiments, "TrainLauncher", QuickLauncher)
    monkeypatch.setattr(experiments, "Workers", lambda *_: QuickWorkers())


def make_lab(folder: Path, h: Hypothesis = CURE, recipe: str = QUICK) -> Notebook:
    notebook = Notebook.init(folder)
    (folder / "base.toml").write_text(recipe)
    notebook.add(h, {})
    return notebook


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("seeds", ["0, 1", "4, 5, 6, 7"])
def test_too_few_seeds_are_refused_before_anything_is_written(
    tmp_path: Path, uptrend: Uptrend, seeds: str
) -> None:
    lab = make_lab(tmp_path / "lab")
    path = lab.path_of("h01")
    path.write_text(path.read_text().replace("seeds = [0, 1, 2, 3, 4]", f"seeds = [{seeds}]"))
    for also in ((), ("--restart",)):
        error = uptrend("lab", "run", "h01", *also, "--dir", lab.folder, code=2).err
        assert f"h01: seeds = [{seeds}]" in error
        assert "Write 5 seeds or more: seeds = [0, 1, 2, 3, 4]." in error
    assert not list(
        lab.folder.glob("experimental-results/*/*")
    )  # neither a specification nor one that was set aside
    assert not list(lab.runs.glob("*"))
    # With seeds that are added there are enough of them.
    uptrend("lab", "run", "h01", "--seeds-more", 3, "--dir", lab.folder)
    uptrend("lab", "run", "h01", "--dir", lab.folder)


@pytest.mark.usefixtures("quick")
def test_a_healthy_control_leaves_nothing_to_cure_and_every_surface_says_so(
    tmp_path: Path, uptrend: Uptrend
) -> None:
    lab = make_lab(tmp_path / "lab")
    where = ("--dir", lab.folder)
    assert f"h01 {MEASURED}: nothing to cure" in uptrend("lab", "run", "h01", *where).flat
    (verdict,) = uptrend("lab", "judge", "h01", *where, "--format", "json").json
    assert (verdict["status"], verdict["confidence"]) == ("inconclusive", "low")
    assert verdict["nothing_to_cure"] == verdict["because"] == HEALTHY
    assert verdict["sentence"].startswith(
        f"Nothing to cure: {HEALTHY}. The claim was not tested. gentle against"
    )
    (arm,) = verdict["comparisons"]
    assert arm["interval"]["low"] > 0, "its interval alone would have validated"
    assert (arm["status"], arm["seeds_needed"]) == ("inconclusive", None)
    kept = read_verdict(lab.results("h01") / "verdict.json")
    assert kept is not None
    assert kept[0].outcome == "nothing to cure"

    assert f"**NOTHING TO CURE: {MEASURED}**" in lab.path_of("h01").read_text()
    assert f"## NOTHING TO CURE: {MEASURED} (H01" in lab.log.read_text()
    assert (
        "| 🤔 nothing to cure | low | Nothing to cure: the doctor finds"
        in (lab.folder / "README.md").read_text()
    )
    assert "🤔 nothing to cure" in uptrend("lab", "list", *where, width=300).out
    assert (
        uptrend("lab", "list", *where, "--format", "json").json["hypotheses"][0]["outcome"]
        == "nothing to cure"
    )
    assert f"H01 NOTHING TO CURE: {MEASURED}" in uptrend("lab", "report", lab.folder).out
    told = uptrend("lab", "report", lab.folder, "--format", "json").json["hypotheses"][0]
    assert (told["status"], told["outcome"]) == ("inconclusive", "nothing to cure")
    shown = page(lab)
    assert shown.count('<span class="chip inconclusive">? nothing to cure</span>') == 3
    assert f"<h3>{MEASURED}</h3>" in shown

    library = Library([lab.folder], tmp_path / "home")
    try:
        library.refresh()
        (entry,) = library.entries("lab")
        (row,) = overview(library, entry.source.id)["hypotheses"]
        one = hypothesis(library, entry.source.id, "h01")
    finally:
        library.close()
    for told in (row, one):
        assert (told["outcome"], told["named"]) == ("nothing to cure", MEASURED)
    assert not list(lab.folder.glob("fixes/*"))


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("options", "status", "says"),
    [
        # Control and arm differ in the model alone, and the model is how a made run goes.
        (FALL | {"arms": (Arm("control", ILL, True), Arm("gentle"))}, "validated", "in the fall of training reward"),
        (FALL | SIX | {"arms": (Arm("control", ILL, True), Arm("ill", ILL | LESS))}, "invalidated", "ill against"),
        # By the metric itself: a control that does not fall has no room for less of a fall.
        (FALL | {"cause": "kl.runaway"}, "nothing to cure", ""),
        # An arm that brings the cause about needs no ill control.
        (
            {"arms": (Arm("fp32", {}, True), Arm("ill", ILL)), "cause": "run.collapsed", "direction": Direction.EITHER,
             "smallest": 0.2} | SIX,
            "invalidated", "ill against fp32",
        ),
        # A claim that is about no cause is about no cure.
        ({"cause": ""}, "validated", "gentle against control"),
    ],
)  # fmt: skip
def test_a_cure_is_tested_on_what_is_ill(
    tmp_path: Path, uptrend: Uptrend, options: dict[str, Any], status: str, says: str
) -> None:
    lab = make_lab(tmp_path / "lab", replace(CURE, **options))
    (verdict,) = uptrend("lab", "run", "h01", "--dir", lab.folder, "--format", "json").json
    assert verdict["status"] == status.replace("nothing to cure", "inconclusive"), verdict[
        "sentence"
    ]
    assert bool(verdict["nothing_to_cure"]) == (status == "nothing to cure"), verdict["sentence"]
    assert says in verdict["sentence"]


@pytest.mark.usefixtures("quick")
def test_what_so_few_steps_can_not_show_is_said_before_they_are_run(
    tmp_path: Path, uptrend: Uptrend
) -> None:
    lab = make_lab(tmp_path / "lab", replace(CURE, steps=8, allows=("run.nonfinite",)))
    printed = uptrend("lab", "run", "h01", "--dir", lab.folder, width=300)
    assert (
        "h01: warning: 8 steps per run: fewer than 20 show no trend (run.too-short)" in printed.out
    )
    assert (
        "h01: warning: 8 steps per run: the doctor needs 10 to tell whether the control has"
        in printed.out
    )
    unseen = (
        "the doctor could not tell whether control has optimizer.lr-large: fewer than 10 points"
    )
    assert "validated\nValidated: gentle" in printed.out
    assert f"Confidence low: {unseen}." in printed.out
    long = make_lab(tmp_path / "long")
    assert "warning" not in uptrend("lab", "run", "h01", "--dir", long.folder).out


def test_a_replay_is_judged_by_the_health_of_its_source() -> None:
    from uptrend.lab.experiment import Health, Signs, health_of_control

    h = replace(CURE, method=Method.REPLAY, source=Source("runs/base-s{seed}"))
    ill, well, unseen = Signs(("run.collapsed",)), Signs(()), Signs((), "no rollouts were kept")
    assert health_of_control(h, {"control": [well, ill], "gentle": [well]}) == Health()
    assert health_of_control(h, {"gentle": [well]}) == Health()
    assert health_of_control(h, {"control": [well, unseen]}).unseen.endswith(
        "lr-large: no rollouts were kept"
    )
    assert health_of_control(h, {"control": [well], "gentle": [Signs((h.cause,))]}) == Health()
    assert (
        "in 2 finished runs of control" in health_of_control(h, {"control": [well, well]}).healthy
    )


@pytest.mark.slow
def test_real_runs_healthy_and_ill(tmp_path: Path, uptrend: Uptrend) -> None:
    calm, slow = Arm("control", {"learning.lr": 1e-4}, True), Arm("a third", {"learning.lr": 3e-5})
    lab = make_lab(tmp_path / "lab", replace(CURE, arms=(calm, slow), seeds=(0, 1)), TINY)
    where = ("--dir", lab.folder)
    assert "Write 5 seeds or more" in uptrend("lab", "run", "h01", *where, code=2).err
    assert not list(lab.runs.glob("*"))
    # Whoever accepts so many wrong verdicts may decide by two seeds. At 3e-4 these runs lose half
    # of what they knew.
    path = lab.path_of("h01")
    path.write_text(path.read_text().replace("alpha = 0.05", "alpha = 0.30"))
    ill = (Arm("control", {}, True), Arm("a third", {"learning.lr": 1e-4}))
    lab.add(replace(CURE, id="h02", arms=ill, seeds=(0, 1), alpha=0.3), {})
    healthy, cured = uptrend("lab", "run", "h01", "h02", *where, "--format", "json").json
    assert (healthy["status"], healthy["comparisons"][0]["status"]) == (
        "inconclusive",
        "inconclusive",
    )
    assert healthy["nothing_to_cure"].startswith(
        "the doctor finds no sign of optimizer.lr-large in 2 finished runs"
    )
    assert healthy["comparisons"][0]["p_adjusted"] is None, (
        "what was not tested is none of the family"
    )
    assert (cured["nothing_to_cure"], cured["status"]) == ("", "validated"), cured["sentence"]
