"""What no experiment could decide is refused, each with a sentence that says what to write."""

from dataclasses import replace
from pathlib import Path

import pytest

from uptrend.lab.notebook import Notebook
from uptrend.lab.refuse import check
from uptrend.records import Arm, Direction, Hypothesis, LabError, Method, Source

CONTROL = Arm("without", {}, is_control=True)
BETA = Arm("with", {"learning.kl.beta": 0.1})
KL = Hypothesis(id="h01", title="KL", recipe="recipes/base.toml", arms=(CONTROL, BETA))


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    """A lab with a recipe and a run to replay."""
    Notebook.init(tmp_path)
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "base.toml").write_text("[model]\nname = 'tiny'\n[learning]\nsteps = 50\nwarmup = 10\n")
    (tmp_path / "recipes" / "broken.toml").write_text("[model\n")
    (tmp_path / "runs" / "old").mkdir(parents=True)
    (tmp_path / "runs" / "old" / "run.json").write_text("{}")
    return tmp_path


GOOD = {
    "plain": KL,
    "down": replace(KL, metric="sampling/length/mean", direction=Direction.DOWN, smallest=3.0),
    "nested criteria": replace(KL, validated_if="low > 0 and effect >= smallest", alpha=0.1, seeds=(7, 3)),
    "of a cause": replace(KL, cause="kl.strangles", allows=("advantage.dead-groups-low",)),
    "pass@k": replace(
        KL,
        metric="eval/pass@4",
        arms=(
            Arm("without", {"eval.attempts": 4}, is_control=True),
            Arm("with", {"eval.attempts": 4, "learning.kl.beta": 0.1}),
        ),
    ),
    "lengths": replace(KL, arms=(CONTROL, Arm("longer", {"learning.steps": 200}))),
    "a replay": replace(KL, method=Method.REPLAY, source=Source("runs/old", 3)),
    "a replay from the start": replace(
        KL, method=Method.REPLAY, source=Source("runs/old"), arms=(CONTROL, Arm("lora", {"model.lora.r": 8}))
    ),
    "other tasks": replace(KL, arms=(CONTROL, Arm("mixed", {"tasks.name": "mixed"}))),
    "adapters": replace(KL, arms=(CONTROL, Arm("lora", {"model.lora.r": 8, "learning.lr": 1e-4}))),
}


@pytest.mark.parametrize("name", GOOD)
def test_what_can_be_decided_passes(lab: Path, name: str) -> None:
    check(GOOD[name], lab)


def arms(*given: Arm) -> Hypothesis:
    return replace(KL, arms=given)


