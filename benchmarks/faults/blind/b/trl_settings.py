"""Faults in the settings of TRL's trainer and its model."""

from typing import Any

import torch
from benchmarks.faults.blind.b.common import grpo, load, near
from benchmarks.faults.blind.case import Job, fault


@fault("sampling.no-stop")
def another_end(job: Job) -> None:
    """The tokenizer's end was changed to a token that the model never says, so every completion runs to the limit."""
    from transformers import AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(job.model, padding_side="left"), load(job)
    if job.planted:
        tokenizer.eos_token = "<turn>"
        model.config.eos_token_id = model.generation_config.eos_token_id = tokenizer.eos_token_id
    job.watch(grpo(job, model=model, given={"processing_class": tokenizer}, max_completion_length=16))


@fault("sampling.truncated-distribution", "precision.mismatch")
def generation_settings_apart(job: Job) -> None:
    """Temperature and top-k stand in generation_kwargs, where the learner does not see them."""
    given: dict[str, Any] = {"temperature": 0.5, "top_k": 3} if job.planted else {}
    job.watch(grpo(job, generation_kwargs=given, temperature=1.2))


@fault("sampling.entropy-explosion")
def entropy_above_all(job: Job) -> None:
    """An entropy coefficient of 5, where 0.005 was meant, outweighs the reward."""
    job.watch(grpo(job, entropy_coef=5.0 if job.planted else 0.0, max_steps=30, learning_rate=1e-4))


@fault("kl.sign")
def negative_beta(job: Job) -> None:
    """beta = -0.3, taken for the weight of a reward: the model is paid for leaving its reference."""
    job.watch(grpo(job, beta=-0.3 if job.planted else 0.04, learning_rate=1e-4, max_steps=24))


@fault("kl.strangles")
def beta_of_another_loss(job: Job) -> None:
    """beta = 4 keeps the model where it was."""
    job.watch(grpo(job, near, beta=4.0 if job.planted else 0.02))


@fault("optimizer.lr-small")
def default_rate_with_adapters(job: Job) -> None:
    """The trainer's default rate of 1e-6 was kept for LoRA."""
    from peft import LoraConfig

    adapters = LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
    job.watch(grpo(job, near, given={"peft_config": adapters}, learning_rate=1e-6 if job.planted else 4e-4))


@fault("policy.dropout-on")
def dropout_in_attention(job: Job) -> None:
    """The model is loaded with a dropout of 0.1 in attention, for regularization."""
    job.watch(grpo(job, model=load(job, attention_dropout=0.1 if job.planted else 0.0)))


@fault("optimizer.schedule", "optimizer.lr-small")
def warmup_of_a_long_run(job: Job) -> None:
    """A warm-up of 1,500 steps was kept when the run was shortened."""
    job.watch(grpo(job, near, lr_scheduler_type="constant_with_warmup", warmup_steps=1500 if job.planted else 2))


@fault("precision.update-underflow")
def loaded_in_half(job: Job) -> None:
    """The model is loaded in bf16 and trained at 3e-6: hardly any weight can change."""
    how = {"dtype": torch.bfloat16} if job.planted else {}
    job.watch(grpo(job, near, model=load(job, **how), learning_rate=3e-6 if job.planted else 5e-5))
