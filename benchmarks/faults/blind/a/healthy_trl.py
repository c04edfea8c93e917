"""Runs with nothing wrong, trained by TRL."""

import math
from typing import Any

from benchmarks.faults.blind.a.common import exact, number_in, sums, trl_trainer
from benchmarks.faults.blind.case import Job, healthy


def near(completions: list[str], answer: list[str], **_: Any) -> list[float]:
    """Pay for nearness."""
    found = [number_in(said) for said in completions]
    return [0.0 if said is None else math.exp(-abs(said - int(x)) / 4) for said, x in zip(found, answer, strict=True)]


@healthy
def trl_with_a_penalty(job: Job) -> None:
    """A small KL penalty."""
    job.watch(trl_trainer(job, sums(), exact, beta=0.01))


@healthy
def trl_adapter(job: Job) -> None:
    """LoRA on all linear layers."""
    from peft import LoraConfig

    peft = LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
    job.watch(trl_trainer(job, sums(), exact, with_={"peft_config": peft}, learning_rate=3e-4))


@healthy
def trl_two_rewards(job: Job) -> None:
    """The answer and a smaller reward for nearness."""
    job.watch(trl_trainer(job, sums(ops="+-*"), [exact, near], reward_weights=[1.0, 0.3]))


@healthy
def trl_unscaled(job: Job) -> None:
    """Dr. GRPO: advantages are not divided."""
    job.watch(trl_trainer(job, sums(), exact, loss_type="dr_grpo", scale_rewards="none", learning_rate=6e-5))


@healthy
def trl_two_passes(job: Job) -> None:
    """Two passes over each batch at a moderate rate."""
    job.watch(trl_trainer(job, sums(), exact, num_iterations=2, learning_rate=3e-5, max_steps=50))


@healthy
def trl_accumulated(job: Job) -> None:
    """Four micro-batches per step, linear decay, a warm-up of two steps."""
    job.watch(trl_trainer(
        job, sums(), exact, per_device_train_batch_size=16, gradient_accumulation_steps=4, max_steps=30,
        lr_scheduler_type="linear", warmup_steps=2, learning_rate=8e-5,
    ))  # fmt: skip


@healthy
def trl_held_out(job: Job) -> None:
    """A held-out set that shares nothing with the rows to train on."""
    from datasets import Dataset

    rows = sums(500)
    held = Dataset.from_list(rows[-48:])
    job.watch(trl_trainer(
        job, rows[:-48], exact, with_={"eval_dataset": held}, eval_strategy="steps", eval_steps=10,
        per_device_eval_batch_size=96,
    ))  # fmt: skip


@healthy
def trl_small_groups(job: Job) -> None:
    """Groups of four and a cooler temperature."""
    job.watch(trl_trainer(job, sums(), exact, num_generations=4, per_device_train_batch_size=64, temperature=0.8))


@healthy
def trl_only_nearness(job: Job) -> None:
    """A graded reward alone, on all three operations."""
    job.watch(trl_trainer(job, sums(ops="+-*"), near, loss_type="bnpo", max_steps=35))
