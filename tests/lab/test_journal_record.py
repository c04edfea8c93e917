"""Writing a verdict down: entries, pictures, kept curves and fixes, and nothing else is changed."""

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from journals import KL, SIZES, WEIGHTS, entry_of, judged, make_lab, validated_kl, write_runs
from uptrend.config import load_config
from uptrend.lab import blocks
from uptrend.lab.journal import ArmRun, record
from uptrend.lab.journal.figures import arms_with, draw_curves, draw_intervals, mean_of, place_of
from uptrend.lab.journal.recording import NO_SETTING, change_of, fix_page, override_of
from uptrend.lab.journal.stored import Curves, read_curves, read_verdict
from uptrend.records import Arm, Confidence, Direction, Interval, Status
from uptrend.stats.drawing import COLORS, plotting

LESS = {"no penalty": [0.30, 0.32, 0.28, 0.31], "beta 0.1": [0.31, 0.32, 0.29, 0.30]}
BETTER = {"no penalty": [0.30, 0.32, 0.28], "beta 0.1": [0.40, 0.43, 0.41]}
HARMFUL = {"fp32": [0.36, 0.35, 0.37], "bf16": [0.20, 0.22, 0.21]}
NAME = "h01-a-kl-penalty-is-required-for-arithmetic"


def test_a_verdict_is_written_everywhere(tmp_path: Path) -> None:
    notebook, verdict, entry, written = validated_kl(tmp_path / "lab")
    results = [f"experimental-results/h01/{name}" for name in ("verdict.json", "curves.json", "curves.png")]
    fixes = [f"fixes/{NAME}.{ending}" for ending in ("md", "toml", "png")]
    pages = ["README.md", "01-experiments-log.md", f"hypotheses/{NAME}.md", "experimental-results/h01/intervals.png"]
    assert {path.relative_to(notebook.folder).as_posix() for path in written} == {*results, *fixes, *pages}
    assert all(path.is_file() for path in written)
    assert (notebook.hypothesis("h01").status, notebook.hypothesis("h01").confidence) == ("validated", "medium")
    assert f"| {verdict.sentence} |" in (notebook.folder / "README.md").read_text()
    assert read_verdict(notebook.results("h01") / "verdict.json") == (verdict, entry)
    block = blocks.get(notebook.path_of("h01").read_text(), "results") or ""
    assert block.startswith("**VALIDATED: ")
    # means .3025 and .415; differences .10 .11 .13 .11: mean .1125, deviation .012583, half-width 3.1824 × .0062915
    assert "| no penalty (control) | 4 | 30.2% |" in block
    assert "| beta 0.1 | 4 | 41.5% | +11.2 points | +9.2 to +13.3 | < .001 | .062 (.062) | 90% (70% to 98%) |" in block
    assert "| beta 0.1 | 3 | 12.0% | 42.0% | finished | 32 s | runs/h01-beta01-s3 |" in block
    assert "(../experimental-results/h01/curves.png)" in block
    page = (notebook.folder / "fixes" / f"{NAME}.md").read_text()
    assert "uptrend train recipe.toml --set 'learning.kl.beta=0.1'\n```" in page
    assert (
        f"| `learning.kl.beta = 0.1` | `beta = 0.1` | `beta = 0.1` (GRPOConfig; RLConfig has none) | {NO_SETTING} ("
        in page
    )


def test_a_claim_that_something_falls_is_told_as_measured(tmp_path: Path) -> None:
    notebook = make_lab(tmp_path / "lab", WEIGHTS)
    record(notebook, WEIGHTS, judged(WEIGHTS, HARMFUL, Status.VALIDATED), entry_of(WEIGHTS, HARMFUL))
    block = blocks.get(notebook.path_of("h03").read_text(), "results") or ""
    assert "| bf16 | 3 | 21.0% | −15.0 points | −" in block
    assert "chance of a fall" in block


