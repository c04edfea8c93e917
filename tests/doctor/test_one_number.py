"""One number for each fact: what a sentence says of a setting is the value of its change, on every
surface.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import uptrend
from uptrend.config import load_config, to_table
from uptrend.doctor.catalogue import CATALOGUE, SETTING_PLACEHOLDER, Cause, settings_in_force
from uptrend.doctor.check import make_finding
from uptrend.doctor.diagnose import diagnose
from uptrend.doctor.pages import cause_page
from uptrend.doctor.report import print_report
from uptrend.lab.draft import all_ready, draft_from_cause
from uptrend.lab.notebook import Notebook
from uptrend.records import Basis, Finding, Multiplied, RunView, Severity, from_lines

ROOT = Path(__file__).parents[2]
by_id = pytest.mark.parametrize("cause", CATALOGUE.values(), ids=CATALOGUE)

# Numbers in words or figures. Names with a figure in them (fp32, k3, pass@64) are no numbers.
NUMBER = re.compile(r"(?<![\w.@/-])−?\d[\d,.]*(?:e-?\d+)?%?(?![\w/-])")
NUMBER_WORD = re.compile(
    r"\b(?:a (?:third|quarter|fifth|tenth)|half|twice (?:the|its)|double|tenfold|(?:two|three|four|five|ten) times)\b",
    re.IGNORECASE,
)
# Numbers of probes, formulas and versions, which are no setting's: a page that has another one
# needs a placeholder.
NO_SETTING = {
    "advantage.dead-groups-high": {"half", "20%", "80%"},
    "advantage.dead-groups-low": {"half"},
    "advantage.wrong-groups": {"0"},
    "data.duplicates": {"90%"},
    "data.wrong-gold": {"50"},
    "kl.reference": {"0"},
    "kl.sign": {"1"},
    "mask.attention-blind": {"0.1.2", "0.1.6"},
    "mask.model-untrained": {"1"},
    "mask.tool-trained": {"0"},
    "optimizer.accumulation": {"1", "64", "8", "1e-3"},
    "optimizer.frozen": {"0"},
    "precision.mismatch": {"0"},
    "reward.component-dead": {"0"},
    "reward.constant": {"64", "20%", "80%"},
    "reward.error-scored": {"0"},
    "reward.hackable": {"20"},
    "reward.nondeterministic": {"50", "0"},
    "reward.strict-parser": {"2%"},
    "run.resume-jump": {"half"},
    "sampling.few-generations": {"1"},
}
RECIPES: dict[str, tuple[str, ...]] = {
    "tiny at 3e-3": ("learning.lr=3e-3",),
    "tiny with much already": (
        "learning.lr=1e-5", "sampling.size=32", "sampling.resample=3", "eval.tasks=1000", "learning.max_grad_norm=2.0",
        "learning.clip_high=0.3", "sampling.temperature=1.2",
    ),
    "tiny with a penalty": ("learning.kl.beta=0.2", "learning.skip_dead=false", "learning.warmup=40"),
}  # fmt: skip


def numbers(text: str) -> set[str]:
    """Return the numbers in a sentence, in figures and words, without a full stop behind them."""
    return {found.rstrip(".,") for found in NUMBER.findall(text)} | set(
        map(str.lower, NUMBER_WORD.findall(text))
    )


def run_of(recipe: str) -> RunView:
    """Return a run of the smallest recipe with these settings."""
    config = to_table(load_config(ROOT / "recipes" / "tiny.toml", RECIPES[recipe]))
    return from_lines(
        [], source="run", name="run", config=config, info={"model": {"parameters": 10**6}}
    )


def finding_of(cause: Cause, view: RunView) -> Finding:
    return make_finding(view, cause.id, Severity.WARNING, Basis.SIGNAL, "", [])


def shown(value: Any) -> str:
    """Return a value as a sentence has it."""
    return (
        value.in_words
        if isinstance(value, Multiplied)
        else value
        if isinstance(value, str)
        else json.dumps(value)
    )


def sentences(cause: Cause) -> Iterator[str]:
    """Yield the sentences of a page's front matter, and the names of its arms."""
    yield from (cause.fix.sentence, cause.experiment.claim, cause.how)
    yield from cause.experiment.arms
    yield from (rival.tells_apart for rival in cause.rivals)


@by_id
def test_no_sentence_of_a_page_repeats_a_number_of_its_changes(cause: Cause) -> None:
    rivals = {rival.tells_apart for rival in cause.rivals}
    for sentence in sentences(cause):
        left = numbers(SETTING_PLACEHOLDER.sub("", sentence)) - NO_SETTING.get(cause.id, set())
        assert not left or (sentence in rivals and not NUMBER_WORD.search(sentence)), (
            f"{sentence!r} needs a placeholder"
        )


