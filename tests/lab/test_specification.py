"""The specification that is fixed before the first step, and changes that somebody makes to it."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quick_runs import QuickLauncher
from uptrend.lab import specification
from uptrend.lab.notebook import Notebook
from uptrend.lab.specification import Specification
from uptrend.records import Arm, Direction, Hypothesis, LabError, Priority
from uptrend.runner.runs import TrainLauncher

CONTROL, FAST = Arm("control", {}, True), Arm("fast", {"learning.lr": 2e-3})
H = Hypothesis("h01", "A greater rate learns more", "base.toml", (CONTROL, FAST))


@pytest.fixture
def notebook(tmp_path: Path) -> Notebook:
    notebook = Notebook.init(tmp_path / "lab")
    recipe = 'name = "quick"\nmodel = { name = "finish" }\nlearning = { steps = 4 }\n'
    (notebook.folder / "base.toml").write_text(recipe)
    return notebook


@pytest.fixture
def then(notebook: Notebook) -> Specification:
    return specification.freeze(notebook, H, QuickLauncher())


def changes(
    then: Specification, notebook: Notebook, h: Hypothesis = H, **held_out: str
) -> list[str]:
    return specification.changed(then, specification.describe(notebook, h, QuickLauncher(held_out)))


def test_it_is_written_once_with_every_value(notebook: Notebook, then: Specification) -> None:
    written = json.loads((notebook.results("h01") / "specification.json").read_text())
    assert written["hash"] == then.hash
    assert (written["criteria"]["smallest"], written["criteria"]["validated_if"]) == (
        0.05,
        "low > 0",
    )
    assert written["arms"]["fast"]["config"]["learning"]["lr"] == 2e-3
    assert written["arms"]["control"]["config"]["sampling"]["top_k"] == 0
    assert specification.freeze(notebook, replace(H, smallest=0.02), QuickLauncher()) == then


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"title": "A greater rate teaches more", "priority": Priority.HIGH, "explains": "much"},
            [],
        ),
        ({"smallest": 0.02}, ["smallest 0.05 → 0.02"]),
        ({"seeds": (0, 1, 2)}, ["seeds [0, 1, 2, 3, 4] → [0, 1, 2]"]),
        ({"direction": "down"}, ["direction up → down"]),
        ({"cause": "kl.strangles"}, ['cause "" → kl.strangles']),
        ({"steps": 8}, ["learning.steps 4 → 8"]),
        (
            {"arms": (CONTROL, Arm("fast", {"learning.lr": 3e-3}))},
            ["fast: learning.lr 0.002 → 0.003"],
        ),
        (
            {"arms": (Arm("control"), replace(FAST, is_control=True))},
            ["fast: it is the control now"],
        ),
        (
            {"arms": (CONTROL, Arm("slow", {"learning.lr": 1e-7}))},
            ["arm fast is gone", "arm slow is new"],
        ),
    ],
)
def test_each_change_is_named(
    notebook: Notebook, then: Specification, change: dict[str, Any], says: list[str]
) -> None:
    assert changes(then, notebook, replace(H, **change)) == says


def test_a_changed_recipe_is_named_once_for_all_arms(
    notebook: Notebook, then: Specification
) -> None:
    recipe = notebook.folder / "base.toml"
    recipe.write_text("# a remark\n" + recipe.read_text())
    assert changes(then, notebook) == []  # comments do not count
    recipe.write_text(recipe.read_text() + "sampling = { size = 4 }\n")
    assert changes(then, notebook) == ["sampling.size 16 → 4"]
    assert changes(then, notebook, quick="cc") == [
        "sampling.size 16 → 4",
        "hash of its held-out tasks bb → cc",
    ]


def test_keys_names_and_machines_of_another_version_are_no_change(
    notebook: Notebook, then: Specification
) -> None:
    arms = json.loads(json.dumps(then.arms))
    for arm in arms.values():
        del arm["config"]["sampling"]["trim"], arm["config"]["warmstart"]
        arm["config"]["compute"]["device"] = "cuda"
    older = replace(
        then, arms=arms, criteria={k: v for k, v in then.criteria.items() if k != "allows"}
    )
    assert changes(older, notebook) == []
    trims = replace(H, arms=(CONTROL, Arm("fast", {"learning.lr": 2e-3, "sampling.trim": True})))
    assert changes(older, notebook, trims) == ["fast: sampling.trim none → true"]
    adapts = replace(H, arms=(CONTROL, Arm("fast", {"learning.lr": 2e-3, "model.lora.r": 4})))
    assert "fast: model.lora.r none → 4" in changes(older, notebook, adapts)
    old = {
        **then.criteria,
        "metric": "optimiser/lr",
        "cause": "optimiser.lr-small",
        "allows": ["data.memorised"],
    }
    today = replace(
        H, metric="optimizer/lr", cause="optimizer.lr-small", allows=("data.memorized",)
    )
    assert changes(replace(then, criteria=old), notebook, today) == []


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (('"smallest": 0.05', '"smallest": 0.01'), r"was edited.*--restart"),
        (("{", "", 1), r"is damaged .*--restart"),
    ],
)
@pytest.mark.usefixtures("then")
def test_a_file_that_was_edited_is_refused(
    notebook: Notebook, damage: tuple[Any, ...], says: str
) -> None:
    path = notebook.results("h01") / "specification.json"
    path.write_text(path.read_text().replace(*damage))
    with pytest.raises(LabError, match=says):
        specification.read(notebook, "h01")


@pytest.mark.usefixtures("then")
def test_to_begin_anew_keeps_what_was_found_aside(notebook: Notebook) -> None:
    runs = [{"hash": "a", "status": "finished"}, {"hash": "b", "status": "failed"}]
    (notebook.results("h01") / "runs.json").write_text(json.dumps({"runs": runs}))
    assert specification.restart(notebook, "h01") == notebook.results("h01") / "before-1"
    assert specification.read(notebook, "h01") is None
    assert specification.restart(notebook, "h01") is None
    anew = specification.freeze(notebook, replace(H, smallest=0.02), QuickLauncher())
    assert (anew.before, anew.criteria["smallest"]) == (1, 0.02)
    assert specification.seen_before(notebook, "h01") == {"a"}
    specification.restart(notebook, "h01")
    assert sorted(path.name for path in notebook.results("h01").iterdir()) == [
        "before-1",
        "before-2",
    ]


def test_seeds_that_are_added_are_recorded_and_leave_the_hash_alone(
    notebook: Notebook, then: Specification
) -> None:
    specification.extend(notebook, then, 2)
    found = specification.read(notebook, "h01")
    assert found is not None
    assert (found.more, found.hash) == ((5, 6), then.hash)
    assert changes(found, notebook) == []
    spent = {**then.criteria, "direction": Direction.EITHER, "stops_early": False}
    with pytest.raises(
        LabError, match=r"h01 claims either direction without stops_early, .* stops_early = true"
    ):
        specification.extend(notebook, replace(then, criteria=spent), 2)
    first = {**then.criteria, "metric": "eval/accuracy/first-step@0.8"}
    with pytest.raises(LabError, match=r"h01 compares eval/accuracy/first-step@0.8 by its median"):
        specification.extend(notebook, replace(then, criteria=first), 2)


def test_a_model_that_was_made_anew_is_a_change(
    notebook: Notebook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    weights = tmp_path / "warm" / "weights.bin"
    weights.parent.mkdir()
    weights.write_bytes(b"1")
    h = replace(H, arms=(Arm("control", {"model.name": "~/warm"}, True), FAST))
    then = specification.freeze(notebook, h, QuickLauncher())
    assert specification.read(notebook, "h01") == then
    assert changes(then, notebook, h) == []
    weights.write_bytes(b"2")
    (change,) = changes(then, notebook, h)
    assert change.startswith("control: hash of its model's folder ")
    shutil.rmtree(weights.parent)  # judged elsewhere
    assert changes(then, notebook, h) == []


def test_what_an_arm_changes_beside_its_own_values_is_named(notebook: Notebook) -> None:
    """Adapters get another learning rate than all weights where none is set."""
    recipe = 'name = "a"\nmodel = { name = "tiny", chat = false }\neval = { tasks = 5 }\n'
    (notebook.folder / "base.toml").write_text(recipe)
    adapters = replace(H, arms=(CONTROL, Arm("adapters", {"model.lora.r": 4})))
    now = specification.describe(notebook, adapters, TrainLauncher())
    (sentence,) = specification.side_effects(now)
    assert sentence.startswith("adapters changes learning.lr 1e-05 → 0.0001 too")

    (notebook.folder / "base.toml").write_text(f"{recipe}learning = {{ lr = 2e-5 }}\n")
    now = specification.describe(notebook, adapters, TrainLauncher())
    assert specification.side_effects(now) == []