def test_a_second_verdict_replaces_the_results_adds_to_the_log_and_keeps_what_people_wrote(tmp_path: Path) -> None:
    notebook, _, _, _ = validated_kl(tmp_path / "lab")
    fix = notebook.folder / "fixes" / f"{NAME}.md"
    pages = [notebook.folder / "README.md", notebook.log, notebook.path_of("h01"), fix]
    for page in pages:
        page.write_text(f"{page.read_text()}\nMy own words about {page.name}: 1 < 2 & so on.\n")
    first = notebook.log.read_text()
    verdict = judged(KL, LESS, Status.INVALIDATED, confidence=Confidence.HIGH)
    record(notebook, KL, verdict, entry_of(KL, LESS, "2026-11-16T09:00:00+00:00"))
    assert notebook.log.read_text().startswith(first)
    assert blocks.names(notebook.log.read_text()) == [
        "entry h01 2026-11-15T12:30:05",
        "entry h01 2026-11-16T09:00:00+00:00",
    ]
    assert (blocks.get(notebook.path_of("h01").read_text(), "results") or "").startswith("**INVALIDATED: ")
    assert notebook.hypothesis("h01").status is Status.INVALIDATED
    assert "**Taken back** on 2026-11-16" in fix.read_text()
    assert not fix.with_suffix(".toml").exists()
    assert all(f"My own words about {page.name}: 1 < 2 & so on." in page.read_text() for page in pages)


def test_the_log_says_what_would_decide(tmp_path: Path) -> None:
    notebook = make_lab(tmp_path / "lab", KL)
    entry = entry_of(KL, LESS, "2026-11-15T12:30:05+00:00", notes=("Seed 4 lacks an arm.",))
    record(notebook, KL, judged(KL, LESS, Status.INCONCLUSIVE), entry)
    log = notebook.log.read_text()
    for said in (
        "; 5 more seeds would decide (H01, 2026-11-15)\n",
        "  uptrend lab run h01\n",
        "`recipe.toml`; control no penalty; beta 0.1: `learning.kl.beta = 0.1`\n",
        "8 finished, 4 min 12 s of work\n",
        "30.2% → 30.5% over 4 seeds, effect −1.3 to +1.8: inconclusive\n",
        "- **Note**: Seed 4 lacks an arm.\n",
        "2026-11-15 12:30 UTC. Uptrend 0.4.0, a CPU of 2 cores.\n",
    ):
        assert said in log


def test_voids_refusals_and_early_stops_are_said_once(tmp_path: Path) -> None:
    notebook = make_lab(tmp_path / "lab", KL)
    void, refused = "smallest was 0.05 and is 0.01.", {"beta 0.1": "reward.constant."}
    verdict = judged(KL, LESS, Status.INCONCLUSIVE, void=void, refused=refused, stopped_early=True)
    record(notebook, KL, verdict, entry_of(KL, LESS))
    for path in (notebook.log, notebook.path_of("h01")):
        text = path.read_text()
        assert "DOES NOT COUNT: " in text
        assert [line.count(said) for said, line in zip(("0.05 and is 0.01", "reward.constant", "stopped early"), [
            line for line in text.splitlines() if line.startswith("> ")
        ], strict=True)] == [1, 1, 1]  # fmt: skip
    told = replace(verdict, sentence=f"Void: {void} Refused: {refused['beta 0.1']} By its confidence sequence.")
    told = replace(told, comparisons=())
    record(notebook, KL, told, entry_of(KL, LESS))
    assert "\n> " not in notebook.path_of("h01").read_text()
    assert not list((notebook.folder / "fixes").iterdir())


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
    assert mean_of(arms_with(KL, kept, "accuracy")["beta 0.1"]) == [
        (step, pytest.approx(mean)) for step, mean in ((0, 0.125), (70, 0.275), (140, 0.45))
    ]
    (notebook.folder / "runs").rename(tmp_path / "elsewhere")
    record(notebook, KL, verdict, entry)
    assert read_curves(notebook.results("h01") / "curves.json") == kept


@pytest.mark.parametrize(("metric", "last"), [("kl/reference/mean", 0.02), ("eval/part/exact", 0.5)])
def test_another_metric_has_its_own_curve(tmp_path: Path, metric: str, last: float) -> None:
    h = replace(KL, metric=metric)
    notebook = make_lab(tmp_path / "lab", h)
    write_runs(notebook.folder, h, {"no penalty": [0.5, 0.5], "beta 0.1": [0.5, 0.5]})
    values = {"no penalty": [0.02, 0.02], "beta 0.1": [0.01, 0.02]}
    record(notebook, h, judged(h, values, Status.INCONCLUSIVE), entry_of(h, values))
    assert read_curves(notebook.results("h01") / "curves.json")[0].metric[-1] == (4, last)


