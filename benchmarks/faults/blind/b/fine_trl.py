"""Healthy runs of TRL's trainer: odd in one way or another, and right."""

from typing import Any

import torch
from benchmarks.faults.blind.b.common import columns, exact_match, grpo, load, near, number_said, sums
from benchmarks.faults.blind.case import Job, healthy
from transformers import TrainerCallback
from trl import GRPOTrainer


@healthy
def trl_defaults_with_penalty(job: Job) -> None:
    """TRL's default loss with a small KL penalty."""
    job.watch(grpo(job, beta=0.02, max_steps=24))


@healthy
def trl_dr_grpo(job: Job) -> None:
    """Dr. GRPO as its authors advise, without scaling."""
    job.watch(grpo(job, near, loss_type="dr_grpo", scale_rewards="none", learning_rate=6e-5))


@healthy
def trl_adapters(job: Job) -> None:
    """LoRA at a rate that suits it."""
    from peft import LoraConfig

    adapters = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    job.watch(grpo(job, near, given={"peft_config": adapters}, learning_rate=4e-4))


@healthy
def trl_two_rewards(job: Job) -> None:
    """The answer counts 1, nearness 0.3."""
    job.watch(grpo(job, [exact_match, near], columns(sums(700, "+-*")), reward_weights=[1.0, 0.3]))


@healthy
def trl_accumulation(job: Job) -> None:
    """Four micro-batches per update, with a linear schedule and a short warm-up."""
    job.watch(grpo(job, per_device_train_batch_size=16, gradient_accumulation_steps=4, warmup_steps=2,
                   lr_scheduler_type="linear", learning_rate=6e-5))  # fmt: skip


@healthy
def trl_two_iterations(job: Job) -> None:
    """Each batch is used twice, with the usual clip."""
    job.watch(grpo(job, near, num_iterations=2, max_steps=28))


@healthy
def trl_own_optimizer_and_callback(job: Job) -> None:
    """An optimizer of one's own on the right weights, and a callback that only counts."""

    class Counting(TrainerCallback):
        steps = 0

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
            self.steps += 1

    model = load(job)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, weight_decay=0.01)
    job.watch(grpo(job, model=model, given={"optimizers": (optimizer, None), "callbacks": [Counting()]}))


@healthy
def trl_rewards_in_percent(job: Job) -> None:
    """Rewards from 0 to 100, with a subclass that only logs, and completions that may be longer than needed."""

    class Logging(GRPOTrainer):
        def _compute_loss(self, model: Any, inputs: Any) -> Any:
            self._metrics["train"]["positive"].append((inputs["advantages"] > 0).float().mean().item())
            return super()._compute_loss(model, inputs)

    def percent(completions: list[str], answer: list[str], **_: Any) -> list[float]:
        return [100 * score for score in near(completions, answer)]

    job.watch(grpo(job, percent, kind=Logging, max_completion_length=12))


@healthy
def trl_missing_grades(job: Job) -> None:
    """A second reward, for the right last digit, applies to differences alone and returns None for sums."""

    def last_digit(prompts: list[str], completions: list[str], answer: list[str], **_: Any) -> list[float | None]:
        found: list[float | None] = []
        for prompt, said, right in zip(prompts, completions, answer, strict=True):
            number = number_said(said)
            is_same = number is not None and abs(number) % 10 == abs(int(right)) % 10
            found.append(0.2 * is_same if " - " in prompt else None)
        return found

    job.watch(grpo(job, [exact_match, last_digit], temperature=0.9, num_generations=16))
