"""The causes' pages: every id, key, option, metric and probe that a page names is there."""

import re
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import pytest

from other_trainers import trl_options
from uptrend.config import load_config, to_table
from uptrend.doctor.catalogue import (
    CATALOGUE,
    Cause,
    Kind,
    complete_fix,
    parse_cause,
    resolve_experiment,
)
from uptrend.doctor.check import make_finding
from uptrend.doctor.probes import PROBES
from uptrend.records import Basis, ConfigError, Fix, Multiplied, Severity, from_lines
from uptrend.records.dialects import TRAINER_NAMES
from uptrend.records.metrics import find_metric
from uptrend.tasks import registry

CAUSES = [
    cause
    for each in CATALOGUE.values()
    for cause in (each, each.in_several_turns)
    if cause is not None
]  # as they are in tasks of one turn, and of several
FAMILIES = "reward|advantage|sampling|sampler|learner|clip|kl|loss|gradient|optimizer|weights|tokens|seconds|eval"
by_id = pytest.mark.parametrize("cause", CAUSES, ids=[cause.id for cause in CAUSES])


def load(keys: Mapping[str, Any]) -> None:
    """Load a config with these dotted keys set; relative values are left out."""
    table: dict[str, Any] = {}
    for key, value in keys.items():
        *path, last = key.split(".")
        at = table
        for part in path:
            at = at.setdefault(part, {})
        if not isinstance(value, Multiplied):
            at[last] = value
    load_config(table)


def is_known(key: str) -> bool:
    """True for a dotted key of the config, or of a taskset's options."""
    section, _, rest = key.partition(".")
    options = {
        each.name for name in registry.names() for each in fields(registry.find(name).Options)
    }
    if section in ("tasks", "eval") and rest.split(".")[0] in options:
        return True
    try:
        load_config(
            {}, [f"{key}=[[]]"]
        )  # no key takes this value: a known key is refused for its value
    except ConfigError as error:
        return str(error).startswith((f"{key} ", f"{key}[")) and "is not a known key" not in str(
            error
        )
    return False


def test_a_page_gives_a_cause() -> None:
    page = """+++
kind = "curve"
explains = ["run.collapsed"]
leads_to = ["reward.constant"]
[rivals]
"run.too-short" = "it is short"
[experiment]
claim = "It learns."
arms.control = {}
arms.slow = { "learning.lr" = { divide = 4 }, "learning.steps" = { times = 2 } }
[fix]
say = "Wait."
set.trl = { min_p = { unset = true } }
+++
# run.test

The run is a test.

## How it shows
"""
    cause = parse_cause("run.test", page)
    assert (cause.kind, cause.what, cause.explains) == (
        Kind.CURVE,
        "The run is a test.",
        ("run.collapsed",),
    )
    assert cause.leads_to == ("reward.constant",)
    assert cause.experiment.arms["slow"] == {
        "learning.lr": Multiplied(0.25),
        "learning.steps": Multiplied(2),
    }
    assert cause.fix.changes == {"trl": {"min_p": None}}
    assert cause.body == "## How it shows"


@by_id
def test_a_page_is_whole_and_what_it_names_exists(cause: Cause) -> None:
    assert "How it shows" in re.findall(r"^## (.+)$", cause.body, re.MULTILINE)
    named = {rival.id for rival in cause.rivals if re.fullmatch(r"[a-z]+\.[a-z-]+", rival.id)}
    assert named | {*cause.explains, *cause.leads_to} <= CATALOGUE.keys() - {cause.id}
    assert cause.rivals
    for span in re.findall(r"`([^`]+)`", cause.body):
        if re.fullmatch(rf"({FAMILIES})(/[\w-]+)+", span):
            assert find_metric(span) is not None, span
    for words in cause.advice.values():
        assert all(
            is_known(key)
            for key in re.findall(r"`((?:learning|sampling|model|tasks)\.[\w.]+)", words)
        )


@by_id
def test_experiments_and_fixes_load(cause: Cause) -> None:
    experiment = cause.experiment
    assert experiment.direction in ("up", "down")
    assert experiment.probe in {"", *PROBES}
    if experiment.arms:
        assert experiment.arms["control"] == {}
        assert all(arm for name, arm in experiment.arms.items() if name != "control")
    assert experiment.probe or experiment.arms or cause.kind is not Kind.PROBE
    view = from_lines(
        [{"step": 1, "reward/mean": 0.0}], source="", name="", config=to_table(load_config({}))
    )
    fix = complete_fix(cause.fix, view.trainer, view.value).changes.get("uptrend", {})
    for keys in (fix, *resolve_experiment(cause, view.value).arms.values()):
        assert not any(isinstance(value, Multiplied) for value in keys.values()), (
            "only numbers can be multiplied"
        )
        load(keys)
        assert all(is_known(key) for key in keys)


