"""What is fixed before the first step, and what happens when somebody changes it."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from quick_runs import QuickLauncher
from uptrend.lab import specification
from uptrend.lab.notebook import Notebook
from uptrend.lab.specification import Specification
from uptrend.records import Arm, Direction, Hypothesis, LabError, Priority

H = Hypothesis(
    "h01", "A greater rate learns more", "base.toml", (Arm("control", {}, True), Arm("fast", {"learning.lr": 2e-3}))
)


@pytest.fixture
def notebook(tmp_path: Path) -> Notebook:
    notebook = Notebook.init(tmp_path / "lab")
    (notebook.folder / "base.toml").write_text(
        'name = "quick"\nmodel = { name = "finish" }\nlearning = { steps = 4 }\n'
    )
    return notebook


def now(notebook: Notebook, h: Hypothesis) -> Specification:
    return specification.describe(notebook, h, QuickLauncher())


def changes(notebook: Notebook, h: Hypothesis) -> list[str]:
    then = specification.freeze(notebook, H, QuickLauncher())
    return specification.changed(then, now(notebook, h))


def test_it_is_written_once_with_every_value(notebook: Notebook) -> None:
    first = specification.freeze(notebook, H, QuickLauncher())
    written = json.loads((notebook.results("h01") / "specification.json").read_text())
    assert written["hash"] == first.hash
    assert written["criteria"]["smallest"] == 0.05
    assert written["criteria"]["validated_if"] == "low > 0"
    assert written["arms"]["fast"]["config"]["learning"]["lr"] == 2e-3
    assert written["arms"]["control"]["config"]["sampling"]["top_k"] == 0
    assert specification.freeze(notebook, replace(H, smallest=0.02), QuickLauncher()) == first


def test_a_hypothesis_that_was_left_alone_has_not_changed(notebook: Notebook) -> None:
    fixed = replace(H, title="A greater rate teaches more", priority=Priority.HIGH, explains="much")
    assert changes(notebook, fixed) == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"smallest": 0.02}, "smallest 0.05 → 0.02"),
        ({"seeds": (0, 1, 2)}, "seeds [0, 1, 2, 3, 4] → [0, 1, 2]"),
        ({"direction": "down"}, "direction up → down"),
        ({"validated_if": "effect > 0"}, "validated_if low > 0 → effect > 0"),
        ({"cause": "kl.strangles"}, 'cause "" → kl.strangles'),
        ({"steps": 8}, "learning.steps 4 → 8"),
        ({"arms": (H.arms[0], Arm("fast", {"learning.lr": 3e-3}))}, "fast: learning.lr 0.002 → 0.003"),
        ({"arms": (Arm("control"), replace(H.arms[1], is_control=True))}, "fast: it is the control now"),
    ],
)
def test_each_change_is_named(notebook: Notebook, change: dict[str, object], says: str) -> None:
    assert changes(notebook, replace(H, **change)) == [says]  # type: ignore[arg-type]


def test_arms_that_come_and_go(notebook: Notebook) -> None:
    other = replace(H, arms=(H.arms[0], Arm("slow", {"learning.lr": 1e-7})))
    assert changes(notebook, other) == ["arm fast is gone", "arm slow is new"]


def test_a_changed_recipe_is_named_once_for_all_arms_and_its_comments_do_not_count(notebook: Notebook) -> None:
    specification.freeze(notebook, H, QuickLauncher())
    recipe = notebook.folder / "base.toml"
    recipe.write_text("# a remark\n" + recipe.read_text())
    assert changes(notebook, H) == []
    recipe.write_text(recipe.read_text() + "sampling = { size = 4 }\n")
    assert changes(notebook, H) == ["sampling.size 16 → 4"]


def test_other_tasks_are_a_change(notebook: Notebook) -> None:
    then = specification.freeze(notebook, H, QuickLauncher())
    other = specification.describe(notebook, H, QuickLauncher(held_out={"quick": "cc"}))
    assert specification.changed(then, other) == ["hash of its held-out tasks bb → cc"]


def test_keys_that_a_later_version_added_are_no_change(notebook: Notebook) -> None:
    then = specification.freeze(notebook, H, QuickLauncher())
    arms = json.loads(json.dumps(then.arms))
    for arm in arms.values():
        del arm["config"]["sampling"]["trim"], arm["config"]["warmstart"]
    older = replace(then, arms=arms, criteria={k: v for k, v in then.criteria.items() if k != "allows"})
    assert specification.changed(older, now(notebook, H)) == []
    trims = replace(H, arms=(H.arms[0], Arm("fast", {"learning.lr": 2e-3, "sampling.trim": True})))
    assert specification.changed(older, now(notebook, trims)) == ["fast: sampling.trim none → true"]
    adapts = replace(H, arms=(H.arms[0], Arm("fast", {"learning.lr": 2e-3, "model.lora.r": 4})))
    assert "fast: model.lora.r none → 4" in specification.changed(older, now(notebook, adapts))


def test_names_that_were_changed_are_no_change(notebook: Notebook) -> None:
    then = specification.freeze(notebook, H, QuickLauncher())
    old = {**then.criteria, "metric": "optimiser/lr", "cause": "optimiser.lr-small", "allows": ["data.memorised"]}
    today = replace(H, metric="optimizer/lr", cause="optimizer.lr-small", allows=("data.memorized",))
    assert specification.changed(replace(then, criteria=old), now(notebook, today)) == []


def test_another_machine_is_no_change(notebook: Notebook) -> None:
    then = specification.freeze(notebook, H, QuickLauncher())
    arms = json.loads(json.dumps(then.arms))
    for arm in arms.values():
        arm["config"]["compute"]["device"] = "cuda"
    assert specification.changed(replace(then, arms=arms), now(notebook, H)) == []


def test_why_a_verdict_is_void() -> None:
    assert specification.void([]) == ""
    said = specification.void(["smallest 0.05 → 0.02"])
    assert said == "the specification changed after the first step: smallest 0.05 → 0.02"


def test_a_file_that_was_edited_is_refused(notebook: Notebook) -> None:
    specification.freeze(notebook, H, QuickLauncher())
    path = notebook.results("h01") / "specification.json"
    path.write_text(path.read_text().replace('"smallest": 0.05', '"smallest": 0.01'))
    with pytest.raises(LabError, match=r"was edited.*--restart"):
        specification.read(notebook, "h01")


def test_to_begin_anew_keeps_what_was_found_aside(notebook: Notebook) -> None:
    specification.freeze(notebook, H, QuickLauncher())
    runs = [{"hash": "a", "status": "finished"}, {"hash": "b", "status": "failed"}]
    (notebook.results("h01") / "runs.json").write_text(json.dumps({"runs": runs}))
    assert specification.restart(notebook, "h01") == notebook.results("h01") / "before-1"
    assert specification.read(notebook, "h01") is None
    anew = specification.freeze(notebook, replace(H, smallest=0.02), QuickLauncher())
    assert (anew.before, anew.criteria["smallest"]) == (1, 0.02)
    assert specification.seen_before(notebook, "h01") == {"a"}
    specification.restart(notebook, "h01")
    assert sorted(path.name for path in notebook.results("h01").iterdir()) == ["before-1", "before-2"]


def test_seeds_that_are_added_are_recorded_and_leave_the_hash_alone(notebook: Notebook) -> None:
    then = specification.freeze(notebook, H, QuickLauncher())
    specification.extend(notebook, then, 2)
    found = specification.read(notebook, "h01")
    assert found is not None
    assert (found.more, found.hash) == ((5, 6), then.hash)
    assert found.hypothesis_of(H).seeds == (0, 1, 2, 3, 4, 5, 6)
    assert specification.changed(found, now(notebook, H)) == []


def test_a_model_that_was_made_anew_is_a_change(
    notebook: Notebook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    weights = tmp_path / "warm" / "weights.bin"
    weights.parent.mkdir()
    weights.write_bytes(b"1")
    arms = (Arm("control", {"model.name": "~/warm"}, True), H.arms[1])
    h = replace(H, arms=arms)
    then = specification.freeze(notebook, h, QuickLauncher())
    assert specification.read(notebook, "h01") == then
    assert specification.changed(then, now(notebook, h)) == []
    weights.write_bytes(b"2")
    (change,) = specification.changed(then, now(notebook, h))
    assert change.startswith("control: hash of its model's folder ")
    shutil.rmtree(weights.parent)  # judged elsewhere
    assert specification.changed(then, now(notebook, h)) == []


def test_a_claim_that_has_spent_its_alpha_gets_no_more_seeds(notebook: Notebook) -> None:
    h = replace(H, direction=Direction.EITHER, stops_early=False)
    then = specification.freeze(notebook, h, QuickLauncher())
    with pytest.raises(LabError, match=r"h01 claims either direction without stops_early, .* stops_early = true"):
        specification.extend(notebook, then, 2)
    shared = replace(then, criteria={**then.criteria, "stops_early": True})
    assert specification.extend(notebook, shared, 2).more == (5, 6)


def test_what_can_t_be_run_is_not_fixed(notebook: Notebook) -> None:
    h = replace(H, arms=(H.arms[0], Arm("fast", {"name": "other"})))
    with pytest.raises(LabError, match="evaluated on different held-out tasks"):
        specification.freeze(notebook, h, QuickLauncher({"other": "cc"}))
    assert specification.read(notebook, "h01") is None
