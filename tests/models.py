"""Small random models of several types, as folders that transformers loads, where no knowledge is
needed.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers

from uptrend.config import Lora, Model
from uptrend.policy.known import find_model
from uptrend.policy.policy import Policy, load_policy

TYPES: dict[str, dict[str, Any]] = {  # what a type sets beside the sizes
    "llama": {"tie_word_embeddings": True},
    "mistral": {"sliding_window": None, "head_dim": 12},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {"head_dim": 16},
    "stablelm": {},
    "gemma": {"head_dim": 8},
    "gemma3_text": {
        "head_dim": 16,
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 7,
    },
    "qwen2_moe": {
        "num_experts": 2,
        "num_experts_per_tok": 1,
        "moe_intermediate_size": 8,
        "shared_expert_intermediate_size": 8,
    },
    "gpt_neox": {},
    "phi": {},
    "granite": {"logits_scaling": 2.0},
    "phi3": {},
    # Of what follows Uptrend computes none as transformers does; what differs comes late among the
    # layers.
    "gpt_oss": {
        "num_hidden_layers": 24,
        "head_dim": 8,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
    "gemma2": {"head_dim": 8, "final_logit_softcapping": None, "attn_logit_softcapping": 50.0},
    "qwen3_next": {
        "num_hidden_layers": 8,
        "layer_types": ["full_attention"] * 5 + ["linear_attention"] * 3,
        "head_dim": 8,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
    },
    "qwen3_5_text": {
        "num_hidden_layers": 4,
        "layer_types": ["full_attention"] * 2 + ["linear_attention"] * 2,
        "head_dim": 8,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
    },
    "nemotron_h": {
        "num_hidden_layers": 4,
        "layers_block_type": ["attention", "mlp", "attention", "mamba"],
        "head_dim": 8,
        "ssm_state_size": 8,
        "mamba_num_heads": 4,
        "mamba_head_dim": 16,
        "n_groups": 2,
        "chunk_size": 8,
    },
    "falcon_h1": {
        "mamba_d_ssm": 32,
        "mamba_n_heads": 4,
        "mamba_d_head": 8,
        "mamba_d_state": 8,
        "mamba_chunk_size": 8,
    },
    "lfm2": {"num_hidden_layers": 3, "layer_types": ["full_attention", "full_attention", "conv"]},
    "granitemoehybrid": {
        "num_hidden_layers": 3,
        "layer_types": ["attention", "attention", "mamba"],
        "num_local_experts": 4,
        "shared_intermediate_size": 16,
        "mamba_n_heads": 8,
        "mamba_d_head": 8,
        "mamba_d_state": 8,
        "mamba_chunk_size": 8,
    },
    "deepseek_v3": {
        "num_key_value_heads": 4,
        "num_hidden_layers": 4,
        "first_k_dense_replace": 3,
        "n_routed_experts": 8,
        "n_group": 2,
        "topk_group": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "kv_lora_rank": 16,
        "q_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 12,
    },
    "gemma4_text": {
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
        "head_dim": 8,
        "global_head_dim": 16,
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": 128,
    },
    "mpt": {"d_model": 32, "n_heads": 4, "n_layers": 2},
    "bloom": {"n_head": 4, "n_layer": 2},
    "falcon": {"new_decoder_architecture": True, "num_kv_heads": 2},
}


def character_tokenizer() -> Any:
    """A fresh copy of the tiny model's tokenizer: one token per character."""
    return transformers.AutoTokenizer.from_pretrained(find_model("tiny"))


def write_model(folder: Path, kind: str = "llama", seed: int = 0, **changes: Any) -> Path:
    """A model of two layers, or as many as its type needs; every weight is random, biases and norms
    included.
    """
    tokenizer = character_tokenizer()
    sizes = {
        "vocab_size": len(tokenizer), "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
        "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None,
    }  # fmt: skip
    config = transformers.AutoConfig.for_model(kind, **{**sizes, **TYPES[kind], **changes})
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for label, weight in model.named_parameters():
                center = 1.0 if "norm" in label and label.endswith("weight") else 0.0
                weight.copy_(center + 0.25 * torch.randn(weight.shape))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def make_policy(
    folder: str | Path, lora: bool = False, reference: bool = False, seed: int = 0, **wish: Any
) -> Policy:
    """A policy on the CPU; adapters have a random B, so that they do something."""
    wanted = Model(name=str(folder), lora=Lora(r=4, alpha=8.0) if lora else None, **wish)
    policy = load_policy(
        str(folder), wanted, torch.device("cpu"), seed=seed, keep_reference=reference
    )
    if lora:
        noise = torch.Generator().manual_seed(seed + 1)
        with torch.no_grad():
            for label, weight in policy.model.named_parameters():
                if "lora_B" in label:
                    weight.copy_(0.1 * torch.randn(weight.shape, generator=noise))
    return policy


def encode(policy: Policy, text: str) -> list[int]:
    return list(policy.tokenizer(text).input_ids)


@contextlib.contextmanager
def own_attention(policy: Policy) -> Iterator[None]:
    """Attention and masks as transformers makes them, without ours."""
    policy.core.set_attn_implementation("sdpa")
    yield
    policy.core.set_attn_implementation("uptrend")


def full_logits(policy: Policy, ids: list[int]) -> torch.Tensor:
    """The logits after every token, from transformers' own forward over the whole sequence."""
    with torch.no_grad(), own_attention(policy):
        logits: torch.Tensor = policy.model(input_ids=torch.tensor([ids])).logits[0]
    return logits
