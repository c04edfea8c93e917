"""What other trainers call the settings that an arm changes.

TRL: GRPOConfig of 1.16. verifiers: RLConfig of verifiers-rl, and for what it dropped GRPOConfig, its predecessor.
prime-rl: `rl.toml`, by the names of its config package.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from uptrend.stats.formatting import assignments

NONE = "no setting of this name"
TRAINERS = ("trl", "verifiers", "prime-rl")


@dataclass(frozen=True)
class Setting:
    """One trainer's word for a setting."""

    name: str
    """Its name there; empty where it has none."""
    value: Callable[[Any], Any] = lambda value: value
    """Its value there."""
    note: str = ""
    """What to know beside it."""

    def said(self, value: Any) -> str:
        """As it is written, or that it can't be."""
        after = f" ({self.note})" if self.note else ""
        return f"`{assignments({self.name: self.value(value)})}`{after}" if self.name else f"{NONE}{after}"


OLD = "GRPOConfig; RLConfig has none"
OTHER_CLIP = "it masks by probability differences: trainer.loss.dppo_mask_low and dppo_mask_high"
ROLLOUTS = "it counts rollouts a step: sampling.groups × sampling.size"
DTYPE = {"bf16": "bfloat16", "fp32": "float32"}


def _same(*names: str) -> dict[str, Setting]:
    return dict(zip(TRAINERS, (Setting(name) for name in names), strict=True))


def _old(name: str, note: str = "", value: Callable[[Any], Any] = lambda value: value) -> dict[str, Setting]:
    """What TRL has, and verifiers had in its first trainer."""
    return {"trl": Setting(name), "verifiers": Setting(name, value, OLD), "prime-rl": Setting("", note=note)}


def _loss(value: Any) -> Any:
    return "grpo" if value == "gspo" else value


SETTINGS: Mapping[str, Mapping[str, Setting]] = {
    "model.weights": {
        "trl": Setting("model_init_kwargs", lambda value: {"dtype": DTYPE.get(value, value)}),
        "verifiers": Setting("", note="load the model in that dtype yourself; bf16 is about its arithmetic"),
        "prime-rl": Setting("trainer.model.optimization_dtype", lambda value: DTYPE.get(value, value)),
    },
    "model.lora.r": _same("peft_config.r", "lora_rank", "trainer.model.lora.rank"),
    "model.lora.alpha": _same("peft_config.lora_alpha", "lora_alpha", "trainer.model.lora.alpha"),
    "model.lora.dropout": _same("peft_config.lora_dropout", "lora_dropout", "trainer.model.lora.dropout"),
    "model.lora.targets": _same(
        "peft_config.target_modules", "lora_target_modules", "trainer.model.lora.target_modules"
    ),
    "model.gradient_checkpointing": {
        "trl": Setting("gradient_checkpointing"),
        "verifiers": Setting("gradient_checkpointing"),
        "prime-rl": Setting("", note="a table [trainer.model.ac] turns it on"),
    },
    "sampling.groups": {
        "trl": Setting("", note=f"{ROLLOUTS}, as generation_batch_size"),
        "verifiers": Setting("", note=f"{ROLLOUTS}, as batch_size"),
        "prime-rl": Setting("", note=f"{ROLLOUTS}, as orchestrator.batch_size"),
    },
    "sampling.size": _same("num_generations", "rollouts_per_example", "orchestrator.group_size"),
    "sampling.temperature": _same("temperature", "temperature", "orchestrator.train.sampling.temperature"),
    "sampling.top_p": {"trl": Setting("top_p"), "verifiers": Setting("top_p")},
    "sampling.top_k": {
        "trl": Setting("top_k"),
        "verifiers": Setting("top_k", lambda value: value or None),
        "prime-rl": Setting("orchestrator.train.sampling.extra_body.top_k", lambda value: value or -1),
    },
    "sampling.max_tokens": _same(
        "max_completion_length", "max_tokens", "orchestrator.train.sampling.max_completion_tokens"
    ),
    "sampling.context": _same("vllm_max_model_length", "max_seq_len", "seq_len"),
    "sampling.max_prompt": {"verifiers": Setting("max_prompt_len", note="it cuts a longer prompt")},
    "learning.steps": _same("max_steps", "max_steps", "max_steps"),
    "learning.lr": _same("learning_rate", "learning_rate", "trainer.optim.lr"),
    "learning.schedule": _same("lr_scheduler_type", "lr_scheduler_type", "trainer.scheduler.type"),
    "learning.warmup": _same("warmup_steps", "warmup_steps", "trainer.scheduler.warmup_steps"),
    "learning.loss": {
        "trl": Setting("loss_type", _loss, 'for gspo also importance_sampling_level = "sequence"'),
        "verifiers": Setting("loss_type", note=OLD),
        "prime-rl": Setting("", note="its loss is its own"),
    },
    "learning.scale": _old("scale_rewards", "its grpo never divides by the deviation", lambda value: value != "none"),
    "learning.clip_low": _old("epsilon", OTHER_CLIP),
    "learning.clip_high": _old("epsilon_high", OTHER_CLIP),
    "learning.kl.beta": _old("beta", "trainer.loss.kl_tau holds it to the sampler, not to a reference"),
    "learning.entropy": {"trl": Setting("entropy_coef")},
    "learning.skip_dead": {"prime-rl": Setting("orchestrator.train.filter_zero_advantages")},
    "learning.mask_truncated": {
        "trl": Setting("mask_truncated_completions"),
        "verifiers": Setting("mask_truncated_completions"),
    },
    "learning.correction": {
        "trl": Setting(
            "vllm_importance_sampling_mode",
            lambda value: f"{value}_truncate",
            'in place of "none_truncate": vllm_importance_sampling_correction = False',
        ),
    },
    "learning.correction_cap": {"trl": Setting("vllm_importance_sampling_clip_max")},
    "learning.updates": _old("num_iterations"),
    "learning.max_grad_norm": _same("max_grad_norm", "max_grad_norm", "trainer.optim.max_norm"),
    "learning.weight_decay": _same("weight_decay", "weight_decay", "trainer.optim.weight_decay"),
    "learning.beta1": _same("adam_beta1", "adam_beta1", "trainer.optim.betas1"),
    "learning.beta2": _same("adam_beta2", "adam_beta2", "trainer.optim.betas2"),
    "seed": {"trl": Setting("seed"), "verifiers": Setting("seed")},
}
"""By Uptrend's key, then by trainer; what is not here has no setting of its own."""


def named(key: str, value: Any, trainer: str) -> str:
    """How another trainer writes a setting of ours."""
    return SETTINGS.get(key, {}).get(trainer, Setting("")).said(value)
