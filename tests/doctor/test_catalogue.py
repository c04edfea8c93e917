"""The catalogue: complete, consistent, and every option that it names is there."""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import uptrend
from other_trainers import trl_options
from uptrend.config import load_config, to_table
from uptrend.config.schema import Config, Lora
from uptrend.doctor.catalogue import CATALOGUE, Cause, Kind
from uptrend.doctor.resolve import complete_fix, resolve_experiment, resolve_fix
from uptrend.records import Times, from_lines
from uptrend.records.dialects import TRAINERS

PROBES = Path(uptrend.__file__).parent / "doctor" / "probes"
ELSEWHERE = {"reward.constant", "tool.errors-swallowed", "tool.never-called"}
"""Causes that a probe settles by excluding what else it could be."""
TASK_OPTIONS = {"tasks.reward"}
"""Options of tasksets, which the config's schema does not know: those of `tasks show arithmetic`."""

CAUSES = list(CATALOGUE.values())
by_id = pytest.mark.parametrize("cause", CAUSES, ids=[cause.id for cause in CAUSES])


def keys_of(kind: type, prefix: str = "") -> Iterator[str]:
    """Every dotted key of a config dataclass, adapters included."""
    for each in fields(kind):
        inner = Lora if each.name == "lora" else each.default_factory
        yield prefix + each.name
        if isinstance(inner, type) and is_dataclass(inner):
            yield from keys_of(inner, f"{prefix}{each.name}.")


UPTREND = set(keys_of(Config)) | TASK_OPTIONS


def literal(keys: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in keys.items() if not isinstance(value, Times)}


def load(keys: Mapping[str, Any]) -> Config:
    """A config with these dotted keys set."""
    table: dict[str, Any] = {}
    for key, value in keys.items():
        *path, last = key.split(".")
        at = table
        for part in path:
            at = at.setdefault(part, {})
        at[last] = value
    return load_config(table)


def uptrend_changes(cause: Cause) -> list[Mapping[str, Any]]:
    return [cause.fix.changes.get("uptrend", {}), *cause.experiment.arms.values()]


def test_the_ids_are_those_of_the_catalogue() -> None:
    assert len(CAUSES) == 76
    assert all(re.fullmatch(r"[a-z]+\.[a-z]+(-[a-z]+)*", cause.id) for cause in CAUSES)
    counts = {kind: sum(cause.kind is kind for cause in CAUSES) for kind in Kind}
    assert counts == {Kind.INVARIANT: 26, Kind.PROBE: 20, Kind.CURVE: 30}


@by_id
def test_each_says_what_it_is_and_what_to_do(cause: Cause) -> None:
    assert cause.what.endswith(".")
    assert 40 < len(cause.what) < 220
    assert cause.fix.sentence.endswith(".")
    assert cause.experiment.claim.endswith(".")
    assert cause.rivals
    assert all(rival.tells_apart for rival in cause.rivals)


@by_id
def test_ids_named_are_ids(cause: Cause) -> None:
    named = [rival.id for rival in cause.rivals if re.fullmatch(r"[a-z]+\.[a-z-]+", rival.id)]
    assert set(named) <= set(CATALOGUE)
    assert cause.id not in named
    assert set(cause.explains) <= set(CATALOGUE)
    assert len(set(cause.explains)) == len(cause.explains)


@by_id
def test_an_experiment_can_be_run(cause: Cause) -> None:
    experiment = cause.experiment
    assert experiment.direction in ("up", "down")
    assert experiment.smallest >= 0
    if experiment.arms:
        assert experiment.arms["control"] == {}
        assert len(experiment.arms) >= 2
        assert all(arm for name, arm in experiment.arms.items() if name != "control")
    if cause.kind is Kind.PROBE:
        assert experiment.probe or experiment.arms


def test_a_probe_is_there_and_looks_for_the_cause() -> None:
    text = (PROBES / "__init__.py").read_text(encoding="utf-8")
    modules = dict(re.findall(r'"([a-z-]+)": Probe\((\w+)\.probe', text))
    assert len(modules) > 20
    for cause in CAUSES:
        if probe := cause.experiment.probe:
            source = (PROBES / f"{modules[probe]}.py").read_text(encoding="utf-8")
            assert (f'"{cause.id}"' in source) != (cause.id in ELSEWHERE), (cause.id, probe)


def test_few_causes_are_decided_by_records_alone() -> None:
    neither = {cause.id for cause in CAUSES if not cause.experiment.probe and not cause.experiment.arms}
    assert neither == {
        "advantage.metric-blind",
        "eval.noise",
        "reward.error-scored",
        "run.resume-jump",
        "run.restarts-concatenated",
        "run.ranks-diverge",
    }