def test_an_interval_without_ends_and_a_run_that_failed_are_written(tmp_path: Path) -> None:
    notebook = make_lab(tmp_path / "lab", KL)
    verdict = judged(KL, LESS, Status.INCONCLUSIVE)
    endless = replace(verdict.comparisons[0], interval=Interval(0.02, -float("inf"), float("inf")), seeds_needed=None)
    verdict, entry = replace(verdict, comparisons=(endless,)), entry_of(KL, LESS)
    entry = replace(entry, runs=(*entry.runs, ArmRun("beta 0.1", 4, "failed", reason="the disk | is full")))
    record(notebook, KL, verdict, entry)
    text = notebook.path_of("h01").read_text()
    assert "| +2.0 points | −∞ to +∞ |" in text
    assert "failed: the disk \\| is full | – | – |" in text
    json.loads((notebook.results("h01") / "verdict.json").read_text(), parse_constant=pytest.fail)
    assert read_verdict(notebook.results("h01") / "verdict.json") == (verdict, entry)


def test_a_name_that_looks_like_markup_can_t_break_a_page_or_a_picture(tmp_path: Path) -> None:
    arms = (Arm("a | b", {"learning.lr": 1e-5}, True), Arm("<!-- uptrend:results --> $x^$", {"learning.lr": 1e-4}))
    h = replace(KL, arms=arms)
    values = {arms[0].name: [0.3, 0.31], arms[1].name: [0.4, 0.42]}
    notebook = make_lab(tmp_path / "lab", h)
    for _ in range(2):
        record(notebook, h, judged(h, values, Status.VALIDATED), entry_of(h, values))
    assert "| a \\| b (control) |" in notebook.path_of("h01").read_text()


def test_curves_have_a_thin_line_per_seed_and_a_thick_mean() -> None:
    curves = [
        Curves(arm.name, seed, f"runs/{seed}", ((0, 0.1), (4, 0.1 + seed / 10)), tuple((s, s / 9) for s in range(4)))
        for arm in KL.arms
        for seed in range(3)
    ]
    with plotting() as plt:
        axes = plt.subplots()[1]
        draw_curves(axes, KL, curves, "accuracy")
        assert [line.get_linewidth() > 2 for line in axes.lines] == [False, False, False, True] * 2
        assert list(axes.lines[3].get_ydata()) == pytest.approx([10, 20])  # per cent, the mean of 10, 20 and 30
        assert axes.get_legend_handles_labels()[1] == ["no penalty (3 seeds)", "beta 0.1 (3 seeds)"]
    colors = [COLORS[place_of(SIZES, arm.name)] for arm in SIZES.arms]
    assert colors[0] == COLORS[-1]  # the control is gray
    assert len(set(colors)) == 3


@pytest.mark.parametrize(
    ("direction", "marks"), [(Direction.UP, [5]), (Direction.DOWN, [-5]), (Direction.EITHER, [5, -5])]
)
def test_intervals_have_zero_the_smallest_effect_and_a_dot_per_seed(direction: Direction, marks: list[float]) -> None:
    verdict = judged(KL, BETTER, Status.VALIDATED)
    sign = -1 if direction is Direction.DOWN else 1
    with plotting() as plt:
        axes = plt.subplots()[1]
        draw_intervals(axes, replace(KL, direction=direction), verdict)
        zero, *rest = axes.lines
        assert list(zero.get_xdata()) == [0, 0]
        assert [line.get_xdata()[0] for line in rest[: len(marks)]] == marks
        dots, bar, effect = rest[len(marks) :]
        assert list(dots.get_xdata()) == pytest.approx([sign * 10, sign * 11, sign * 13])
        assert list(effect.get_xdata()) == pytest.approx([sign * 34 / 3])
        assert abs(bar.get_xdata()[0]) == pytest.approx(100 * verdict.comparisons[0].interval.low)
        endless = replace(verdict.comparisons[0], interval=Interval(0.1, -float("inf"), float("inf")))
        axes = plt.subplots()[1]
        draw_intervals(axes, KL, replace(verdict, comparisons=(endless,)))
        low, high = axes.lines[3].get_xdata()
        assert low < 0 < 13 < high < 100


