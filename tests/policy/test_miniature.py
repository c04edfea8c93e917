"""Miniatures have every kind of layer of the model that they stand for, and settings per layer keep
their meaning.
"""

from typing import Any

import pytest
import torch
import transformers

from uptrend.policy.miniature import MAX_VOCABULARY, MAX_WINDOW, miniatures

# By type: settings, layers that the miniature has, and a module that must be among them.
MODELS: list[tuple[str, dict[str, Any], int, str]] = [
    (
        "llama",
        {"num_hidden_layers": 80, "hidden_size": 8192, "num_attention_heads": 64},
        1,
        "LlamaAttention",
    ),
    ("gemma3_text", {}, 6, "Gemma3Attention"),  # five with a window, then one without
    ("gpt_oss", {}, 2, "GptOssAttention"),
    ("smollm3", {}, 4, "SmolLM3Attention"),  # every fourth has no positions
    ("qwen3_moe", {"mlp_only_layers": [0, 1, 2], "num_experts": 8}, 4, "Qwen3MoeSparseMoeBlock"),
    ("deepseek_v3", {"n_routed_experts": 16}, 4, "DeepseekV3MoE"),  # three dense ones first
    (
        "qwen3_next",
        {
            "layer_types": ["full_attention"] * 9 + ["linear_attention"] + ["full_attention"] * 38,
            "num_experts": 16,
        },
        10,
        "Qwen3NextGatedDeltaNet",
    ),
    (
        "nemotron_h",
        {
            "layers_block_type": ["attention", "mlp", "attention", "mamba", "moe"] * 10,
            "n_routed_experts": 4,
        },
        5,
        "NemotronHMamba2Mixer",
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "settings", "layers", "module"), MODELS)
def test_every_kind_of_layer_is_there(
    kind: str, settings: dict[str, Any], layers: int, module: str
) -> None:
    config = transformers.AutoConfig.for_model(kind, **settings)
    before = config.to_dict()
    model = next(miniatures(config))
    assert config.to_dict() == before
    assert len(model.get_decoder().layers) == layers
    assert module in {type(part).__name__ for part in model.modules()}
    assert sum(p.numel() for p in model.parameters()) < 50_000_000
    assert all(
        p.device.type == "cpu" and p.dtype == torch.float32 and p.isfinite().all()
        for p in model.parameters()
    )
    with torch.no_grad():
        logits = model(input_ids=torch.arange(20)[None], use_cache=False).logits
    assert logits.shape == (1, 20, MAX_VOCABULARY)
    assert logits.isfinite().all()


def test_what_changes_arithmetic_stays() -> None:
    rope = {
        "rope_type": "llama3",
        "rope_theta": 5e5,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    }
    rope["original_max_position_embeddings"] = 1024
    settings = {
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "attention_bias": True,
    }
    model = next(
        miniatures(transformers.AutoConfig.for_model("llama", **settings, rope_parameters=rope))
    )
    assert model.config.rope_parameters == rope
    assert (model.config.num_attention_heads, model.config.num_key_value_heads) == (
        4,
        2,
    )  # heads that share keys
    assert model.config.head_dim == 128
    assert model.get_decoder().layers[0].self_attn.q_proj.bias is not None

    # More channels than the heads have; one head of keys; a window shorter than what is scored.
    settings = {
        "hidden_size": 1152,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "sliding_window": 512,
    }
    model = next(
        miniatures(transformers.AutoConfig.for_model("gemma3_text", **settings, head_dim=256))
    )
    assert model.config.hidden_size != model.config.num_attention_heads * model.config.head_dim
    assert model.config.num_key_value_heads == 1
    assert model.config.sliding_window == MAX_WINDOW


def test_equal_settings_give_equal_weights_and_leave_the_random_state() -> None:
    config, state = transformers.AutoConfig.for_model("gpt2"), torch.get_rng_state()
    first, second = (next(miniatures(config)).state_dict() for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    assert first.keys() == second.keys()
    for name, weight in first.items():
        torch.testing.assert_close(weight, second[name], rtol=0, atol=0)
