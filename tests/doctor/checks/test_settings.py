"""Settings that no recipe mentions: in a model's files, in a sampler, in versions known to be bad."""

from typing import Any

import pytest
from test_rollouts import softmaxes

from curve_runs import findings, healthy, lacks
from tampered import tampered
from uptrend.doctor.catalogue import CATALOGUE
from uptrend.doctor.known_bad import known_combinations
from uptrend.records import Basis, RunView, Severity

WARNING, CRITICAL = Severity.WARNING, Severity.CRITICAL
HIDDEN, VOCABULARY, TEMPLATE = "sampling.hidden-settings", "tokens.vocabulary", "tokens.template"


def files(**values: Any) -> dict[str, Any]:
    """Return a model's description: 90 tokens in 96 rows, token 2 ends a turn."""
    tokenizer = {"tokens": 90, "thoughts": values.pop("thoughts", "kept")}
    described = {"embeddings": 96, "stops": [2], "tokenizer": tokenizer, "generation": {}}
    return {"model": {"files": described | values}}


def found(info: dict[str, Any], id: str, **fields: Any) -> Severity | None:
    view = healthy(info=info, **fields)
    finding = findings(view, id).get(id)
    return None if finding is None else finding.severity


@pytest.mark.parametrize(
    ("sampler", "severity"),
    [
        ({"engine": "generate", "hidden": {"min_p": 0.3}}, WARNING),
        ({"engine": "generate", "hidden": {}}, None),
        ({"engine": "vllm", "hidden": "damaged"}, None),
    ],
)
def test_settings_that_the_sampler_takes_from_the_models_files(
    sampler: dict[str, Any], severity: Severity | None
) -> None:
    assert found({"sampler": sampler}, HIDDEN) == severity


def test_an_unknown_sampler_is_said_to_be_unknown() -> None:
    assert HIDDEN in lacks(healthy(info={"sampler": {"engine": "rollout_func"}}), HIDDEN)


@pytest.mark.parametrize(
    ("info", "id", "severity"),
    [
        (files(), VOCABULARY, None),
        (files(embeddings=64), VOCABULARY, CRITICAL),
        (files(stops=[2, 90]), VOCABULARY, WARNING),
        (files(stops=[90]), VOCABULARY, CRITICAL),
        (files(stops=["damaged"]), VOCABULARY, None),
        ({"model": {"files": {"tokenizer": None}}}, VOCABULARY, None),
    ],
)
def test_tokens_on_which_a_models_files_disagree(
    info: dict[str, Any], id: str, severity: Severity | None
) -> None:
    assert found(info, id) == severity


@pytest.mark.parametrize(
    ("fate", "turns", "trainer", "severity"),
    [
        ("dropped", 4, "trl", WARNING),
        ("rewritten", 4, "trl", WARNING),
        ("dropped", 4, "uptrend", Severity.NOTE),
        ("dropped", 1, "trl", None),
        ("kept", 4, "trl", None),
    ],
)
def test_a_template_that_loses_thoughts(
    fate: str, turns: int, trainer: str, severity: Severity | None
) -> None:
    config = {"sampling": {"max_turns": turns}}
    assert found(files(thoughts=fate), TEMPLATE, trainer=trainer, config=config) == severity


def versions(**raw: Any) -> dict[str, Any]:
    """Return run.json's packages from TRL's and transformers' versions, and TRL's own settings."""
    packages = {"trl": raw.pop("trl"), "transformers": raw.pop("transformers", "4.57.1")}
    return {"packages": packages, "raw": raw}


