"""Faults in subclassed trainers, patched methods and callbacks around TRL."""

from typing import Any

import torch
from benchmarks.faults.blind.b.common import columns, grpo, load, near, sums
from benchmarks.faults.blind.case import Job, fault
from trl import GRPOTrainer


def mixed_lengths() -> Any:
    """Questions with numbers of one and of two digits, so that prompts are padded."""
    return columns(sums(500, "+-"))


@fault("advantage.sign")
def maximized_loss(job: Job) -> None:
    """A subclass returns minus the loss, since rewards should be maximized."""

    class Maximizing(GRPOTrainer):
        def _compute_loss(self, model: Any, inputs: Any) -> Any:
            loss = super()._compute_loss(model, inputs)
            return -loss if job.planted else loss

    job.watch(grpo(job, near, kind=Maximizing))


@fault("advantage.wrong-groups")
def plain_shuffling(job: Job) -> None:
    """A subclass replaces the sampler by a plain random one, so eight different prompts stand in each group."""

    class Shuffling(GRPOTrainer):
        def _get_train_sampler(self, dataset: Any = None) -> Any:
            if not job.planted:
                return super()._get_train_sampler(dataset)
            drawn = torch.Generator().manual_seed(self.args.seed)
            return torch.utils.data.RandomSampler(self.train_dataset, num_samples=64 * 40, replacement=True,
                                                  generator=drawn)  # fmt: skip

    job.watch(grpo(job, kind=Shuffling))


@fault("mask.attention-blind")
def completion_mask_as_attention(job: Job) -> None:
    """An own function for log-probabilities passes the mask of the loss as attention, so the prompt is not seen."""

    class Own(GRPOTrainer):
        def _get_per_token_logps_and_entropies(
            self, model: Any, input_ids: Any, attention_mask: Any, logits_to_keep: int, *rest: Any, **how: Any
        ) -> Any:
            if job.planted:
                attention_mask = attention_mask.clone()
                attention_mask[:, :-logits_to_keep] = 0
            return super()._get_per_token_logps_and_entropies(
                model, input_ids, attention_mask, logits_to_keep, *rest, **how
            )

    job.watch(grpo(job, kind=Own, data=mixed_lengths()))


@fault("tokens.padding")
def attention_to_padding(job: Job) -> None:
    """An own function for log-probabilities passes no attention mask, so padding on the left is read as text."""

    class Own(GRPOTrainer):
        def _get_per_token_logps_and_entropies(
            self, model: Any, input_ids: Any, attention_mask: Any, logits_to_keep: int, *rest: Any, **how: Any
        ) -> Any:
            if job.planted:
                attention_mask = torch.ones_like(attention_mask)
            return super()._get_per_token_logps_and_entropies(
                model, input_ids, attention_mask, logits_to_keep, *rest, **how
            )

    job.watch(grpo(job, kind=Own, data=mixed_lengths()))


@fault("mask.model-untrained")
def first_token_left_out(job: Job) -> None:
    """A shift by one in an own loss mask leaves the first sampled token out of the loss."""

    class Shifted(GRPOTrainer):
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            batch = super()._generate_and_score_completions(inputs)
            trained = torch.ones_like(batch["completion_mask"])
            trained[:, : 1 if job.planted else 0] = 0
            return {**batch, "tool_mask": trained}

    job.watch(grpo(job, kind=Shifted))


@fault("mask.stop-untrained")
def end_taken_for_padding(job: Job) -> None:
    """The loss mask drops the token that ends a completion, as if it were padding."""

    class Unended(GRPOTrainer):
        def _compute_loss(self, model: Any, inputs: Any) -> Any:
            if job.planted:
                is_text = inputs["completion_ids"] != self.processing_class.eos_token_id
                inputs = {**inputs, "tool_mask": is_text.long()}
            return super()._compute_loss(model, inputs)

    job.watch(grpo(job, kind=Unended, temperature=1.2))


@fault("tokens.retokenized", "mask.stop-untrained")
def cleaned_and_encoded_again(job: Job) -> None:
    """Completions are decoded, stripped of everything special, and encoded again before training."""

    class Cleaning(GRPOTrainer):
        def _generate_single_turn(self, *given: Any, **how: Any) -> Any:
            ids, logprobs = super()._generate_single_turn(*given, **how)
            if job.planted:
                texts = self.processing_class.batch_decode(ids, skip_special_tokens=True)
                ids = [self.processing_class(text.strip() or "?").input_ids for text in texts]
            return ids, logprobs

    job.watch(grpo(job, kind=Cleaning, temperature=1.2, max_completion_length=8))


