"""One token more for every row equals transformers' forward over everything, for each type of
model.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models import encode, full_logits, make_policy, write_model
from talk import expected_logprobs, speak
from uptrend.policy.policy import Policy
from uptrend.rollout.decoder import (
    LEAN_TYPES,
    Decoder,
    LeanDecoder,
    PlainDecoder,
    make_cache,
    make_decoder,
)
from uptrend.rollout.inprocess import InProcessSampler
from uptrend.rollout.sampler import Limits

PROMPTS = ["Calculate: 7 + 8 = ", "And?", "Calculate: 13 - 20 = 1"]
OTHERS = ("stablelm", "gemma", "gemma3_text", "gpt_neox")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    kinds = (*LEAN_TYPES, *OTHERS)
    return {kind: write_model(tmp_path_factory.mktemp(kind), kind) for kind in kinds}


def decoder_of(policy: Policy) -> Decoder:
    return make_decoder(policy, make_cache(policy))


def check(policy: Policy, prompts: Sequence[str] = PROMPTS) -> None:
    """Sampled turns of several streams, twice, against the whole forward."""
    sampler, limits = InProcessSampler(policy), Limits(12, 400)
    whole = [encode(policy, p) for p in prompts]
    news = whole
    for _ in range(2):
        said = speak(sampler, [(i, ids, i) for i, ids in enumerate(news)], limits)
        news = [encode(policy, " x")] * len(prompts)
        for ids, extension in zip(whole, said, strict=True):
            ids += extension.ids.tolist()
            expected = expected_logprobs(
                full_logits(policy, ids), ids, extension.ids.tolist(), limits
            )
            np.testing.assert_allclose(extension.logprobs, expected, atol=2e-4)
            ids += news[0]


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("kind", LEAN_TYPES)
def test_the_lean_decoder_is_transformers_forward(
    folders: dict[str, Path], kind: str, lora: bool
) -> None:
    policy = make_policy(folders[kind], lora=lora)
    assert isinstance(decoder_of(policy), LeanDecoder)
    if lora:
        ids = encode(policy, PROMPTS[0])
        off = full_logits(make_policy(folders[kind]), ids)
        assert not torch.allclose(full_logits(policy, ids), off, atol=1e-2)
    check(policy)


@pytest.mark.parametrize("kind", OTHERS)
def test_other_models_go_through_their_own_forward(folders: dict[str, Path], kind: str) -> None:
    policy = make_policy(folders[kind])
    assert isinstance(decoder_of(policy), PlainDecoder)
    check(policy)


def test_adapters_on_some_modules_alone(folders: dict[str, Path]) -> None:
    from uptrend.config import Lora, Model
    from uptrend.policy.policy import load_policy

    wish = Model(lora=Lora(r=3, targets=("q_proj", "up_proj")))
    policy = load_policy(
        str(folders["qwen2"]), wish, torch.device("cpu"), seed=0, keep_reference=False
    )
    with torch.no_grad():
        policy.flat.values.normal_(std=0.3, generator=torch.Generator().manual_seed(0))
    check(policy)


@pytest.mark.parametrize(
    "changes",
    [
        {"attention_bias": True, "mlp_bias": True},
        {"tie_word_embeddings": False},
        {"num_key_value_heads": 4},
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
    ],
    ids=["bias", "untied", "every-head", "stretched"],
)
def test_llamas_of_other_shapes(tmp_path: Path, changes: dict[str, Any]) -> None:
    policy = make_policy(write_model(tmp_path, **changes))
    assert isinstance(decoder_of(policy), LeanDecoder)
    check(policy)


@pytest.mark.parametrize("kind", ["mistral", "gemma3_text"])
def test_a_sliding_window_ends_before_a_context_does(tmp_path: Path, kind: str) -> None:
    """In all layers or in one; and with a prompt of so many pages that its streams share them."""
    policy = make_policy(write_model(tmp_path, kind, sliding_window=9))
    assert isinstance(decoder_of(policy), PlainDecoder)
    assert policy.window is None
    check(policy, [*PROMPTS, PROMPTS[0] * 15, PROMPTS[0] * 15])
