"""Models that would be scored or sampled otherwise than transformers does are refused; all others
pass.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import uptrend
from models import character_tokenizer, make_policy, write_model
from uptrend.policy.attention import Packed
from uptrend.records import ModelError, UptrendError
from uptrend.runner import prepare
from uptrend.training.parity import measure

ADDITION = {"name": "arithmetic", "operations": ["+"]}
# Of models that can be compared, the gap; where a path of ours ends in an exception, its kind.
REFUSED = {
    "gpt_oss": r"packed scoring fails \(the attention of gpt_oss takes s_aux, which is not done here\)",
    "gemma2": r"packed scoring fails \(the attention of gemma2 takes softcap, which is not done here\)",
    "qwen3_next": r"packed scoring is [0-9.]+ nats off transformers' own forward",
    "qwen3_5_text": r"packed scoring is [0-9.]+ nats off",
    "nemotron_h": r"packed scoring is [0-9.]+ nats off",
    "falcon_h1": r"packed scoring is [0-9.]+ nats off",
    "lfm2": r"packed scoring is [0-9.]+ nats off",
    "granitemoehybrid": r"packed scoring is [0-9.]+ nats off",
    "deepseek_v3": r"packed scoring fails \(RuntimeError: ",
    "gemma4_text": r"decoding in this process fails \(RuntimeError: ",
    "mpt": r"packed scoring is [0-9.]+ nats off",
    "bloom": r"packed scoring fails \(ValueError: ",
}
# Settings of published models, their real sizes included: a miniature is made of them.
HEALTHY: dict[str, dict[str, Any]] = {
    "llama": {"num_key_value_heads": 8, "tie_word_embeddings": True},
    "mistral": {"sliding_window": 4096},
    "ministral": {"head_dim": 128},
    "qwen2": {
        "hidden_size": 896,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
    },
    "qwen3": {"num_attention_heads": 64, "num_key_value_heads": 8, "num_hidden_layers": 64},
    "qwen3_moe": {"head_dim": 128, "num_experts": 64},
    "gemma2": {"attn_logit_softcapping": None, "final_logit_softcapping": None},
    "gemma3_text": {
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "num_hidden_layers": 18,
        "hidden_size": 640,
    },
    "glm4": {},
    "glm4_moe": {"n_routed_experts": 32},
    "olmo2": {},
    "olmo3": {},
    "phi3": {"num_key_value_heads": 8, "num_attention_heads": 24, "partial_rotary_factor": 0.75},
    "smollm3": {},
    "granite": {
        "embedding_multiplier": 12.0,
        "residual_multiplier": 0.22,
        "attention_multiplier": 0.0156,
    },
    "starcoder2": {},
    "cohere2": {"logit_scale": 1.0},
    "exaone4": {},
    "opt": {},
    "gpt2": {},
    "gpt_neox": {},
    "stablelm": {},
    "mixtral": {},
    "apertus": {},
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder, and what was measured in it."""
    monkeypatch.setenv("UPTREND_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "parity"


def recipe(folder: Path, **sampling: Any) -> dict[str, Any]:
    return {
        "model": {"name": str(folder)},
        "tasks": {**ADDITION, "train": 8},
        "eval": {**ADDITION, "tasks": 4},
        "sampling": {"groups": 2, "size": 2, "max_tokens": 4, **sampling},
        "learning": {"steps": 1},
        "compute": {"device": "cpu", "threads": 1},
    }


@pytest.mark.parametrize(
    "kind",
    [
        k if k in ("gpt_oss", "qwen3_next") else pytest.param(k, marks=pytest.mark.slow)
        for k in REFUSED
    ],
)
def test_a_model_that_would_be_another_here_is_refused_in_one_sentence(
    kind: str, tmp_path: Path, cache: Path
) -> None:
    folder = write_model(tmp_path / "model", kind)
    with pytest.raises(ModelError, match=REFUSED[kind]) as refusal:
        uptrend.train(recipe(folder), runs=tmp_path / "runs", preflight=False, progress=False)
    text = str(refusal.value)
    assert text.startswith(f"{folder} can't be used: for models of type {kind}, ")
    assert "\n" not in text
    assert not list(cache.glob("*"))  # only what is right is remembered
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_decoding_counts_where_this_process_samples(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", "gemma4_text")
    config = uptrend.load_config(recipe(folder, engine="vllm"))
    assert (
        prepare.make_policy(config).core.config.model_type == "gemma4_text"
    )  # it is scored as transformers does
    with pytest.raises(ModelError, match="decoding in this process fails"):
        prepare.make_policy(config, samples_here=True)


@pytest.mark.slow
@pytest.mark.parametrize("kind", HEALTHY)
def test_models_that_are_right_pass(kind: str) -> None:
    config = transformers.AutoConfig.for_model(kind, **HEALTHY[kind])
    gaps = measure(config, character_tokenizer(), ["scoring", "decoding"])
    assert set(gaps) == {"scoring", "decoding"}
    for gap in gaps.values():
        assert isinstance(gap, float), gap
        assert (
            0 < gap < 2e-4
        )  # rounding, well below what is refused; a 0 would say that nothing was compared


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "scale"), [("cohere2", {"logit_scale": 0.25}), ("granite", {"logits_scaling": 8.0})]
)
def test_logits_that_are_scaled_are_not_what_is_computed_here(
    kind: str, scale: dict[str, float]
) -> None:
    config = transformers.AutoConfig.for_model(kind, **{**HEALTHY[kind], **scale})
    gaps = measure(config, character_tokenizer(), ["scoring", "decoding"])
    assert all(isinstance(gap, float) and gap > 0.1 for gap in gaps.values())