@fault("tokens.template", "precision.mismatch")
def example_for_the_sampler_alone(job: Job) -> None:
    """A hint is put before prompts on the way to the sampler; the learner gets them without it."""

    class Hinting(GRPOTrainer):
        def _generate_single_turn(self, prompt_ids: Any, *given: Any, **how: Any) -> Any:
            hint = self.processing_class("Solve. ").input_ids if job.planted else []
            return super()._generate_single_turn([[*hint, *ids] for ids in prompt_ids], *given, **how)

    job.watch(grpo(job, near, kind=Hinting))


class WithServer(GRPOTrainer):
    """Samples from a copy of the model, as from a server; `send` names the weights that it is sent each step."""

    server: Any = None

    def send(self, name: str) -> bool:
        raise NotImplementedError

    def _generate_single_turn(self, *given: Any, **how: Any) -> Any:
        own = self.accelerator.unwrap_model(self.model)
        with torch.no_grad():
            for (name, to), now in zip(self.server.named_parameters(), own.parameters(), strict=True):
                if self.send(name):
                    to.copy_(now)
        kept, self.model_wrapped = self.model_wrapped, self.server
        try:
            return super()._generate_single_turn(*given, **how)
        finally:
            self.model_wrapped = kept


@fault("sync.stale-weights")
def server_never_told(job: Job) -> None:
    """Rollouts come from a copy of the model that is made once and never gets the new weights."""

    class Stale(WithServer):
        def send(self, name: str) -> bool:  # noqa: ARG002
            return not job.planted

    trainer = grpo(job, near, kind=Stale, learning_rate=1e-4, max_steps=24)
    trainer.server = load(job).eval()
    job.watch(trainer)


@fault("kl.reference")
def reference_from_elsewhere(job: Job) -> None:
    """The reference is an earlier checkpoint of another run, not the model that training starts from."""
    trainer = grpo(job, beta=0.1)
    if job.planted:
        noise = torch.Generator().manual_seed(11)
        with torch.no_grad():
            for p in trainer.accelerator.unwrap_model(trainer.ref_model).parameters():
                p.add_(torch.randn(p.shape, generator=noise) * 0.25 * p.std())
    job.watch(trainer)


@fault("optimizer.frozen")
def optimizer_of_another_copy(job: Job) -> None:
    """The optimizer was made from a first copy of the model; the trainer trains a second one."""
    first, second = load(job), load(job)
    made_for = first if job.planted else second
    optimizer = torch.optim.AdamW(made_for.parameters(), lr=5e-5)
    job.watch(grpo(job, model=second, given={"optimizers": (optimizer, None)}))


@fault("optimizer.accumulation")
def cleared_at_every_micro_batch(job: Job) -> None:
    """Gradients are cleared before every micro-batch, so only the last of eight counts."""

    class Clearing(GRPOTrainer):
        def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
            if job.planted:
                model.zero_grad()
            return super().training_step(model, inputs, num_items_in_batch)

    job.watch(grpo(job, kind=Clearing, per_device_train_batch_size=8, gradient_accumulation_steps=8, max_steps=20))


@fault("optimizer.skipped-updates")
def guard_against_spikes(job: Job) -> None:
    """In place of clipping, an optimizer skips updates with a gradient above a limit; here that is most of them."""
    limit = 2.0 if job.planted else 1e9

    class Guarded(torch.optim.AdamW):
        def step(self, closure: Any = None) -> Any:
            grads = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
            if torch.stack([g.norm() for g in grads]).norm() > limit:
                return None
            return super().step(closure)

    model = load(job)
    optimizer = Guarded(model.parameters(), lr=5e-5)
    job.watch(grpo(job, model=model, given={"optimizers": (optimizer, None)}, max_grad_norm=0.0))


@fault("run.nonfinite")
def divided_by_zero(job: Job) -> None:
    """Advantages of one's own divide by the group's deviation without a small constant: 0 / 0 in a dead group."""

    class Own(GRPOTrainer):
        def _calculate_rewards(self, *given: Any, **how: Any) -> Any:
            self.scores = super()._calculate_rewards(*given, **how)
            return self.scores

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            batch = super()._generate_and_score_completions(inputs)
            scores = self.scores.sum(1).view(-1, self.num_generations)
            spread = scores.std(dim=1, keepdim=True) + (0.0 if job.planted else 1e-4)
            own = (scores - scores.mean(dim=1, keepdim=True)) / spread
            return {**batch, "advantages": own.flatten()}

    job.watch(grpo(job, near, kind=Own, num_generations=16))
