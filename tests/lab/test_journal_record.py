"""Writing a verdict down: entries, pictures, kept curves and fixes, and nothing else is changed."""

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from journals import KL, SIZES, WEIGHTS, entry_of, judged, make_lab, validated_kl, write_runs
from uptrend.config import load_config
from uptrend.lab.hypothesis_file import BLOCK_FORM, get_block
from uptrend.lab.journal import ArmRun, change_of, record
from uptrend.lab.journal.figures import draw_intervals
from uptrend.lab.journal.stored import Curves, read_rows, read_verdict
from uptrend.present.drawing import plotting
from uptrend.records import Arm, Confidence, Direction, Interval, Status

LESS = {"no penalty": [0.30, 0.32, 0.28, 0.31], "beta 0.1": [0.31, 0.32, 0.29, 0.30]}
BETTER = {"no penalty": [0.30, 0.32, 0.28], "beta 0.1": [0.40, 0.43, 0.41]}
HARMFUL = {"fp32": [0.36, 0.35, 0.37], "bf16": [0.20, 0.22, 0.21]}
NAME = "h01-a-kl-penalty-is-required-for-arithmetic"


def test_a_verdict_is_written_everywhere(tmp_path: Path) -> None:
    notebook, verdict, entry, written = validated_kl(tmp_path / "lab")
    results = [
        f"experimental-results/h01/{name}" for name in ("verdict.json", "curves.json", "curves.png")
    ]
    fixes = [f"fixes/{NAME}.{ending}" for ending in ("md", "toml", "png")]
    pages = [
        "README.md",
        "01-experiments-log.md",
        f"hypotheses/{NAME}.md",
        "experimental-results/h01/intervals.png",
    ]
    assert {path.relative_to(notebook.folder).as_posix() for path in written} == {
        *results,
        *fixes,
        *pages,
    }
    assert all(path.is_file() for path in written)
    assert (notebook.hypothesis("h01").status, notebook.hypothesis("h01").confidence) == (
        "validated",
        "medium",
    )
    assert f"| {verdict.sentence} |" in (notebook.folder / "README.md").read_text()
    assert read_verdict(notebook.results("h01") / "verdict.json") == (verdict, entry)
    block = get_block(notebook.path_of("h01").read_text(), "results") or ""
    assert block.startswith("**VALIDATED: ")
    # means .3025 and .415; differences .10 .11 .13 .11: mean .1125, deviation .012583, half-width
    # 3.1824 × .0062915
    assert "| no penalty (control) | 4 | 30.2% |" in block
    assert (
        "| beta 0.1 | 4 | 41.5% | +11.2 points | +9.2 to +13.3 | < .001 | .062 (.062) | 90% (70% to 98%) |"
        in block
    )
    assert "| beta 0.1 | 3 | 12.0% | 42.0% | finished | 32 s | runs/h01-beta01-s3 |" in block
    assert "(../experimental-results/h01/curves.png)" in block
    page = (notebook.folder / "fixes" / f"{NAME}.md").read_text()
    assert "uptrend train recipe.toml --set 'learning.kl.beta=0.1'\n```" in page
    assert (
        "| `learning.kl.beta = 0.1` | `beta = 0.1` | `beta = 0.1` (GRPOConfig; RLConfig has none) | no s"
        in page
    )


