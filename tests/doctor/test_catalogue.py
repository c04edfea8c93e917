"""The catalogue: complete, consistent, and every option that it names is there."""

import ast
import importlib.util
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

import uptrend
from uptrend.config import load_config, to_table
from uptrend.config.schema import Config, Lora
from uptrend.doctor.catalogue import CATALOGUE, Cause, Kind
from uptrend.doctor.resolve import resolve_experiment, resolve_fix
from uptrend.records import Times, from_lines

PROBES = Path(uptrend.__file__).parent / "doctor" / "probes"
ELSEWHERE = {"reward.constant", "tool.errors-swallowed", "tool.never-called"}
"""Causes that a probe settles by excluding what else it could be."""
TRAINERS = {"uptrend", "trl", "verifiers", "prime-rl"}
TASK_OPTIONS = {"tasks.reward"}
"""Options of tasksets, which the config's schema does not know: those of `tasks show arithmetic`."""

VERIFIERS = {
    # RLConfig of verifiers 0.1.9, the last that trains by itself; warmup_steps is of TrainingArguments
    "rollouts_per_example", "batch_size", "temperature", "top_p", "top_k", "repetition_penalty", "learning_rate",
    "max_grad_norm", "lr_scheduler_type", "warmup_steps", "bf16", "mask_env_responses", "mask_truncated_completions",
    "mask_ratio_low", "mask_ratio_high", "max_tokens", "max_seq_len", "max_prompt_len", "max_steps", "lora_dropout",
    "lora_target_modules", "shuffle_dataset", "eval_strategy", "eval_steps", "save_steps", "save_only_model",
    "output_dir", "run_name",
    # GRPOConfig of verifiers 0.1.5
    "beta", "num_batches_ahead",
    # verifiers 0.4, which plays and scores only
    "env.taskset.task.rewards.NAME.weight", "env.taskset.task.judges.sampling.temperature", "env.agent.max_turns",
    "env.agent.retries.max_retries", "env.agent.runtime.type",
    "version",
}  # fmt: skip
PRIME_RL = {
    # prime-rl at 559b447, packages/prime-rl-configs
    "seq_len", "max_steps", "output_dir", "ckpt.interval", "weight_broadcast.type",
    "trainer.optim.lr", "trainer.optim.max_norm", "trainer.optim.type", "trainer.scheduler.type",
    "trainer.loss.dppo_mask_high", "trainer.model.optimization_dtype",
    "trainer.model.reduce_dtype", "trainer.model.lora.dropout", "trainer.model.lora.target_modules",
    "trainer.ckpt.skip_optimizer", "trainer.ckpt.skip_scheduler", "trainer.ckpt.skip_dataloader",
    "inference.vllm.dtype", "inference.vllm.enable_prefix_caching", "inference.vllm.tool_call_parser",
    "inference.enable_fp32_lm_head",
    "orchestrator.batch_size", "orchestrator.group_size", "orchestrator.max_off_policy_steps",
    "orchestrator.algo.type", "orchestrator.algo.length_penalty.type", "orchestrator.renderer.name",
    "orchestrator.eval.interval", "orchestrator.eval.num_examples", "orchestrator.eval.source.env.taskset.id",
    "orchestrator.train.filter_zero_advantages", "orchestrator.train.sampling.temperature",
    "orchestrator.train.sampling.max_completion_tokens", "orchestrator.train.sampling.extra_body",
    "orchestrator.train.source.curriculum.sampler.type",
    "orchestrator.train.source.env.taskset.task.rewards.NAME.weight", "orchestrator.train.source.env.agent.max_turns",
    "orchestrator.train.source.env.agent.retries.max_retries", "orchestrator.train.source.env.agent.runtime.type",
}  # fmt: skip

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


def fields_in(source: str) -> set[str]:
    """The annotated fields of all classes of a module, and the arguments of their `__init__`."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            names |= {argument.arg for argument in node.args.args}
    return names


def trl_options() -> set[str]:
    """TRL's own option names, read from its source so that nothing heavy is imported."""
    names = set()
    for package, files in (
        ("trl", ("trainer/grpo_config.py", "trainer/base_config.py", "trainer/grpo_trainer.py")),
        ("transformers", ("training_args.py",)),
    ):
        found = importlib.util.find_spec(package)
        if found is None or found.origin is None:
            pytest.skip(f"{package} is not installed")
        names |= {
            name for file in files for name in fields_in((Path(found.origin).parent / file).read_text(encoding="utf-8"))
        }
    return names


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
def test_other_trainers_options_exist(cause: Cause) -> None:
    assert set(cause.fix.changes) <= TRAINERS
    assert all(cause.fix.changes.values()), "a trainer without a change is left out"
    assert set(cause.fix.changes.get("verifiers", {})) <= VERIFIERS
    assert set(cause.fix.changes.get("prime-rl", {})) <= PRIME_RL


def test_trl_options_exist() -> None:
    options = trl_options()
    assert {"num_generations", "learning_rate", "reward_funcs"} <= options
    named = {key for cause in CAUSES for key in cause.fix.changes.get("trl", {})}
    assert named <= options


def test_every_listed_option_is_used() -> None:
    for trainer, listed in (("verifiers", VERIFIERS), ("prime-rl", PRIME_RL)):
        used = {key for cause in CAUSES for key in cause.fix.changes.get(trainer, {})}
        assert listed == used


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