LORA = {"model": {"lora": {"r": 8}}}
KNOWN: dict[str, tuple[dict[str, Any], dict[str, Any], set[str]]] = {
    "settings of the files win": (versions(trl="0.25.1", use_vllm=False), {}, {HIDDEN}),
    "not in the release that repairs it": (versions(trl="0.26.2", use_vllm=False), {}, set()),
    "not with transformers 5": (versions(trl="0.25.1", transformers="5.0.0", use_vllm=False), {}, set()),
    "not with vLLM": (versions(trl="0.25.1", use_vllm=True), {}, set()),
    "batches without end": (versions(trl="1.4.0", use_transformers_paged=True), {}, {HIDDEN}),
    "raw log-probabilities": (
        versions(trl="0.23.1", use_vllm=True, temperature=0.6), {}, {"sampling.truncated-distribution"}),
    "raw log-probabilities at 1": (versions(trl="0.23.1", use_vllm=True, temperature=1.0), {}, set()),
    "raw log-probabilities at any": (versions(trl="0.23.1", use_vllm=True), {}, set()),
    "processed log-probabilities": (versions(trl="0.24.0", use_vllm=True, temperature=0.6), {}, set()),
    "no mask": (versions(trl="0.14.0", transformers="4.48.2"), {}, {"tokens.padding"}),
    "adapters lost": (versions(trl="0.15.0", transformers="4.49.0", use_vllm=True), LORA, {"sync.stale-weights"}),
    "no adapters to lose": (versions(trl="0.15.0", transformers="4.49.0", use_vllm=True), {}, set()),
    "a mask": (versions(trl="0.15.1", transformers="4.49.0", use_vllm=True), LORA, set()),
    "no versions": ({"raw": {"use_vllm": False}}, {}, set()),
    "damaged versions": (versions(trl="main", use_vllm=False), {}, set()),
}  # fmt: skip


@pytest.mark.parametrize(("info", "config", "expected"), KNOWN.values(), ids=KNOWN)
def test_versions_that_are_known_to_be_bad(
    info: dict[str, Any], config: dict[str, Any], expected: set[str]
) -> None:
    view = healthy(info=info, config=config, **{"reward/mean": 0.3})
    named = set()
    for id in {combination.id for combination in known_combinations()}:
        for finding in findings(view, id).values():
            if any(evidence.text.startswith("https://") for evidence in finding.evidence):
                named.add(finding.id)
                assert (finding.severity, finding.basis) == (WARNING, Basis.SIGNAL)
    assert named == expected


def test_another_trainer_is_not_blamed() -> None:
    info = versions(trl="0.14.0", transformers="4.48.2")
    assert found(info, "tokens.padding", trainer="verl", **{"reward/mean": 0.3}) is None
    blind = {"packages": {"verifiers": "0.1.4"}, "raw": {}}
    assert found(blind, "mask.attention-blind", trainer="verifiers", **{"reward/mean": 0.3})


def test_a_run_that_learns_is_only_told() -> None:
    assert found(versions(trl="0.25.1", use_vllm=False), HIDDEN) is Severity.NOTE


def test_every_known_combination_has_a_page_and_a_thread() -> None:
    for combination in known_combinations():
        assert combination.id in CATALOGUE
        assert combination.source.startswith("https://github.com/")
        assert combination.packages


def test_the_shape_of_the_gap_is_blamed_on_the_files_that_explain_it(tiny: RunView) -> None:
    cut = softmaxes(top_p=0.8)
    model = tiny.info["model"]
    for generation, expected in (
        ({"top_p": 0.8}, HIDDEN),
        ({}, "sampling.truncated-distribution"),
        ({"top_p": "0.8"}, "sampling.truncated-distribution"),
    ):
        described = {**model, "files": {"generation": generation}}
        view = tampered(
            tiny,
            cut,
            info={**tiny.info, "model": described},
            metrics={"reward/mean": tiny.metrics["reward/mean"]},
        )
        assert set(findings(view, "sampling.")) & {HIDDEN, "sampling.truncated-distribution"} == {
            expected
        }


def test_our_own_run_describes_its_models_files(tiny: RunView) -> None:
    described = tiny.info["model"]["files"]
    assert described["tokenizer"]["tokens"] <= described["embeddings"]
    assert described["stops"] == [2]
    assert described["generation"] == {}
    assert "torch" in tiny.info["packages"]
    assert findings(tiny, (HIDDEN, VOCABULARY, TEMPLATE)) == {}