def test_a_second_verdict_replaces_the_results_adds_to_the_log_and_keeps_what_people_wrote(
    tmp_path: Path,
) -> None:
    notebook, _, _, _ = validated_kl(tmp_path / "lab")
    fix = notebook.folder / "fixes" / f"{NAME}.md"
    pages = [notebook.folder / "README.md", notebook.log, notebook.path_of("h01"), fix]
    for page in pages:
        page.write_text(f"{page.read_text()}\nMy own words about {page.name}: 1 < 2 & so on.\n")
    first = notebook.log.read_text()
    verdict = judged(KL, LESS, Status.INVALIDATED, confidence=Confidence.HIGH)
    record(notebook, KL, verdict, entry_of(KL, LESS, "2026-11-16T09:00:00+00:00"))
    assert notebook.log.read_text().startswith(first)
    names = [name for name, _ in BLOCK_FORM.findall(notebook.log.read_text())]
    assert names == ["entry h01 2026-11-15T12:30:05", "entry h01 2026-11-16T09:00:00+00:00"]
    assert (get_block(notebook.path_of("h01").read_text(), "results") or "").startswith(
        "**INVALIDATED: "
    )
    assert notebook.hypothesis("h01").status is Status.INVALIDATED
    assert "**Taken back** on 2026-11-16" in fix.read_text()
    assert not fix.with_suffix(".toml").exists()
    assert all(
        f"My own words about {page.name}: 1 < 2 & so on." in page.read_text() for page in pages
    )


