"""What is written after a verdict, and that nothing else is."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from journals import KL, SIZES, WEIGHTS, entry_of, judged, make_lab, validated_kl, write_runs
from uptrend.lab import blocks
from uptrend.lab.journal import ArmRun, record
from uptrend.lab.journal.curves import by_arm, read_curves
from uptrend.lab.journal.stored import read_verdict
from uptrend.records import Arm, Confidence, Interval, Status

LESS = {"no penalty": [0.30, 0.32, 0.28, 0.31], "beta 0.1": [0.31, 0.32, 0.29, 0.30]}


@pytest.fixture(autouse=True)
def no_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures have tests of their own, and take their time."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)


def test_the_results_block_has_the_verdict_first_and_every_figure(tmp_path: Path) -> None:
    notebook, _, _, _ = validated_kl(tmp_path / "lab")
    block = blocks.get(notebook.path_of("h01").read_text(), "results")
    assert block is not None
    assert block.startswith("**VALIDATED: A KL penalty is required for arithmetic**\n\nThe effect is +11.2 points")
    assert "Confidence medium: Five seeds or more, and the tests agree.\n" in block
    # means .3025 and .415; differences .10 .11 .13 .11: mean .1125, deviation .012583, half-width 3.1824 × .0062915
    assert "| no penalty (control) | 4 | 30.2% |" in block
    assert "| beta 0.1 | 4 | 41.5% | +11.2 points | +9.2 to +13.3 | < .001 | .062 (.062) | 90% (70% to 98%) |" in block
    assert "| beta 0.1 | 3 | 12.0% | 42.0% | finished | 32 s | runs/h01-beta01-s3 |" in block
    assert "specification `abcdef0123`" in block


def test_a_claim_that_something_falls_is_told_as_measured(tmp_path: Path) -> None:
    notebook = make_lab(tmp_path / "lab", WEIGHTS)
    values = {"fp32": [0.36, 0.35, 0.37], "bf16": [0.20, 0.22, 0.21]}
    record(notebook, WEIGHTS, judged(WEIGHTS, values, Status.VALIDATED), entry_of(WEIGHTS, values))
    block = blocks.get(notebook.path_of("h03").read_text(), "results")
    assert block is not None
    assert "| bf16 | 3 | 21.0% | −15.0 points | −" in block
    assert "claimed to go down" in block


def test_a_second_verdict_replaces_the_results_and_adds_to_the_log(tmp_path: Path) -> None:
    notebook, _, _, _ = validated_kl(tmp_path / "lab")
    first = notebook.log.read_text()
    verdict = judged(KL, LESS, Status.INVALIDATED, confidence=Confidence.HIGH)
    record(notebook, KL, verdict, entry_of(KL, LESS, "2026-11-16T09:00:00+00:00"))
    log = notebook.log.read_text()
    assert log.startswith(first)
    assert log.index("## VALIDATED: A KL penalty") < log.index("## INVALIDATED: A KL penalty")
    page = notebook.path_of("h01").read_text()
    assert page.count("<!-- uptrend:results -->") == 1
    assert "**INVALIDATED" in page
    assert "**VALIDATED" not in page
    assert notebook.hypothesis("h01").status is Status.INVALIDATED
    fix = notebook.folder / "fixes" / f"{notebook.path_of('h01').stem}.md"
    assert "**Taken back** on 2026-11-16" in fix.read_text()
    assert not fix.with_suffix(".toml").exists()


def test_hand_edits_survive(tmp_path: Path) -> None:
    notebook, _, _, _ = validated_kl(tmp_path / "lab")
    fix = notebook.folder / "fixes" / f"{notebook.path_of('h01').stem}.md"
    pages = [notebook.folder / "README.md", notebook.log, notebook.path_of("h01"), fix]
    for page in pages:
        page.write_text(f"{page.read_text()}\nMy own words about {page.name}: 1 < 2 & so on.\n")
    record(notebook, KL, judged(KL, LESS, Status.INVALIDATED), entry_of(KL, LESS, "2026-11-16T09:00:00"))
    assert all(f"My own words about {page.name}: 1 < 2 & so on." in page.read_text() for page in pages)


def test_the_log_says_what_would_decide(tmp_path: Path) -> None:
    notebook = make_lab(tmp_path / "lab", KL)
    entry = entry_of(KL, LESS, "2026-11-15T12:30:05+00:00", notes=("Seed 4 lacks an arm.",))
    record(notebook, KL, judged(KL, LESS, Status.INCONCLUSIVE), entry)
    log = notebook.log.read_text()
    assert (
        "## INCONCLUSIVE: A KL penalty is required for arithmetic; 5 more seeds would decide (H01, 2026-11-15)" in log
    )
    for said in (
        "  uptrend lab run h01\n",
        "- **Configuration**: `recipe.toml`; control no penalty; beta 0.1: `learning.kl.beta = 0.1`",
        "- **Runs**: 8 finished, 4 min 12 s of work",
        "- **Outcome**, beta 0.1: 30.2% → 30.5% over 4 seeds, effect −1.3 to +1.8: inconclusive",
        "- **Note**: Seed 4 lacks an arm.",
        "- **When and where**: 2026-11-15 12:30 UTC. Uptrend 0.4.0, a CPU of 2 cores.",
    ):
        assert said in log


def test_voids_and_refusals_are_said_plainly(tmp_path: Path) -> None:
    notebook = make_lab(tmp_path / "lab", KL)
    verdict = judged(
        KL, LESS, Status.INCONCLUSIVE, void="smallest was 0.05 and is 0.01.", refused={"beta 0.1": "reward.constant."}
    )
    record(notebook, KL, verdict, entry_of(KL, LESS))
    for path in (notebook.log, notebook.path_of("h01")):
        text = path.read_text()
        assert "DOES NOT COUNT: A KL penalty is required" in text
        assert "> This verdict does not count: smallest was 0.05 and is 0.01." in text
        assert "> The arm beta 0.1 was refused: reward.constant." in text
    told = replace(verdict, sentence="Void: smallest was 0.05 and is 0.01. Arm beta 0.1 was refused: reward.constant.")
    record(notebook, KL, told, entry_of(KL, LESS))
    assert "This verdict does not count" not in notebook.path_of("h01").read_text()
    assert not list((notebook.folder / "fixes").iterdir())


def test_without_matplotlib_it_says_so(tmp_path: Path) -> None:
    notebook, _, _, written = validated_kl(tmp_path / "lab")
    assert not [path for path in written if path.suffix == ".png"]
    assert "No pictures: matplotlib is not installed. Install it with: pip install" in notebook.log.read_text()
    assert "![" not in notebook.path_of("h01").read_text()


def test_curves_are_thinned_kept_and_outlive_their_runs(tmp_path: Path) -> None:
    notebook = make_lab(tmp_path / "lab", KL)
    values = {"no penalty": [0.3, 0.3], "beta 0.1": [0.4, 0.5]}
    write_runs(notebook.folder, KL, values, steps=140)
    verdict, entry = judged(KL, values, Status.VALIDATED), entry_of(KL, values)
    record(notebook, KL, verdict, entry)
    kept = read_curves(notebook.results("h01") / "curves.json")
    assert [(c.arm, c.seed) for c in kept] == [("no penalty", 0), ("no penalty", 1), ("beta 0.1", 0), ("beta 0.1", 1)]
    assert kept[3].accuracy == ((0, 0.125), (70, 0.3), (140, 0.5))
    assert len(kept[3].reward) == 100
    (series,) = by_arm(kept, "accuracy", ["beta 0.1"])
    assert [step for step, _ in series.mean] == [0, 70, 140]
    assert [mean for _, mean in series.mean] == pytest.approx([0.125, 0.275, 0.45])
    (notebook.folder / "runs").rename(tmp_path / "elsewhere")
    record(notebook, KL, verdict, entry)
    assert read_curves(notebook.results("h01") / "curves.json") == kept


def test_another_metric_has_its_own_curve(tmp_path: Path) -> None:
    values = {"no penalty": [0.02, 0.02], "beta 0.1": [0.01, 0.01]}
    for metric, last in (("kl/reference/mean", 0.02), ("eval/part/exact", 0.5)):
        h = replace(KL, metric=metric)
        notebook = make_lab(tmp_path / metric.replace("/", "-"), h)
        write_runs(notebook.folder, h, {"no penalty": [0.5, 0.5], "beta 0.1": [0.5, 0.5]})
        record(notebook, h, judged(h, {**values, "beta 0.1": [0.01, 0.02]}, Status.INCONCLUSIVE), entry_of(h, values))
        kept = read_curves(notebook.results("h01") / "curves.json")
        assert kept[0].metric[-1] == (4, last)


def test_an_interval_without_ends_and_a_run_that_failed_are_written(tmp_path: Path) -> None:
    notebook = make_lab(tmp_path / "lab", KL)
    verdict = judged(KL, LESS, Status.INCONCLUSIVE)
    (only,) = verdict.comparisons
    endless = replace(only, interval=Interval(0.02, -float("inf"), float("inf")), seeds_needed=None)
    entry = entry_of(KL, LESS)
    entry = replace(entry, runs=(*entry.runs, ArmRun("beta 0.1", 4, "failed", reason="the disk | is full")))
    verdict = replace(verdict, comparisons=(endless,))
    record(notebook, KL, verdict, entry)
    text = notebook.path_of("h01").read_text()
    assert "| +2.0 points | −∞ to +∞ |" in text
    assert "failed: the disk \\| is full | – | – |" in text
    json.loads((notebook.results("h01") / "verdict.json").read_text(), parse_constant=pytest.fail)
    assert read_verdict(notebook.results("h01") / "verdict.json") == (verdict, entry)


def test_several_arms(tmp_path: Path) -> None:
    notebook = make_lab(tmp_path / "lab", SIZES)
    values = {"4 × 64": [0.30, 0.31, 0.29], "16 × 16": [0.38, 0.39, 0.385], "64 × 4": [0.33, 0.35, 0.31]}
    record(notebook, SIZES, judged(SIZES, values, Status.VALIDATED), entry_of(SIZES, values))
    text = notebook.path_of("h02").read_text()
    assert "97.5% interval" in text
    assert "[sampling]\nsize = 16\ngroups = 16\n" in next((notebook.folder / "fixes").glob("*.toml")).read_text()


def test_a_title_that_looks_like_markup_can_t_break_a_table(tmp_path: Path) -> None:
    arms = (Arm("a | b", {"learning.lr": 1e-5}, True), Arm("<!-- uptrend:results -->", {"learning.lr": 1e-4}))
    h = replace(KL, arms=arms)
    values = {arms[0].name: [0.3, 0.31], arms[1].name: [0.4, 0.42]}
    notebook = make_lab(tmp_path / "lab", h)
    record(notebook, h, judged(h, values, Status.VALIDATED), entry_of(h, values))
    record(notebook, h, judged(h, values, Status.VALIDATED), entry_of(h, values))
    assert "| a \\| b (control) |" in notebook.path_of("h01").read_text()