BAD = {
    "no arms": (arms(), r"h01: no arm is the control \(its arms: none at all\)"),
    "no control": (arms(BETA, Arm("b")), r"no arm is the control \(its arms: with, b\). Write control = true in the"),
    "two controls": (arms(CONTROL, Arm("b", {}, True)), r"without and b are both the control. Leave control = true in"),
    "one arm": (arms(CONTROL), r"nothing to compare without with. Write a second table, for example \[arms.changed\]"),
    "a path": (arms(CONTROL, Arm("a/b")), r"the arm's name 'a/b' becomes part of a file's name: use a few letters"),
    "a dash": (arms(CONTROL, Arm("-f")), r"the arm's name '-f' becomes"),
    "a long name": (arms(CONTROL, Arm("x" * 41)), r"becomes part of a file's name"),
    "same arms": (arms(CONTROL, Arm("b")), r"the arms without and b don't differ on recipes/base.toml. Write into one"),
    "the default": (arms(CONTROL, Arm("b", {"learning.kl.beta": 0.0})), r"without and b don't differ"),
    "two alike": (arms(CONTROL, BETA, replace(BETA, name="again")), r"the arms with and again don't differ"),
    "unknown key": (
        arms(CONTROL, Arm("b", {"learning.lrr": 1})),
        r"arm b, .*learning.lrr is not a .*Did you mean lr\?",
    ),
    "unknown table": (
        arms(CONTROL, Arm("b", {"learing.lr": 1})),
        r"learing is not a known key. Did you mean learning\?",
    ),
    "wrong type": (arms(CONTROL, Arm("b", {"learning.lr": "fast"})), r"learning.lr = 'fast' should be a number"),
    "can't work": (arms(CONTROL, Arm("b", {"sampling.size": 1})), r"sampling.size = 1: a group of one"),
    "below a value": (arms(CONTROL, Arm("b", {"learning.warmup.x": 1})), r"learning.warmup is a value, not a table"),
    "its own seed": (
        arms(CONTROL, Arm("b", {"seed": 3})),
        r"arm b sets seed: the lab sets it, from `seeds`. Leave seed",
    ),
    "its own name": (arms(CONTROL, Arm("b", {"name": "x"})), r"arm b sets name: the lab names its runs itself"),
    "other evaluation": (
        arms(CONTROL, Arm("b", {"eval.tasks": 10, "learning.lr": 1})),
        r"eval.tasks differs between without and b: arms are compared on the same held-out tasks",
    ),
    "steps twice": (
        replace(arms(CONTROL, Arm("b", {"learning.steps": 9})), steps=20),
        r"arm b sets learning.steps and the hypothesis sets steps = 20. Write steps = 0",
    ),
    "shorter than its warm-up": (
        replace(KL, steps=5),
        r"learning.warmup = 10 should be between 0 and learning.steps = 5",
    ),
    "negative steps": (replace(KL, steps=-1), r"steps = -1 should be 0, for the recipe's, or more"),
    "one seed": (replace(KL, seeds=(0,)), r"seeds = \[0\]: one run an arm says .* Write at least two, better five"),
    "no seeds": (replace(KL, seeds=()), r"seeds = \[\]: one run an arm .*seeds = \[0, 1, 2, 3, 4\]"),
    "repeated seeds": (replace(KL, seeds=(0, 1, 1, 2, 0)), r"seeds has 0, 1 more than once: a repeated run is no new"),
    "a negative seed": (replace(KL, seeds=(0, -1)), r"seeds has -1: a seed is 0 or more"),
    "unknown metric": (
        replace(KL, metric="eval/acuracy"),
        r"'eval/acuracy' is no metric. Did you mean eval/accuracy\?",
    ),
    "no metric": (replace(KL, metric="vibes"), r"'vibes' is no metric. Write eval/accuracy, .*docs/metrics.md"),
    "too few attempts": (
        replace(KL, metric="eval/pass@8"),
        r"eval/pass@8 needs eval.attempts = 8 or more, and arm .* 0",
    ),
    "unmeasured": (
        replace(KL, metric="kl/reference/mean"),
        r"only measured with a KL penalty, and arm without has none",
    ),
    "a probe decides": (
        replace(KL, arms=(), cause="mask.tool-trained"),
        r"it has no arms: a probe decides it. Ask: uptrend preflight .*base.toml --only masks. Or write arms",
    ),
    "alpha 0": (replace(KL, alpha=0.0), r"alpha = 0 should be above 0 and below 0.5; 0.05 is usual"),
    "alpha 5": (replace(KL, alpha=5), r"alpha = 5 should be above 0"),
    "smallest 0": (
        replace(KL, smallest=0.0),
        r"smallest = 0 should be above 0: it is the smallest effect that matters",
    ),
    "smallest below 0": (replace(KL, smallest=-0.1), r"smallest = -0.1 should be above 0"),
    "in per cent": (replace(KL, smallest=5), r"smallest = 5: eval/accuracy lies between 0 and 1.* smallest = 0.05"),
    "nonsense": (
        replace(KL, validated_if="it gets better"),
        r"validated_if: The criterion 'it gets better' can't be read",
    ),
    "unknown name": (replace(KL, invalidated_if="hihg < 0"), r"invalidated_if: .*names 'hihg'. The names are effect"),
    "never met": (
        replace(KL, validated_if="low > 1"),
        r"validated_if = 'low > 1' can't be met by any outcome of eval/acc",
    ),
    "contradiction": (
        replace(KL, invalidated_if="high < 0 and low > 0"),
        r"invalidated_if = 'high < 0 and low > 0' can't be met .*such as invalidated_if = 'high < smallest'",
    ),
    "unknown cause": (
        replace(KL, cause="kl.strangle"),
        r"cause = 'kl.strangle' is not in the catalogue. Did you mean kl",
    ),
    "no such thing": (
        replace(KL, allows=("zzz",)),
        r"allows = 'zzz' is not in the catalogue. Leave it empty, or write",
    ),
    "no source": (
        replace(KL, method=Method.REPLAY),
        r"a replay needs a run .*Write source = { run = \"runs/NAME-s{seed}-\*\"",
    ),
    "no such run": (
        replace(KL, method=Method.REPLAY, source=Source("runs/new")),
        r"there is no run at .*runs/new. Write a run directory, relative to the lab's folder",
    ),
    "before the start": (
        replace(KL, method=Method.REPLAY, source=Source("runs/old", -1)),
        r"source.step = -1 should be",
    ),
    "sampling again": (
        replace(KL, method=Method.REPLAY, source=Source("runs/old"), arms=(CONTROL, Arm("b", {"sampling.size": 4}))),
        r"sampling.size can't differ in a replay: .* Write method = \"train\"",
    ),
    "adapters later": (
        replace(KL, method=Method.REPLAY, source=Source("runs/old", 3), arms=(CONTROL, Arm("b", {"model.lora.r": 4}))),
        r"model.lora.r can't differ in a replay",
    ),
    "a source for nothing": (
        replace(KL, source=Source("runs/old")),
        r"a source is for a replay. Write method = \"replay",
    ),
    "no recipe": (
        replace(KL, recipe="tiny.toml"),
        r"There is no recipe at .*tiny.toml. `recipe` is relative to the lab's",
    ),
    "not yet": (replace(KL, recipe=""), r"h01: recipe is missing. Write the base recipe's path, relative to the lab's"),
    "a folder": (replace(KL, recipe="recipes"), r"recipes is a folder; a recipe is a TOML file"),
    "a broken recipe": (replace(KL, recipe="recipes/broken.toml"), r"broken.toml is not TOML"),
    "unknown prerequisite": (replace(KL, prerequisites=("h09",)), r"prerequisites has 'h09', and the lab has no other"),
    "itself": (replace(KL, prerequisites=("h01",)), r"h01 waits for h01: a circle. Leave one of them out"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_can_not_be_decided_is_refused(lab: Path, name: str) -> None:
    h, said = BAD[name]
    with pytest.raises(LabError, match=said) as raised:
        check(h, lab)
    assert str(raised.value).startswith("h01: ")
    assert str(raised.value).endswith((".", "?"))


def test_a_circle_over_others_is_named(lab: Path) -> None:
    notebook = Notebook(lab)
    notebook.add(replace(KL, prerequisites=("h03",)), {})
    notebook.add(replace(KL, id="h02", prerequisites=("h01",)), {})
    notebook.add(replace(KL, id="h03", prerequisites=("h02",)), {})
    notebook.add(replace(KL, id="h04", prerequisites=("h03",)), {})
    with pytest.raises(LabError, match=r"h01: h01 waits for h03 waits for h02 waits for h01: a circle"):
        check(notebook.hypothesis("h01"), lab)
    check(notebook.hypothesis("h04"), lab)  # it waits for a circle, and is not of it


def test_a_broken_neighbor_does_not_stop_a_check(lab: Path) -> None:
    Notebook(lab).add(replace(KL, id="h02"), {})
    (lab / "hypotheses" / "h03-half.md").write_text("+++\n")
    check(replace(KL, prerequisites=("h02",)), lab)