def test_the_log_says_what_would_decide(tmp_path: Path) -> None:
    notebook = make_lab(tmp_path / "lab", KL)
    entry = entry_of(KL, LESS, "2026-11-15T12:30:05+00:00", notes=("Seed 4 lacks an arm.",))
    record(notebook, KL, judged(KL, LESS, Status.INCONCLUSIVE), entry)
    log = notebook.log.read_text()
    for said in (
        "; 5 more seeds would decide (H01, 2026-11-15)\n",
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
        assert "DOES NOT COUNT: " in path.read_text()
        quoted = [line for line in path.read_text().splitlines() if line.startswith("> ")]
        for said, line in zip(
            ("0.05 and is 0.01", "reward.constant", "stopped early"), quoted, strict=True
        ):
            assert said in line
    sentence = f"Void: {void} Refused: {refused['beta 0.1']} By its confidence sequence."
    record(notebook, KL, replace(verdict, sentence=sentence, comparisons=()), entry_of(KL, LESS))
    assert "\n> " not in notebook.path_of("h01").read_text()
    assert not list((notebook.folder / "fixes").iterdir())


def test_curves_are_thinned_kept_and_outlive_their_runs(tmp_path: Path) -> None:
    notebook = make_lab(tmp_path / "lab", KL)
    values = {"no penalty": [0.3, 0.3], "beta 0.1": [0.4, 0.5]}
    write_runs(notebook.folder, KL, values, steps=140)
    verdict, entry = judged(KL, values, Status.VALIDATED), entry_of(KL, values)
    record(notebook, KL, verdict, entry)
    kept = read_rows(Curves, notebook.results("h01") / "curves.json")
    assert [(c.arm, c.seed) for c in kept] == [
        ("no penalty", 0),
        ("no penalty", 1),
        ("beta 0.1", 0),
        ("beta 0.1", 1),
    ]
    assert kept[3].accuracy == ((0, 0.125), (70, 0.3), (140, 0.5))
    assert len(kept[3].reward) == 100
    for metric, last in (
        ("kl/reference/mean", 0.02),
        ("eval/part/exact", 0.5),
    ):  # another metric has its own curve
        record(notebook, replace(KL, metric=metric), verdict, entry)
        own = read_rows(Curves, notebook.results("h01") / "curves.json")[3].metric
        assert own[-1] == (pytest.approx(139, abs=1), pytest.approx(last, rel=0.1))
    record(notebook, KL, verdict, entry)
    (notebook.folder / "runs").rename(tmp_path / "elsewhere")
    record(notebook, KL, verdict, entry)
    assert read_rows(Curves, notebook.results("h01") / "curves.json") == kept


def test_an_interval_without_ends_and_a_run_that_failed_are_written(tmp_path: Path) -> None:
    notebook = make_lab(tmp_path / "lab", KL)
    verdict = judged(KL, LESS, Status.INCONCLUSIVE)
    endless = replace(
        verdict.comparisons[0],
        interval=Interval(0.02, -float("inf"), float("inf")),
        seeds_needed=None,
    )
    verdict, entry = replace(verdict, comparisons=(endless,)), entry_of(KL, LESS)
    entry = replace(
        entry, runs=(*entry.runs, ArmRun("beta 0.1", 4, "failed", reason="the disk | is full"))
    )
    record(notebook, KL, verdict, entry)
    text = notebook.path_of("h01").read_text()
    assert "| +2.0 points | −∞ to +∞ |" in text
    assert "failed: the disk \\| is full | – | – |" in text
    json.loads((notebook.results("h01") / "verdict.json").read_text(), parse_constant=pytest.fail)
    assert read_verdict(notebook.results("h01") / "verdict.json") == (verdict, entry)


def test_a_name_that_looks_like_markup_can_t_break_a_page_or_a_picture(tmp_path: Path) -> None:
    arms = (
        Arm("a | b", {"learning.lr": 1e-5}, True),
        Arm("<!-- uptrend:results --> $x^$", {"learning.lr": 1e-4}),
    )
    h = replace(KL, arms=arms)
    values = {arms[0].name: [0.3, 0.31], arms[1].name: [0.4, 0.42]}
    notebook = make_lab(tmp_path / "lab", h)
    for _ in range(2):
        record(notebook, h, judged(h, values, Status.VALIDATED), entry_of(h, values))
    assert "| a \\| b (control) |" in notebook.path_of("h01").read_text()


@pytest.mark.parametrize(
    ("direction", "marks"),
    [(Direction.UP, [5]), (Direction.DOWN, [-5]), (Direction.EITHER, [5, -5])],
)
def test_intervals_have_zero_the_smallest_effect_and_a_dot_per_seed(
    direction: Direction, marks: list[float]
) -> None:
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
        endless = replace(
            verdict.comparisons[0], interval=Interval(0.1, -float("inf"), float("inf"))
        )
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
    for status, void in (
        (Status.INVALIDATED, ""),
        (Status.INCONCLUSIVE, ""),
        (Status.VALIDATED, "it changed"),
    ):
        assert change_of(h, judged(h, values, status, void=void), entry_of(h, values)) is None
    same = replace(
        entry_of(h, values), differences={arm.name: {"seed": (0, 1)} for arm in h.treated}
    )
    assert change_of(h, judged(h, values, Status.VALIDATED), same) is None


def test_a_fix_is_a_part_of_a_recipe_and_a_page_with_the_gain(tmp_path: Path) -> None:
    notebook = make_lab(tmp_path / "lab", KL, WEIGHTS)
    lora = {"learning.kl.beta": (0.0, 0.1), "model.lora": ({"r": 8}, None), "seed": (0, 1)}
    entry = replace(entry_of(KL, BETTER), differences={"beta 0.1": lora})
    record(notebook, KL, judged(KL, BETTER, Status.VALIDATED), entry)
    text = (notebook.folder / "fixes" / f"{NAME}.toml").read_text()
    assert tomllib.loads(text) == {"learning": {"kl": {"beta": 0.1}}, "model": {}}
    assert "# Leave out model.lora." in text
    assert load_config(tomllib.loads(text)).learning.kl.beta == 0.1
    record(
        notebook, WEIGHTS, judged(WEIGHTS, HARMFUL, Status.VALIDATED), entry_of(WEIGHTS, HARMFUL)
    )
    assert (
        "| bf16 | 3 | 21.0% | −15.0 points | −" in notebook.path_of("h03").read_text()
    )  # as measured
    page = (notebook.folder / "fixes" / f"{notebook.path_of('h03').stem}.md").read_text()
    assert "| mean over 3 seeds | 21.0% | 36.0% |" in page
    assert "| effect, 95% interval |  | +1" in page  # as seen by someone who makes the change
    assert '`trainer.model.optimization_dtype = "float32"`' in page
    assert "## What else the catalogue says of `precision.update-underflow`" in page
