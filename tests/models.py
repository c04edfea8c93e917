"""Small random models of several types, as folders that transformers loads, where no knowledge is needed."""

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
    "gemma3_text": {"head_dim": 16, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 7},
    "qwen2_moe": {"num_experts": 2, "moe_intermediate_size": 8, "shared_expert_intermediate_size": 8},
    "gpt_neox": {},
    "phi": {},
    "granite": {"logits_scaling": 2.0},
}


def character_tokenizer() -> Any:
    """A fresh copy of the tiny model's tokenizer: one token per character."""
    return transformers.AutoTokenizer.from_pretrained(find_model("tiny"))


def write_model(folder: Path, kind: str = "llama", seed: int = 0, **changes: Any) -> Path:
    """A model of two layers whose every weight is random, biases and norms included."""
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


def make_policy(folder: str | Path, lora: bool = False, reference: bool = False, seed: int = 0, **wish: Any) -> Policy:
    """A policy on the CPU; adapters have a random B, so that they do something."""
    wanted = Model(name=str(folder), lora=Lora(r=4, alpha=8.0) if lora else None, **wish)
    policy = load_policy(str(folder), wanted, torch.device("cpu"), seed=seed, keep_reference=reference)
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