@pytest.mark.parametrize("recipe", RECIPES)
@by_id
def test_numbers_in_a_finding_are_those_of_its_changes(cause: Cause, recipe: str) -> None:
    view = run_of(recipe)
    found = finding_of(cause, view)
    assert found.fix is not None
    assert found.experiment is not None
    assert not SETTING_PLACEHOLDER.search(found.fix.sentence + found.experiment.claim)
    in_fix = {**found.fix.in_force, **found.fix.changes.get("uptrend", {})}
    for key in SETTING_PLACEHOLDER.findall(cause.fix.sentence):
        assert shown(in_fix[key]) in found.fix.sentence
    for key in set(SETTING_PLACEHOLDER.findall(cause.experiment.claim)) - {"steps"}:
        values = [keys[key] for keys in found.experiment.arms.values() if key in keys]
        assert all(shown(value) in found.experiment.claim for value in values)
    values = {
        number
        for keys in (in_fix, *found.experiment.arms.values())
        for v in keys.values()
        for number in numbers(shown(v))
    }
    allowed = values | {str(found.experiment.steps)} | NO_SETTING.get(cause.id, set())
    assert numbers(found.fix.sentence) <= allowed | numbers(json.dumps(found.fix.in_force))
    assert numbers(found.experiment.claim) <= allowed | {shown(v) for v in in_fix.values()}


@pytest.mark.parametrize("recipe", RECIPES)
@by_id
def test_a_fix_changes_nothing_that_is_in_force(cause: Cause, recipe: str) -> None:
    view = run_of(recipe)
    fix = finding_of(cause, view).fix
    assert fix is not None
    for key, value in fix.changes.get("uptrend", {}).items():
        now = settings_in_force(view)(key)
        assert now is None or now != value, f"{key} = {value} is what the run has"


@by_id
def test_a_page_has_every_number_in_its_place(cause: Cause) -> None:
    page = cause_page(cause)
    assert not re.search(r"\{[a-z]\w*(\.\w+)*%?\}", page)


# Numbers in what a page says of how a cause shows: in figures, as parts and multiples, and counts.
COUNT_WORD = re.compile(r"\b(?:three|four|five|six|eight|ten|twenty|thousandth)\b", re.IGNORECASE)
# What is none of our numbers: an example's, code, links, issues, and what the code fills in.
NO_TEXT = re.compile(
    r"^(?:- )?(?:Example|Case)s?:.*$|`[^`]*`|\]\([^)]*\)|#\d+|\{[^{}]*\}", re.MULTILINE
)
# 0, and 1 where it is what a share or a ratio is at most, or where all is well: no limit of ours.
BOUND = re.compile(
    r"(?<![\w.−-])0(?![\w%]|\.\d)|(?<!above )(?<!than )(?<![\w.])1(?![\w%]|\.\d| nat)"
)
# Numbers that are no threshold of a check or a probe, by page.
NO_THRESHOLD = {
    "advantage.sign": {"five"},  # updates that a watched TRL is asked about; bridge has them
    "context.completion-truncated": {"a quarter", "twice the"},  # part of a run; a probe's budget
    "eval.noise": {"95%", "10", "194", "5", "783"},  # the power of a test, worked out
    "mask.tool-trained": {"three"},  # rollouts that are printed
    "optimizer.frozen": {"three", "three times"},  # steps of a watched TRL; bridge has them
    "optimizer.lr-large": {"half"},  # a median
    "precision.update-underflow": {"1e-5"},  # a hint that no check follows
    "reward.never-computed": {"twice the"},  # a probe's budget
    "reward.strict-parser": {"ten"},  # rollouts for the user to read
    "sampling.few-generations": {"4"},  # a hint that no check follows
    "sampling.no-stop": {"twice the"},  # a probe's budget
    "sync.stale-weights": {"three"},  # generations of a watched TRL; bridge has them
}


@by_id
def test_a_page_names_thresholds_only_by_the_code(cause: Cause) -> None:
    shows = cause.body.partition("## How it shows")[2].partition("\n## ")[0]
    text = BOUND.sub("", NO_TEXT.sub("", shows))
    left = numbers(text) | set(map(str.lower, COUNT_WORD.findall(text)))
    assert left == NO_THRESHOLD.get(cause.id, set()), "a threshold needs its constant's placeholder"


@pytest.mark.parametrize("rate", [3e-3, 3e-4, 2e-5])
def test_a_hypothesis_leaves_its_rate_to_its_arm(tmp_path: Path, rate: float) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(f"[model]\nname = 'tiny'\n[learning]\nlr = {rate}\n")
    Notebook.init(tmp_path / "lab")
    for id in ("optimizer.lr-large", "optimizer.lr-small", "run.nonfinite"):
        draft = draft_from_cause("h01", CATALOGUE[id], recipe, tmp_path / "lab")
        rates = [
            arm.overrides["learning.lr"]
            for arm in draft.hypothesis.arms
            if "learning.lr" in arm.overrides
        ]
        assert rates
        assert rate not in rates
        assert not numbers(draft.hypothesis.title)
        claims = draft.prose["Why it explains the behavior"]
        assert not any(word in claims for word in ("third", "tenth", json.dumps(rate)))