SIZED = {"4 × 64": [0.30, 0.31, 0.29], "16 × 16": [0.36, 0.37, 0.37], "64 × 4": [0.40, 0.44, 0.41]}
LESS_KL = {"no penalty": [0.5, 0.6, 0.55], "beta 0.1": [0.1, 0.12, 0.1]}


@pytest.mark.parametrize(
    ("h", "values", "expected"),
    [
        (KL, BETTER, ("no penalty", "beta 0.1", {"learning.kl.beta": 0.1})),
        (WEIGHTS, HARMFUL, ("bf16", "fp32", {"model.weights": "fp32"})),  # of a harmful arm the control is the fix
        (SIZES, SIZED, ("4 × 64", "64 × 4", {"sampling.size": 64, "sampling.groups": 4})),
        # Of a metric that is not better in itself, what was claimed is what is wanted.
        (replace(KL, metric="kl/reference/mean", direction=Direction.DOWN), LESS_KL,
         ("no penalty", "beta 0.1", {"learning.kl.beta": 0.1})),
        (replace(KL, metric="kl/reference/mean", direction=Direction.EITHER), LESS_KL,
         ("beta 0.1", "no penalty", {"learning.kl.beta": 0.0})),
    ],
)  # fmt: skip
def test_the_better_side_is_what_to_change_to(h, values, expected) -> None:  # type: ignore[no-untyped-def]
    change = change_of(h, judged(h, values, Status.VALIDATED), entry_of(h, values))
    assert change is not None
    assert (change.before, change.after, change.values) == expected


def test_an_arm_that_is_not_validated_itself_is_no_fix() -> None:
    verdict = judged(SIZES, SIZED, Status.VALIDATED)
    weak = replace(verdict.comparisons[1], status=Status.INCONCLUSIVE)
    change = change_of(SIZES, replace(verdict, comparisons=(verdict.comparisons[0], weak)), entry_of(SIZES, SIZED))
    assert change is not None
    assert change.after == "16 × 16"


def test_what_does_not_hold_does_not_count_or_does_not_differ_is_no_fix() -> None:
    entry = entry_of(KL, BETTER)
    for status, void in ((Status.INVALIDATED, ""), (Status.INCONCLUSIVE, ""), (Status.VALIDATED, "it changed")):
        assert change_of(KL, judged(KL, BETTER, status, void=void), entry) is None
    same = replace(entry, differences={"beta 0.1": {"seed": (0, 1)}})
    assert change_of(KL, judged(KL, BETTER, Status.VALIDATED), same) is None


def test_a_fix_is_a_part_of_a_recipe_and_a_page_with_the_gain() -> None:
    lora = {"learning.kl.beta": (0.0, 0.1), "model.lora": ({"r": 8}, None), "seed": (0, 1)}
    change = change_of(
        KL, judged(KL, BETTER, Status.VALIDATED), replace(entry_of(KL, BETTER), differences={"beta 0.1": lora})
    )
    assert change is not None
    text = override_of(KL, change)
    assert tomllib.loads(text) == {"learning": {"kl": {"beta": 0.1}}, "model": {}}
    assert "# Leave out model.lora." in text
    assert load_config(tomllib.loads(text)).learning.kl.beta == 0.1
    verdict, entry = judged(WEIGHTS, HARMFUL, Status.VALIDATED), entry_of(WEIGHTS, HARMFUL)
    change = change_of(WEIGHTS, verdict, entry)
    assert change is not None
    page = fix_page(WEIGHTS, verdict, entry, change, "h03-weights", "")
    assert "| mean over 3 seeds | 21.0% | 36.0% |" in page
    assert "| effect, 95% interval |  | +1" in page  # as seen by someone who makes the change
    assert '`trainer.model.optimization_dtype = "float32"`' in page
    assert "## What else the catalogue says of `precision.update-underflow`" in page
