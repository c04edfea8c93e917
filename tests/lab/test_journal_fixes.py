"""A validated hypothesis as a change to make: in Uptrend, and in the words of other trainers."""

import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from journals import KL, SIZES, WEIGHTS, entry_of, judged, validated_kl
from uptrend.config import load_config
from uptrend.lab.journal.fixes import NONE, change_of, to_override, to_page
from uptrend.records import Direction, Status

BETTER = {"no penalty": [0.30, 0.32, 0.28], "beta 0.1": [0.40, 0.43, 0.41]}


def test_the_arm_that_is_better_is_what_to_change_to() -> None:
    change = change_of(KL, judged(KL, BETTER, Status.VALIDATED), entry_of(KL, BETTER))
    assert change is not None
    assert (change.before, change.after, change.values) == ("no penalty", "beta 0.1", {"learning.kl.beta": 0.1})


def test_of_a_harmful_arm_the_control_is_the_fix() -> None:
    values = {"fp32": [0.36, 0.35, 0.37], "bf16": [0.20, 0.22, 0.21]}
    verdict, entry = judged(WEIGHTS, values, Status.VALIDATED), entry_of(WEIGHTS, values)
    change = change_of(WEIGHTS, verdict, entry)
    assert change is not None
    assert (change.before, change.after, change.values) == ("bf16", "fp32", {"model.weights": "fp32"})
    page = to_page(WEIGHTS, verdict, entry, change, "h03-weights", "")
    assert "# fp32 instead of bf16" in page
    assert "| mean over 3 seeds | 21.0% | 36.0% |" in page
    assert "| effect, 95% interval |  | +1" in page  # what one gains who makes the change
    assert '`trainer.model.optimization_dtype = "float32"`' in page
    assert "## What else the catalogue says of `precision.update-underflow`" in page


def test_of_another_metric_what_was_claimed_is_what_is_wanted() -> None:
    h = replace(KL, metric="kl/reference/mean", direction=Direction.DOWN)
    values = {"no penalty": [0.5, 0.6, 0.55], "beta 0.1": [0.1, 0.12, 0.1]}
    change = change_of(h, judged(h, values, Status.VALIDATED), entry_of(h, values))
    assert change is not None
    assert change.after == "beta 0.1"


@pytest.mark.parametrize("status", [Status.INVALIDATED, Status.INCONCLUSIVE])
def test_what_does_not_hold_is_no_fix(status: Status) -> None:
    assert change_of(KL, judged(KL, BETTER, status), entry_of(KL, BETTER)) is None


def test_what_does_not_count_or_does_not_differ_is_no_fix() -> None:
    assert change_of(KL, judged(KL, BETTER, Status.VALIDATED, void="it changed"), entry_of(KL, BETTER)) is None
    same = replace(entry_of(KL, BETTER), differences={"beta 0.1": {"seed": (0, 1)}})
    assert change_of(KL, judged(KL, BETTER, Status.VALIDATED), same) is None


def test_the_override_is_a_recipe_s_part() -> None:
    entry = replace(
        entry_of(KL, BETTER),
        differences={"beta 0.1": {"learning.kl.beta": (0.0, 0.1), "model.lora": ({"r": 8}, None), "seed": (0, 1)}},
    )
    change = change_of(KL, judged(KL, BETTER, Status.VALIDATED), entry)
    assert change is not None
    text = to_override(KL, change)
    table = tomllib.loads(text)
    assert table == {"learning": {"kl": {"beta": 0.1}}, "model": {}}
    assert "# Leave out model.lora." in text
    assert load_config(table).learning.kl.beta == 0.1


def test_the_page_has_a_command_that_can_be_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    notebook, _, _, _ = validated_kl(tmp_path / "lab")
    page = (notebook.folder / "fixes" / f"{notebook.path_of('h01').stem}.md").read_text()
    assert "uptrend train recipe.toml --set 'learning.kl.beta=0.1'" in page
    assert (
        f"| `learning.kl.beta = 0.1` | `beta = 0.1` | `beta = 0.1` (GRPOConfig; RLConfig has none) | {NONE} (" in page
    )


def test_of_several_arms_the_one_with_the_greatest_effect_that_holds() -> None:
    values = {"4 × 64": [0.30, 0.31, 0.29], "16 × 16": [0.36, 0.37, 0.37], "64 × 4": [0.40, 0.44, 0.41]}
    verdict = judged(SIZES, values, Status.VALIDATED)
    weak = replace(verdict.comparisons[1], status=Status.INCONCLUSIVE)
    mixed = replace(verdict, comparisons=(verdict.comparisons[0], weak))
    for told, best in ((verdict, "64 × 4"), (mixed, "16 × 16")):
        change = change_of(SIZES, told, entry_of(SIZES, values))
        assert change is not None
        assert change.after == best