def test_what_was_right_once_is_not_measured_again(llama_folder: Path, cache: Path) -> None:
    config = uptrend.load_config(recipe(llama_folder))
    random_state = torch.get_rng_state()
    prepare.make_policy(config)
    assert torch.equal(torch.get_rng_state(), random_state)
    (file,) = cache.iterdir()
    first = file.stat()
    prepare.make_policy(config)
    assert file.stat().st_mtime_ns == first.st_mtime_ns
    assert file.stat().st_ino == first.st_ino

    # Other ways to log-probabilities, and another model, are other questions.
    prepare.make_policy(uptrend.load_config(recipe(llama_folder, engine="vllm")))
    assert len(list(cache.iterdir())) == 2


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"scoring": 5.0, "decoding": 0.0}',
        b'{"scoring": null}',
        b"[" * 100_000,
    ],
)
def test_a_damaged_answer_is_no_answer(damaged: bytes, llama_folder: Path, cache: Path) -> None:
    config = uptrend.load_config(recipe(llama_folder))
    prepare.make_policy(config)
    (file,) = cache.iterdir()
    whole = file.read_bytes()
    file.write_bytes(damaged)
    prepare.make_policy(config)
    assert json.loads(file.read_bytes()).keys() == json.loads(whole).keys()


def test_where_nothing_can_be_remembered_the_model_is_used_all_the_same(
    llama_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("UPTREND_HOME", str(tmp_path / "file"))
    prepare.make_policy(uptrend.load_config(recipe(llama_folder)))


def test_a_model_that_nothing_can_be_compared_with_is_refused(tmp_path: Path) -> None:
    folder = write_model(tmp_path, "qwen2_moe", num_experts_per_tok=3)  # of two experts
    with pytest.raises(
        ModelError, match="no small model with its settings runs in transformers to compare with"
    ):
        prepare.make_policy(uptrend.load_config(recipe(folder)))


def test_a_term_of_attention_that_is_not_here_is_no_log_probability(tmp_path: Path) -> None:
    policy = make_policy(write_model(tmp_path, "gemma2"))
    ids, starts = torch.arange(6), torch.tensor([0, 6], dtype=torch.int32)
    for packed in (None, Packed(starts, starts, 6, 6)):
        with pytest.raises(
            ModelError, match="the attention of gemma2 takes softcap, which is not done here"
        ):
            policy.hidden(ids, ids, packed)


def test_attention_that_can_not_be_replaced_is_refused_while_loading(tmp_path: Path) -> None:
    with pytest.raises(
        UptrendError, match="can't be used: the attention of models of its type can't be replaced"
    ):
        make_policy(write_model(tmp_path, "falcon"))


def test_positions_that_turn_with_the_longest_sequence_of_a_row_limit_the_context(
    tmp_path: Path,
) -> None:
    rope: dict[str, Any] = {
        "rope_type": "longrope",
        "short_factor": [1.0] * 4,
        "long_factor": [4.0] * 4,
        "rope_theta": 10_000.0,
    }
    rope["original_max_position_embeddings"] = 64
    folder = write_model(
        tmp_path, "phi3", original_max_position_embeddings=64, rope_parameters=rope
    )
    prepare.make_policy(uptrend.load_config(recipe(folder, context=64)))
    with pytest.raises(
        ModelError, match=r"longer than 64 tokens.*Set sampling\.context.* to 64 or less; it is 65"
    ):
        prepare.make_policy(uptrend.load_config(recipe(folder, context=65)))