@by_id
def test_fixes_and_arms_load_in_a_recipe_that_skips_dead_groups(cause: Cause) -> None:
    table = to_table(load_config({"learning": {"skip_dead": True, "steps": 5, "warmup": 2}}))
    view = from_lines([{"step": 1, "reward/mean": 0.0}], source="", name="", config=table)
    arms = resolve_experiment(cause, view.value).arms.values()
    for changes in (cause.fix.changes.get("uptrend", {}), *arms):
        fix = complete_fix(Fix("", {"uptrend": changes}), "uptrend", view.value)
        settings = fix.changes.get("uptrend", {})
        load_config(table, settings)


@by_id
def test_other_trainers_have_only_what_is_no_translation(cause: Cause) -> None:
    ours = cause.fix.changes.get("uptrend", {})
    translated = complete_fix(replace(cause.fix, changes={"uptrend": ours})).changes
    for trainer, keys in cause.fix.changes.items():
        assert trainer == "uptrend" or (
            trainer in TRAINER_NAMES and not keys.items() & translated.get(trainer, {}).items()
        )
    assert set(cause.fix.untranslated) <= ours.keys()


def test_a_fix_fits_the_turns_that_tasks_take() -> None:
    def fix(config: dict[str, Any], **metrics: float) -> str:
        view = from_lines([{"step": 1, **metrics}], source="", name="", config=config)
        found = make_finding(view, "reward.never-computed", Severity.WARNING, Basis.SIGNAL, "", [])
        arms = found.experiment.arms.values()
        return f"{found.fix.sentence} {found.fix.changes} {list(arms)}"

    one_turn = {"sampling": {"max_turns": 1}}
    for config in ({}, one_turn):
        assert "turns" not in fix(config)
        assert "ask" not in fix(config)
        assert "sampling.max_turns" in fix(config, **{"sampling/ended/turn-limit/share": 0.9})
    assert "sampling.max_turns" in fix({"sampling": {"max_turns": 4}})
    assert "env.agent.max_turns" in fix({}, **{"sampling/turns/mean": 2.5})


def test_trl_options_exist() -> None:
    named = {key for cause in CAUSES for key in cause.fix.changes.get("trl", {})}
    assert named <= trl_options() | {
        "reward_funcs",
        "train_dataset",
        "eval_dataset",
        "processing_class",
        "tools",
    }


def test_a_fix_is_given_for_every_trainer() -> None:
    view = from_lines(
        [{"step": 1}], trainer="verl", source="", name="", config={"learning": {"lr": 1e-6}}
    )
    changes = complete_fix(CATALOGUE["optimizer.lr-small"].fix, view.trainer, view.value).changes
    assert changes["uptrend"] == {"learning.lr": pytest.approx(1e-5)}
    assert changes["verl"] == {"actor_rollout_ref.actor.optim.lr": pytest.approx(1e-5)}
    assert changes["trl"] == {"learning_rate": Multiplied(10)}, (
        "of another trainer the value is not known"
    )


@pytest.mark.parametrize(
    ("size", "rollouts"), [({"size": 4}, 32), ({}, "8 × orchestrator.group_size")]
)
def test_a_step_counted_in_rollouts_is_multiplied_where_the_group_is_known(
    size: Any, rollouts: Any
) -> None:
    view = from_lines(
        [{"step": 1}], trainer="prime-rl", source="", name="", config={"sampling": size}
    )
    changes = complete_fix(CATALOGUE["data.batch-exceeds"].fix, view.trainer, view.value).changes
    assert changes["prime-rl"] == {"orchestrator.batch_size": rollouts}


def test_explaining_has_no_cycles() -> None:
    def walk(id: str, path: tuple[str, ...]) -> None:
        assert id not in path, " → ".join([*path, id])
        for symptom in (*CATALOGUE[id].explains, *CATALOGUE[id].leads_to):
            walk(symptom, (*path, id))

    for cause in CAUSES:
        walk(cause.id, ())


@pytest.mark.parametrize(
    ("cause", "rate", "weights", "more", "fixed"),
    [
        ("optimizer.lr-large", 5e-2, 10**6, {}, 1e-4),
        ("optimizer.lr-large", 5e-2, 7 * 10**9, {}, 5e-6),
        ("optimizer.lr-large", 5e-2, 7 * 10**9, {"lora": {"r": 8}}, 5.23e-5),
        ("optimizer.lr-large", 5e-2, None, {}, 1e-4),
        ("optimizer.lr-large", 6e-6, 7 * 10**9, {}, 2e-6),
        ("optimizer.lr-small", 1e-9, 10**6, {}, 4e-5),
        ("optimizer.lr-small", 1e-9, 10**9, {}, 4e-6),
        ("optimizer.lr-small", 1e-6, 10**9, {}, 1e-5),
    ],
)
def test_a_rate_that_is_far_off_becomes_a_usual_one(
    cause: str, rate: float, weights: int | None, more: dict[str, Any], fixed: float
) -> None:
    told = {"learning": {"lr": rate}, "model": more}
    info = {"model": {"parameters": weights}} if weights else {}
    view = from_lines([], trainer="trl", source="", name="", config=told, info=info)
    changes = make_finding(view, cause, Severity.WARNING, Basis.SIGNAL, "", []).fix.changes
    assert (
        changes["uptrend"]["learning.lr"]
        == changes["trl"]["learning_rate"]
        == pytest.approx(fixed, rel=0.1)
    )