@pytest.mark.parametrize("id", all_ready())
def test_a_ready_hypothesis_leaves_numbers_to_its_arms(id: str) -> None:
    draft = all_ready()[id]
    prose = " ".join([draft.hypothesis.title, draft.hypothesis.explains, *draft.prose.values()])
    prose = re.sub(r"```.*?```|`[^`]*`", "", prose, flags=re.DOTALL)
    names = " ".join(arm.name for arm in draft.hypothesis.arms)
    assert numbers(f"{prose} {names}") <= {"0"}


def printed(view: RunView, *found: Finding) -> str:
    """Return what the terminal shows of findings on a run."""
    report = replace(diagnose(view), findings=found)
    console = Console(file=StringIO(), width=200)
    print_report(report, console)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_a_fix_that_is_in_force_is_no_advice() -> None:
    view = run_of("tiny with much already")
    found = finding_of(CATALOGUE["sampling.few-generations"], view)
    assert found.fix is not None
    assert found.fix.changes.get("uptrend") is None
    said = (
        "sampling.size = 32 is in force already, so that the cause is another: look at the rivals."
    )
    assert found.fix.sentence == said
    shown_text = printed(view, found)
    assert said in shown_text
    assert "TRL" not in shown_text, "other trainers' settings are no substitute"


def test_what_is_left_of_a_fix_is_advice_and_the_rest_is_said_to_be_in_force() -> None:
    view = run_of("tiny with much already")
    found = finding_of(CATALOGUE["sampling.entropy-collapse"], view)
    assert found.fix is not None
    # A penalty lets dead groups teach, so that skipping them ends with it.
    left = {"learning.kl.beta", "learning.lr", "learning.skip_dead"}
    assert set(found.fix.changes["uptrend"]) == left
    assert found.fix.in_force == {"learning.clip_high": 0.3}
    assert found.fix.sentence.startswith(
        "Raise the upper clip to 0.3 (in force already), add a KL penalty of 0.01, "
    )
    assert "in force already: learning.clip_high = 0.3" in printed(view, found)


DEFAULTS = {"scale_rewards": "group", "multi_objective_aggregation": "sum_then_normalize"}
FOREIGN: dict[str, tuple[str, str, dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "trl, by its own names": ("trl", "advantage.metric-blind", {}, DEFAULTS, DEFAULTS),
    "trl, another value": ("trl", "advantage.metric-blind", {}, {**DEFAULTS, "scale_rewards": "batch"},
                           {"multi_objective_aggregation": "sum_then_normalize"}),
    "trl, by ours": ("trl", "advantage.blow-up", {"learning": {"scale": "none"}}, {}, {"scale_rewards": "none"}),
    "trl, where nothing is known": ("trl", "advantage.metric-blind", {}, {}, {}),
    "verl": ("verl", "kl.strangles", {"learning": {"kl": {"beta": 0.0005}}}, {},
             {"actor_rollout_ref.actor.kl_loss_coef": 0.0005, "actor_rollout_ref.actor.use_kl_loss": True}),
    "prime-rl": ("prime-rl", "sync.stale-weights", {}, {"orchestrator.max_off_policy_steps": 0},
                 {"orchestrator.max_off_policy_steps": 0}),
    "verifiers": ("verifiers", "data.order", {}, {"shuffle_dataset": True}, {"shuffle_dataset": True}),
}  # fmt: skip


@pytest.mark.parametrize("name", FOREIGN)
def test_fixes_for_other_trainers_are_compared_with_their_settings(name: str) -> None:
    trainer, id, config, raw, in_force = FOREIGN[name]
    view = from_lines([], trainer=trainer, source="log", name="", config=config, info={"raw": raw})
    fix = finding_of(CATALOGUE[id], view).fix
    assert fix is not None
    assert fix.in_force == in_force
    assert not fix.changes.get(trainer, {}).keys() & in_force.keys()


def test_settings_beside_a_log_are_in_force(tmp_path: Path) -> None:
    rows = [
        {"step": step, "reward": 0.0, "reward_std": 0.0, "frac_reward_zero_std": 1.0, "loss": 0.0, "grad_norm": 0.0,
         "learning_rate": 1e-5}
        for step in range(1, 31)
    ]  # fmt: skip
    (tmp_path / "trainer_state.json").write_text(
        json.dumps({"global_step": 30, "max_steps": 30, "log_history": rows})
    )
    settings = {
        "num_generations": 32,
        "learning_rate": 1e-5,
        "temperature": 1.0,
        "max_completion_length": 64,
    }
    (tmp_path / "config.json").write_text(json.dumps(settings))
    report = uptrend.diagnose(tmp_path / "trainer_state.json")
    for found in (f for top in report.findings for f in (top, *top.explains)):
        assert found.fix is not None
        changes = found.fix.changes.get("trl", {})
        assert all(settings.get(key) != value for key, value in changes.items()), found.id
        assert changes.get("num_generations") != 16
