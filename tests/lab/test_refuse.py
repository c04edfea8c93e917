"""What no experiment could decide is refused, each with a sentence that says what to write."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from uptrend.lab import texts
from uptrend.lab.notebook import Notebook
from uptrend.lab.refuse import check
from uptrend.records import Arm, Direction, Hypothesis, LabError, Method, Source

CONTROL = Arm("without", {}, is_control=True)
BETA = Arm("with", {"learning.kl.beta": 0.1})
KL = Hypothesis(id="h01", title="KL", recipe="recipes/base.toml", arms=(CONTROL, BETA))
REPLAY = {"method": Method.REPLAY, "source": Source("runs/old")}
SOON = {
    "metric": "eval/accuracy/first-step@0.8", "direction": Direction.DOWN, "smallest": 10.0, "stops_early": False,
    "seeds": tuple(range(6)),
}  # fmt: skip


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    """A lab with a recipe and a run to replay."""
    Notebook.init(tmp_path)
    (tmp_path / "recipes").mkdir()
    recipe = "[model]\nname = 'tiny'\n[learning]\nsteps = 50\nwarmup = 10\n[eval]\nevery = 5\n"
    (tmp_path / "recipes" / "base.toml").write_text(recipe)
    (tmp_path / "recipes" / "broken.toml").write_text("[model\n")
    (tmp_path / "runs" / "old").mkdir(parents=True)
    (tmp_path / "runs" / "old" / "run.json").write_text("{}")
    return tmp_path


def arms(*treated: Arm | dict[str, Any]) -> dict[str, Any]:
    """The control, and these beside it."""
    return {
        "arms": (CONTROL, *(each if isinstance(each, Arm) else Arm("b", each) for each in treated))
    }


FOUR = {"eval.attempts": 4}
GOOD: dict[str, dict[str, Any]] = {
    "plain": {},
    "down": {"metric": "sampling/length/mean", "direction": Direction.DOWN, "smallest": 3.0},
    "few seeds of a large alpha": {"validated_if": " low > 0 ", "alpha": 0.3, "seeds": (7, 3)},
    "of a cause": {"cause": "kl.strangles", "allows": ("advantage.dead-groups-low",)},
    "pass@k": {
        "metric": "eval/pass@4",
        "arms": (replace(CONTROL, overrides=FOUR), Arm("b", {**FOUR, **BETA.overrides})),
    },
    "lengths": arms({"learning.steps": 200}),
    "a replay": {"method": Method.REPLAY, "source": Source("runs/old", 3)},
    "a replay from the start": REPLAY | arms({"model.lora.r": 8}),
    "other tasks": arms({"tasks.name": "mixed", "eval.name": "arithmetic"}),
    "gains on other tasks": {"metric": "eval/accuracy/gain"}
    | arms({"tasks.name": "mixed", "eval.name": "mixed"}),
    "adapters": arms({"model.lora.r": 8, "learning.lr": 1e-4}),
    "a first step": SOON,
    "a first step of the reward": SOON | {"metric": "eval/reward/first-step@1.5"},
}


@pytest.mark.parametrize("name", GOOD)
def test_what_can_be_decided_passes(lab: Path, name: str) -> None:
    check(replace(KL, **GOOD[name]), lab)


BAD: list[tuple[str, str, dict[str, Any], str]] = [
    ("no arms", "no-control", {"arms": ()}, r"its arms: none at all"),
    ("no control", "no-control", {"arms": (BETA, Arm("b"))}, r"its arms: with, b\). Write control = true in the"),
    ("two controls", "two-controls", arms(Arm("b", {}, True)), r"without and b are both the control"),
    ("one arm", "one-arm", arms(), r"nothing to compare without with. Write a second table"),
    ("a path", "arm-name", arms(Arm("a/b")), r"the arm's name 'a/b' becomes part of a file's name"),
    ("a dash", "arm-name", arms(Arm("-f")), r"the arm's name '-f' becomes"),
    ("same arms", "same-arms", arms({}), r"the arms without and b don't differ on recipes/base.toml"),
    ("the default", "same-arms", arms({"learning.kl.beta": 0.0}), r"without and b don't differ"),
    ("unknown key", "config", arms({"learning.lrr": 1}), r"arm b, .*learning.lrr is not a .*Did you mean lr\?"),
    ("can't work", "config", arms({"sampling.size": 1}), r"sampling.size = 1: a group of one"),
    ("warm-up", "config", {"steps": 5}, r"learning.warmup = 10 should be between 0 and learning.steps = 5"),
    ("its own seed", "reserved", arms({"seed": 3}), r"arm b sets seed: the lab sets it, from `seeds`"),
    ("its own name", "reserved", arms({"name": "x"}), r"arm b sets name: the lab names its runs itself"),
    ("evaluation", "held-out", arms({"eval.tasks": 10, "learning.lr": 1}), r"eval.tasks differs between without and b"),
    ("steps twice", "steps-twice", arms({"learning.steps": 9}) | {"steps": 20}, r"the hypothesis sets steps = 20"),
    ("negative steps", "negative-steps", {"steps": -1}, r"steps = -1 should be 0"),
    ("one seed", "few-seeds", {"seeds": (0,)}, r"seeds = \[0\]: 1 seed per arm can decide nothing.*is 0.5, .*= 0.05"),
    ("two seeds", "few-seeds", {"seeds": (0, 1)}, r"is 0.25, and .*5 seeds or more: seeds = \[0, 1, 2, 3, 4\]"),
    ("four seeds", "few-seeds", {"seeds": (3, 1, 2, 9)}, r"is 0.0625, and alpha = 0.05. Write 5 seeds"),
    ("either way", "few-seeds", {"direction": Direction.EITHER}, r"is 0.0625, and alpha = 0.05. Write 6 seeds"),
    ("a strict alpha", "few-seeds", {"alpha": 0.01}, r"is 0.0312, and alpha = 0.01. Write 7 seeds"),
    ("no seeds", "few-seeds", {"seeds": ()}, r"seeds = \[\]"),
    ("repeated", "repeated-seeds", {"seeds": (0, 1, 1, 2, 0)}, r"seeds has 0, 1 more than once"),
    ("negative", "negative-seed", {"seeds": (0, -1)}, r"seeds has -1: a seed is 0 or more"),
    ("unknown metric", "metric", {"metric": "eval/acuracy"}, r"eval/acuracy is no .*Did you mean eval/accuracy"),
    ("no metric", "metric", {"metric": "vibes"}, r"vibes is no metric. Write eval/accuracy, .*uptrend explain"),
    ("attempts", "attempts", {"metric": "eval/pass@8"}, r"needs eval.attempts = 8 or more, and arm .* 0"),
    ("unmeasured", "kl", {"metric": "kl/reference/mean"}, r"only measured with a KL penalty, and arm without has none"),
    ("a probe", "probe", {"arms": (), "cause": "mask.tool-trained"}, r"preflight .*base.toml --only masks"),
    ("alpha 0", "alpha", {"alpha": 0.0}, r"alpha = 0 should be above 0 and below 0.5"),
    ("smallest 0", "smallest", {"smallest": 0.0}, r"smallest = 0 should be above 0"),
    ("in per cent", "smallest-large", {"smallest": 5}, r"smallest = 5: eval/accuracy lies between 0 and 1"),
    ("own criteria", "criterion", {"validated_if": "arm > 0.6"}, r"validated_if = 'arm > 0.6': .* uses 'low > 0'; other"),
    ("of 0.1", "criterion", {"invalidated_if": "high < 0"}, r"invalidated_if = 'high < 0': .* 'high < smallest'; other"),
    ("cause", "catalogue", {"cause": "kl.strangle"}, r"cause = 'kl.strangle' is not .*Did you mean kl"),
    ("no such thing", "catalogue", {"allows": ("zzz",)}, r"allows = 'zzz' is not in the catalogue. Leave it empty"),
    ("no source", "source-missing", {"method": Method.REPLAY}, r"Write source = { run = \"runs/NAME-s{seed}-\*\""),
    ("no such run", "source-run", {"method": Method.REPLAY, "source": Source("runs/new")}, r"no run at .*runs/new"),
    ("early", "source-step", REPLAY | {"source": Source("runs/old", -1)}, r"source.step = -1 should be"),
    ("tasks again", "fixed", REPLAY | arms({"tasks": "recipes/tiny.toml"}), r"tasks can't differ in a replay"),
    ("sampling again", "fixed", REPLAY | arms({"sampling.size": 4}), r"sampling.size can't differ in a replay"),
    ("later", "fixed", REPLAY | arms({"model.lora.r": 4}) | {"source": Source("runs/old", 3)}, r"model.lora.r can't"),
    ("for nothing", "source-unused", {"source": Source("runs/old")}, r"a source is for a replay"),
    ("no recipe", "recipe", {"recipe": "tiny.toml"}, r"There is no recipe at .*tiny.toml. `recipe` is relative to"),
    ("not yet", "no-recipe", {"recipe": ""}, r"recipe is missing. Write the base recipe's path"),
    ("a broken recipe", "recipe", {"recipe": "recipes/broken.toml"}, r"broken.toml is not TOML"),
    ("prerequisite", "prerequisite", {"prerequisites": ("h09",)}, r"prerequisites has 'h09', and the lab has no other"),
    ("itself", "circle", {"prerequisites": ("h01",)}, r"h01 waits for h01: a circle"),
    ("no value", "metric", SOON | {"metric": "eval/accuracy/first-step@soon"}, r"is no metric.*first-step@0.8"),
    ("per cent", "reached-bounds", SOON | {"metric": "eval/accuracy/first-step@80"}, r"lies between 0 and 1, .* 80 "),
    ("stops early", "reached-early", SOON | {"stops_early": True}, r"no confidence sequence. Write stops_early ="),
    ("five seeds", "few-seeds", SOON | {"seeds": (0, 1, 2, 3, 4)}, r"the sign test .* is 0.0625.* Write 6 seeds"),
    ("two arms", "few-seeds", SOON | arms(BETA, {"learning.lr": 1.0}), r"alpha = 0.025. Write 7 seeds"),
    ("end", "reached-grid", SOON | arms({"learning.steps": 60}), r"learning.steps is 50 or 60"),
    ("other grid", "reached-grid", SOON | arms({"eval.every": 10, "learning.lr": 1.0}), r"eval.every is 5 or 10"),
    ("no grid", "reached-grid", SOON | {"arms": (replace(CONTROL, overrides={"eval.every": 0}),
     Arm("b", {"eval.every": 0, "learning.lr": 1.0}))}, r"eval.every is 0"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "said"), [case[2:] for case in BAD], ids=[case[0] for case in BAD]
)
def test_what_can_not_be_decided_is_refused(lab: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(LabError, match=said) as raised:
        check(replace(KL, **options), lab)
    assert str(raised.value).startswith("h01: ")
    assert str(raised.value).endswith((".", "?"))


def test_every_refusal_has_a_case() -> None:
    assert set(texts("refusals")) == {case[1] for case in BAD} | {"no-hint"}


def test_a_circle_over_others_is_named(lab: Path) -> None:
    notebook = Notebook(lab)
    for id, first in {"h01": "h03", "h02": "h01", "h03": "h02", "h04": "h03"}.items():
        notebook.add(replace(KL, id=id, prerequisites=(first,)), {})
    with pytest.raises(
        LabError, match=r"h01: h01 waits for h03 waits for h02 waits for h01: a circle"
    ):
        check(notebook.hypothesis("h01"), lab)
    check(notebook.hypothesis("h04"), lab)  # it waits for a circle, and is not of it
    (lab / "hypotheses" / "h05-half.md").write_text("+++\n")
    check(notebook.hypothesis("h04"), lab)  # a broken neighbor does not stop a check