@by_id
def test_uptrend_keys_exist_and_values_are_right(cause: Cause) -> None:
    for keys in uptrend_changes(cause):
        assert set(keys) <= UPTREND
        load(literal(keys))


@by_id
def test_relative_values_are_of_numbers(cause: Cause) -> None:
    view = from_lines([{"step": 1, "reward/mean": 0.0}], source="", name="", config=to_table(load_config({})))
    resolved = [resolve_fix(cause.fix, view).changes.get("uptrend", {})]
    resolved += resolve_experiment(cause.experiment, view).arms.values()
    for keys in resolved:
        assert not any(isinstance(value, Times) for value in keys.values())
        load(keys)


@by_id
def test_other_trainers_have_only_what_is_no_translation(cause: Cause) -> None:
    assert set(cause.fix.changes) <= {"uptrend", *TRAINERS}
    assert all(cause.fix.changes.values()), "a trainer without a change is left out"
    alone = {who: keys for who, keys in cause.fix.changes.items() if who != "uptrend"}
    translated = complete_fix(replace(cause.fix, changes={"uptrend": cause.fix.changes.get("uptrend", {})})).changes
    for trainer, keys in alone.items():
        assert not keys.items() & translated.get(trainer, {}).items()
    assert set(cause.fix.untranslated) <= set(cause.fix.changes.get("uptrend", {}))


def test_trl_options_exist() -> None:
    named = {key for cause in CAUSES for key in cause.fix.changes.get("trl", {})}
    assert named <= trl_options() | {"reward_funcs", "train_dataset", "eval_dataset", "processing_class", "tools"}


def test_a_fix_is_told_in_every_trainers_words() -> None:
    view = from_lines([{"step": 1}], trainer="verl", source="", name="", config={"learning": {"lr": 1e-6}})
    changes = resolve_fix(CATALOGUE["optimizer.lr-small"].fix, view).changes
    assert changes["uptrend"] == {"learning.lr": pytest.approx(1e-5)}
    assert changes["verl"] == {"actor_rollout_ref.actor.optim.lr": pytest.approx(1e-5)}
    assert changes["trl"] == {"learning_rate": Times(10)}, "of another trainer the value is not known"


def test_a_step_counted_in_rollouts_is_multiplied_where_the_group_is_known() -> None:
    for size, told in (({"size": 4}, 32), ({}, "8 × orchestrator.group_size")):
        view = from_lines([{"step": 1}], trainer="prime-rl", source="", name="", config={"sampling": size})
        changes = resolve_fix(CATALOGUE["data.batch-exceeds"].fix, view).changes
        assert changes["prime-rl"] == {"orchestrator.batch_size": told}


def test_explaining_has_no_cycles() -> None:
    def walk(id: str, path: tuple[str, ...]) -> None:
        assert id not in path, " → ".join([*path, id])
        for symptom in CATALOGUE[id].explains:
            walk(symptom, (*path, id))

    for cause in CAUSES:
        walk(cause.id, ())


@pytest.mark.parametrize(
    ("cause", "symptom"),
    [
        ("reward.gold-rejected", "reward.constant"),
        ("reward.gold-rejected", "kl.dead-group-pull"),
        ("mask.attention-blind", "precision.mismatch"),
        ("precision.update-underflow", "optimizer.lr-small"),
        ("precision.update-underflow", "kl.strangles"),
        ("sync.stale-weights", "sampling.entropy-explosion"),
        ("optimizer.lr-large", "run.collapsed"),
        ("config.group-of-one", "optimizer.dead-steps"),
    ],
)
def test_a_cause_stands_above_its_symptom(cause: str, symptom: str) -> None:
    assert symptom in CATALOGUE[cause].explains
    assert cause not in CATALOGUE[symptom].explains


def test_scalars_show_for_certain_only_what_they_hold() -> None:
    certain = {cause.id for cause in CAUSES if cause.in_scalars}
    assert certain == {
        "run.nonfinite",
        "optimizer.skipped-updates",
        "optimizer.frozen",
        "config.group-of-one",
        "data.batch-exceeds",
        "mask.tool-trained",
        "precision.mismatch",
        "precision.update-underflow",
    }
    assert all(CATALOGUE[id].kind is not Kind.CURVE for id in certain)


def test_settings_of_fixes_are_toml() -> None:
    for cause in CAUSES:
        for key, value in literal(cause.fix.changes.get("uptrend", {})).items():
            text = repr(value).replace("'", '"').replace("True", "true").replace("False", "false")
            assert tomllib.loads(f"{key} = {text}")
