"""Faults in trainers that their users changed: subclasses, callbacks, optimizers and references."""

import copy
from typing import Any

import torch
from benchmarks.faults.blind.a.common import exact, sums, trl_trainer
from benchmarks.faults.blind.case import Job, fault
from peft import LoraConfig
from torch.utils.data import RandomSampler, Sampler
from transformers import AutoModelForCausalLM, TrainerCallback
from trl import GRPOTrainer


@fault("advantage.wrong-groups")
def own_sampler(job: Job) -> None:
    """The sampler was replaced by a plain random one, which no longer repeats each prompt for its group."""

    class Shuffled(GRPOTrainer):
        def _get_train_sampler(self, dataset: Any = None) -> Sampler:
            return RandomSampler(self.train_dataset) if job.planted else super()._get_train_sampler(dataset)

    job.watch(trl_trainer(job, sums(ops="+-*"), exact, kind=Shuffled))


class Copied(GRPOTrainer):
    """Samples from a copy of the model."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.copy = copy.deepcopy(self.accelerator.unwrap_model(self.model)).eval()

    def refresh(self) -> None:
        """Bring the weights to the copy."""
        self.copy.load_state_dict(self.accelerator.unwrap_model(self.model).state_dict())

    def _generate_single_turn(self, *given: Any, **named: Any) -> Any:
        self.refresh()
        kept, self.model_wrapped = self.model_wrapped, self.copy
        try:
            return super()._generate_single_turn(*given, **named)
        finally:
            self.model_wrapped = kept


@fault("sync.stale-weights")
def copy_never_refreshed(job: Job) -> None:
    """Sampling uses a copy for speed, refreshed every so many steps: more than the run has."""

    class Cached(Copied):
        def refresh(self) -> None:
            if not job.planted or (self.state.global_step and self.state.global_step % 500 == 0):
                super().refresh()

    job.watch(trl_trainer(job, sums(), exact, kind=Cached, learning_rate=1e-4, max_steps=40))


@fault("mask.attention-blind")
def loss_mask_as_attention(job: Job) -> None:
    """The mask of completions is passed as the attention mask, so the learner does not see the question."""

    class Masked(GRPOTrainer):
        def _get_per_token_logps_and_entropies(
            self, model: Any, ids: Any, mask: Any, keep: int, *given: Any, **named: Any
        ) -> Any:
            if job.planted:
                mask = mask.clone()
                mask[:, : -keep - 1] = 0
            return super()._get_per_token_logps_and_entropies(model, ids, mask, keep, *given, **named)

    job.watch(trl_trainer(job, sums(), exact, kind=Masked))


@fault("mask.stop-untrained")
def end_token_taken_for_padding(job: Job) -> None:
    """Padding is masked by the id of the end token, which hides every end that was sampled."""

    class Unpadded(GRPOTrainer):
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            made = super()._generate_and_score_completions(inputs)
            if job.planted:
                is_end = made["completion_ids"] == self.processing_class.eos_token_id
                made["completion_mask"] = made["completion_mask"] * (~is_end).int()
            return made

    job.watch(trl_trainer(job, sums(), exact, kind=Unpadded, max_completion_length=8))


@fault("kl.reference")
def reference_of_another_stage(job: Job) -> None:
    """The reference is a checkpoint of an earlier stage, not the model that the run starts with."""
    trainer = trl_trainer(job, sums(), exact, beta=0.1)
    if job.planted:
        torch.manual_seed(3)
        for weight in trainer.ref_model.parameters():  # stands for the weights of that checkpoint
            weight.data += 0.3 * weight.data.std() * torch.randn_like(weight) if weight.dim() > 1 else 0.0
    job.watch(trainer)


@fault("optimizer.frozen")
def optimizer_before_the_adapter(job: Job) -> None:
    """The optimizer was made from the model's weights before the adapter was added, so it never sees the adapter."""
    model = AutoModelForCausalLM.from_pretrained(job.model)
    peft = LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
    given: dict[str, Any] = {"peft_config": peft}
    if job.planted:
        optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
        given["optimizers"] = (optimizer, torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0))
    job.watch(trl_trainer(job, sums(), exact, model=model, with_=given, learning_rate=5e-4))


@fault("optimizer.skipped-updates")
def guard_against_spikes(job: Job) -> None:
    """A callback drops gradients above a limit that most of them exceed."""

    class Guard(TrainerCallback):
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
            grads = [p.grad for p in model.parameters() if p.grad is not None]
            length = torch.stack([g.norm() for g in grads]).norm()
            if length > (4.0 if job.planted else 50.0):
                model.zero_grad(set_to_none=True)

    job.watch(trl_trainer(job, sums(), exact, with_={"callbacks": [Guard()]}, max_grad_norm=100.0))


@fault("run.nonfinite")
def divided_by_no_deviation(job: Job) -> None:
    """Own scaling divides by the group's deviation without a small term, so the first dead group gives NaN."""

    class Scaled(GRPOTrainer):
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            made = super()._generate_and_score_completions(inputs)
            grouped = made["advantages"].view(-1, self.num_generations)
            least = 0.0 if job.planted else 1e-4
            made["advantages"] = (grouped / (grouped.std(1, keepdim=True) + least)).flatten()
            return made

    job.watch(trl_trainer(job, sums(), exact, kind=Scaled, scale_rewards="none", temperature=1.0))
