"""`watch(trainer)`: a TRL GRPO run writes an Uptrend run directory, and reports faults while it
runs.

The trainer's thread only keeps references to TRL's own tensors and copies a sample of the weights;
rows, metrics and files are made in another process. Probes of the reward functions run at the first
step, probes of the model at the first and then every `every` steps. Failures of the watch are
recorded, and the run goes on.
"""

import functools
import re
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

import torch
import trl
from transformers import TrainerCallback

from uptrend.bridge.trl.batch import Call, LossPass, TrlBatch, TrlStep, as_numpy
from uptrend.bridge.trl.guard import Guard
from uptrend.bridge.trl.learner_probe import probe_learner, probe_update, same_randomness
from uptrend.bridge.trl.processes import (
    ProcessRecord,
    Rendezvous,
    sharding_of,
    whole_weights,
    why_not_gathered,
)
from uptrend.bridge.trl.record import Record
from uptrend.bridge.trl.rescoring import CallTimer
from uptrend.bridge.trl.reward_probe import answers_of, probe_rewards
from uptrend.bridge.trl.weights import (
    Move,
    Snapshot,
    WatchedWeights,
    judge_cast,
    judge_repeated,
    name_wrong_sampler,
)
from uptrend.records import Stop

# Steps between two probes of the model.
PROBE_EVERY = 50
# First steps whose updates are compared with what they are made for: one may have nothing to learn
# from.
EARLY_STEPS = 5
# Versions of TRL whose methods and tensors are known here.
KNOWN_TRL = ((1, 14), (1, 16))
# Causes that only the model itself can say something about.
PROBED_IDS = ("mask.attention-blind", "tokens.padding", "policy.dropout-on", "advantage.sign")
# Key under which a generation's rows carry their numbers through TRL's shuffle.
ROWS_KEY = "uptrend_rows"
# More rows than any generation has; see `encode_rows`.
ROWS_PER_BATCH = 1_000_000


def watch(
    trainer: Any,
    path: str | Path | None = None,
    *,
    every: int = PROBE_EVERY,
    probes: bool = True,
    rescore: bool = True,
    reward_calls: int | None = None,
) -> "Watch":
    """Watch a TRL GRPOTrainer; call it before `trainer.train()`.

    path          run directory; `uptrend` under the trainer's output folder by default
    every         steps between two probes of the model
    probes        probe the model (a forward pass of six short rows)
    rescore       call the reward functions again, at the first step; False is `reward_calls=0`
    reward_calls  most completions that each reward function is called on again; by default as many
                  as the first generation has, and none for functions that are asynchronous or
                  slow, which a number of your own includes. Never one marked `uptrend.remote`
    """
    earlier = getattr(trainer, "_uptrend", None)
    if isinstance(earlier, Watch):
        return earlier
    if trainer.accelerator.is_main_process:
        _check_version(trl.__version__)
    if not rescore:
        reward_calls = 0
    return Watch(trainer, path, every=every, probes=probes, reward_calls=reward_calls)


def _check_version(version: str) -> None:
    """Say so where the installed TRL is none of those that are known."""
    oldest, newest = KNOWN_TRL
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if not oldest <= numbers <= newest:
        known = " to ".join(".".join(map(str, each)) for each in KNOWN_TRL)
        print(
            f"uptrend: this is TRL {version}; the watch knows {known}, and leaves out what it can't"
            " find here.",
            file=sys.stderr,
            flush=True,
        )


def watched(cls: type[Any], path: str | Path | None = None, **options: Any) -> type[Any]:
    """Make a trainer class whose every instance is watched: `GRPOTrainer =
    watched(GRPOTrainer)`.
    """

    class Watched(cls):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            watch(self, path, **options)

    Watched.__name__ = cls.__name__
    Watched.__qualname__ = cls.__qualname__
    Watched.__doc__ = cls.__doc__
    return Watched


def encode_rows(batch: int, size: int) -> torch.Tensor:
    """Return a number for each row of a generation, by which it is known after TRL's shuffle."""
    # On the CPU: reading it must not wait for a GPU.
    return torch.arange(size) + batch * ROWS_PER_BATCH


def decode_rows(row_numbers: Any) -> tuple[int, Any]:
    """Return the generation that rows are from, always one and the same, and their places in it."""
    return int(row_numbers[0]) // ROWS_PER_BATCH, row_numbers % ROWS_PER_BATCH


class Watch(TrainerCallback):  # type: ignore[misc]
    """Watches one trainer, as a callback and through a few of its methods.

    With several processes each has a watch: the first records, asks and judges; the others send it
    what they see.

    The hooks are called in this order; an evaluation calls those of a generation and of a loss too,
    with the model in evaluation mode.

        on_train_begin
        on_step_begin                       once per optimizer update
            _before_batch                   a generation, unless the last one's rows are not used up
                _on_forward                 the model samples (not with vLLM)
                _after_sampling             once per turn
                _before_scoring, _after_scoring
            _after_batch
            _before_loss                    once per micro-batch
                _after_logprobs             of the policy, perhaps of a reference after it
            _after_loss
            _after_gradient                 the norm of all micro-batches
            on_pre_optimizer_step
            on_optimizer_step
        on_step_end
        on_evaluate
    """

    def __init__(
        self,
        trainer: Any,
        path: str | Path | None,
        *,
        every: int,
        probes: bool,
        reward_calls: int | None,
    ) -> None:
        self.trainer = trainer
        # Run directory; settled when training begins.
        self.path = Path(path) if path is not None else Path(trainer.args.output_dir) / "uptrend"
        self._every = max(1, every)
        self._probes = probes
        self._reward_calls = reward_calls
        number = trainer.accelerator.process_index
        self.guard = Guard(
            lambda part, text: self._event("watch-failed", part=part, error=text),
            place=f" in process {number}" if number else "",
        )
        self.record: Record | ProcessRecord | None = None
        # The same in the first process, where findings are made.
        self._judge: Record | None = None
        self._is_first = bool(trainer.accelerator.is_main_process)
        self._rendezvous: Rendezvous | None = None
        self._sharding = ""  # by what each process holds only a part of the weights
        self._asks_together = False  # the processes can bring those parts together for a probe
        self._weights: WatchedWeights | None = None
        # The newest snapshot of the weights: taken when training begins and after each update, and
        # again where a step begins or a generation ends, as the trainer may have changed them.
        self._latest: Snapshot | None = None
        self._before_update: Snapshot | None = None  # `_latest` as the last update began
        # What the trained model samples with in this generation: its weights, or "base" where its
        # adapters are off. None until it runs, so at the end where another model samples.
        self._sampled_by: Snapshot | Literal["base"] | None = None
        # Faults that happened several times in a row: generations by other weights, updates that
        # were taken back, and micro-batches before which the last one's gradients were cleared.
        self._foreign_samplings = 0
        self._undone_updates = 0
        self._cleared_gradients = 0
        # Of the generation under way.
        self._sampling_began = 0.0
        self._calls: list[Call] = []
        self._call_timer = CallTimer(trainer)
        # Its examples, prompts, completions, ids of the completions, and rewards.
        self._scored: tuple[Any, ...] = ()
        # Generations by number, as long as the loss has not passed over them completely.
        self._batches: dict[int, TrlBatch] = {}
        # Of the loss that is being computed: encoded numbers of its rows, and its pass as far as it
        # is known. None outside of a loss, and in an evaluation.
        self._rows: Any = None
        self._pass: LossPass | None = None
        # Of the step under way, and the weights' move in its update.
        self._is_first_step = True
        self._current = TrlStep()
        self._move: Move | None = None
        # True once the reward functions were called again: the first step may have several
        # generations.
        self._has_rescored = False
        # Batches of the evaluation under way.
        self._evaluated: list[TrlBatch] = []
        with self.guard("this trainer"):
            trainer._uptrend = self
            self._install()

    def _install(self) -> None:
        trainer = self.trainer
        tap = functools.partial(self.guard.tap, self.trainer)
        tap("_generate_single_turn", self._after_sampling)
        tap("_calculate_rewards", self._after_scoring, self._before_scoring)
        tap("_generate_and_score_completions", self._after_batch, self._before_batch)
        tap("_compute_loss", self._after_loss, self._before_loss)
        tap("_get_per_token_logps_and_entropies", self._after_logprobs)
        tap("_get_grad_norm", self._after_gradient)
        trainer.add_callback(self)
        train = trainer.train

        @functools.wraps(train)
        def trained(*args: Any, **kwargs: Any) -> Any:
            try:
                result = train(*args, **kwargs)
            except KeyboardInterrupt:
                self._end("stopped", **Stop("it was interrupted", by="user").to_event())
                raise
            except BaseException as error:
                self._end("failed", error=f"{error!r}"[:500])
                raise
            self._end("finished")
            return result

        trainer.train = trained

    def _end(self, status: str, **values: Any) -> None:
        with self.guard("the end"):
            if self.record is not None:
                self.record.end(status, **values)
        self.record = None
        self._judge = None

    def _event(self, kind: str, **values: Any) -> None:
        if self.record is not None:
            self.record.event(kind, **values)

    @property
    def _is_asked(self) -> bool:
        """True where the model may be asked: of text, by a process that holds all of it."""
        return self._probes and not self.trainer._is_vlm and not self._sharding

    def _ask(self, part: str, ask: Callable[[TrlBatch, LossPass], None]) -> None:
        """Ask the model about the first pass of this step.

        Where processes hold only parts of it, all of them come here at once, and must leave at
        once: whether this one has anything to ask is decided inside, and what fails stays inside.
        """
        gathered = whole_weights(self.trainer) if self._asks_together else nullcontext()
        with self.guard(part), gathered:
            self._ask_whole(part, ask)

    def _ask_whole(self, part: str, ask: Callable[[TrlBatch, LossPass], None]) -> None:
        with self.guard(part), same_randomness():
            passes = self._current.passes
            if passes and self.record is not None and (self._is_asked or self._asks_together):
                ask(self._batches[passes[0].batch], passes[0])

    # A generation

    def _before_batch(self, *_: Any) -> None:
        self._calls = []
        self._sampling_began = time.perf_counter()
        self._sampled_by = None

    def _on_forward(self, *_: Any) -> None:
        """Copy the weights at the first pass of the trained model since sampling began: those that
        sample.
        """
        if self._sampled_by is None and self._weights is not None:
            with self.guard("the sampler"):
                self._sampled_by = self._latest  # if the rest fails, nothing is concluded
                modules = self.trainer.model.modules()
                adapters = [module for module in modules if hasattr(module, "merged_adapters")]
                is_bare = bool(adapters) and all(
                    adapter.disable_adapters and not adapter.merged for adapter in adapters
                )
                self._sampled_by = "base" if is_bare else self._weights.snapshot()

    def _after_sampling(self, result: Any, prompt_ids: Any, *_: Any, **__: Any) -> None:
        trainer = self.trainer
        if self._judge and self._weights and trainer.model.training and not trainer.use_vllm:
            sampler = name_wrong_sampler(self._sampled_by, self._weights.snapshot())
            self._foreign_samplings = self._foreign_samplings + 1 if sampler else 0
            judge_repeated(
                self._judge.findings_log,
                "sync.stale-weights",
                self._foreign_samplings,
                f"Rollouts are sampled by {sampler}: what is learned does not reach the sampler.",
                trainer.state.global_step + 1,
                is_sure=self._sampled_by is not None,
            )
        prompts = [list(ids) for ids in prompt_ids]
        written = [list(ids) for ids in result[0]]
        self._calls.append(Call(prompts, written))

    def _before_scoring(self, *_: Any) -> None:
        if self._is_first_step:
            self._call_timer.begin()

    def _after_scoring(
        self, rewards: Any, inputs: Any, prompts: Any, completions: Any, written: Any
    ) -> None:
        self._call_timer.end()
        # TRL gathers the rewards of all processes.
        start = self.trainer.accelerator.process_index * len(prompts)
        own_rewards = rewards[start : start + len(prompts)]
        self._scored = (inputs, list(prompts), list(completions), written, own_rewards)

    def _after_batch(self, output: dict[str, Any], *_: Any) -> None:
        trainer = self.trainer
        is_training = self.trainer.model.training
        record = self.record
        if record is None:
            return
        metrics = trainer._metrics["train" if is_training else "eval"]
        dead_shares = metrics.get("frac_reward_zero_std")
        step = trainer.state.global_step
        examples, prompts, completions, written, rewards = self._scored
        number = max(self._batches, default=-1) + 1
        batch = TrlBatch(
            number=number,
            step=step + 1 if is_training else step,
            version=step,
            examples=examples,
            answers=answers_of(examples),
            prompts=prompts,
            completions=completions,
            written=written,
            rewards=rewards,
            output=dict(output),
            calls=self._calls,
            seconds=time.perf_counter() - self._sampling_began,
            trl_dead=dead_shares[-1] if dead_shares else None,
        )
        if not is_training:
            self._evaluated.append(batch)
            return

        # Drop generations that are used up: the loss has passed over all of their rows, and not in
        # this step, whose probes may still read them.
        numbers_in_step = {loss_pass.batch for loss_pass in self._current.passes}
        still_needed: dict[int, TrlBatch] = {}
        for earlier_number, earlier in self._batches.items():
            if not earlier.is_whole or earlier_number in numbers_in_step:
                still_needed[earlier_number] = earlier
        self._batches = still_needed | {number: batch}
        output[ROWS_KEY] = encode_rows(number, batch.size)
        self._current.batches.append(batch)
        self._current.sampling += batch.seconds

        judge = self._judge
        if judge is None:
            return
        self._judge_cast(judge, batch.step)
        is_due = self._is_first_step and not self._has_rescored
        if is_due and self._reward_calls != 0 and not trainer._is_vlm:
            self._has_rescored = True
            with self.guard("the reward functions"):
                suspects, extra_calls = probe_rewards(
                    trainer,
                    batch,
                    self._call_timer.seconds,
                    self._reward_calls,
                    judge.reward_range,
                    judge.findings_log,
                )
                self._current.gaps |= extra_calls
                judge.take_reward_range(suspects)

    def _judge_cast(self, record: Record, step: int) -> None:
        """Report weights that the trainer has cast while they sampled."""
        before = self._latest
        if self._weights is None or before is None or self._weights.dtypes() == before.dtypes:
            return
        now = self._weights.snapshot()
        self._latest = now
        record.event("precision", step=step, before=before.dtypes, after=now.dtypes)
        judge_cast(record.findings_log, before, now, self.trainer.args.learning_rate, step)

    # The loss

    def _before_loss(self, model: Any, inputs: Any) -> None:
        self._pass = None
        with self.guard("micro-batches"):
            self._judge_accumulation(model)
        self._rows = None
        if self.record is not None and hasattr(inputs, "get"):
            self._rows = inputs.get(ROWS_KEY)

    def _judge_accumulation(self, model: Any) -> None:
        """Report gradients that are gone when the next micro-batch of the same update begins."""
        if self._judge is None or not self._current.passes:
            return
        # DeepSpeed and FSDP keep gradients in places of their own.
        if self._sharding or self.trainer.is_deepspeed_enabled:
            return
        last = self._current.passes[-1]
        batch = self._batches.get(last.batch)
        if batch is None:
            return
        # Dead groups give none.
        if not as_numpy(batch.output["advantages"])[as_numpy(last.rows)].any():
            return
        is_gone = not any(
            p.grad is not None and bool(p.grad.any()) for p in model.parameters() if p.requires_grad
        )
        self._cleared_gradients = self._cleared_gradients + 1 if is_gone else 0
        judge_repeated(
            self._judge.findings_log,
            "optimizer.accumulation",
            self._cleared_gradients,
            "Gradients are cleared between the micro-batches of one update: all but the last are"
            " lost.",
            self.trainer.state.global_step + 1,
        )

    def _after_logprobs(
        self, result: Any, model: Any, ids: Any = None, attention: Any = None, *_: Any, **named: Any
    ) -> None:
        del model
        # Of several in one loss, the first is the policy's.
        if self._rows is None or self._pass is not None:
            return
        ids = named.get("input_ids", ids)
        attention = named.get("attention_mask", attention)
        entropies = None if result[1] is None else result[1].detach()
        batch_number, rows = decode_rows(self._rows)
        self._pass = LossPass(
            batch=batch_number,
            rows=rows,
            ids=ids,
            attention=attention,
            logprobs=result[0].detach(),
            entropies=entropies,
        )

    def _after_loss(self, loss: Any, *_: Any) -> None:
        loss_pass = self._pass
        self._pass = None
        self._rows = None
        if loss_pass is None or loss_pass.batch not in self._batches:
            return
        batch = self._batches[loss_pass.batch]
        loss_pass.loss = loss.detach()
        # Later passes over the same rows are after an update.
        loss_pass.is_first = not batch.is_whole
        batch.add_pass(loss_pass)
        self._current.passes.append(loss_pass)

    def _after_gradient(self, norm: Any, *_: Any, **__: Any) -> None:
        self._current.gradient = norm

    # The trainer's callbacks

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Make the run directory, or look for the first process that does."""
        trainer = self.trainer
        self._is_first_step = True
        self._rendezvous = None
        self._asks_together = False
        with self.guard("the beginning"):
            self._sharding = sharding_of(trainer)
        if trainer.accelerator.num_processes > 1:
            with self.guard("the other processes"):
                self._rendezvous = Rendezvous(trainer, self.path, (self._every, self._probes))
        with self.guard("the beginning"):
            if self._is_first:
                self._begin_record()
            elif self._rendezvous is not None:
                if self._sharding:  # else the first process's weights are the same
                    self._weights = WatchedWeights(
                        trainer.model, is_copy=trainer.is_deepspeed_enabled
                    )
                    self._latest = self._weights.snapshot()
                self.record = ProcessRecord(trainer, self._rendezvous)
            if self._rendezvous is not None and self.record is not None:
                self._rendezvous.join()

    def _begin_record(self) -> None:
        trainer = self.trainer
        self._weights = WatchedWeights(trainer.model, is_copy=trainer.is_deepspeed_enabled)
        self._judge = Record(trainer, self.path, self._weights, self.guard, self._rendezvous)
        self.record = self._judge
        self.path = self.record.path
        self._latest = self._weights.snapshot()
        trainer.model.get_input_embeddings().register_forward_pre_hook(self._on_forward)
        reason = why_not_gathered(trainer, self._sharding) if self._sharding else ""
        if reason:
            for id in PROBED_IDS:
                self._judge.event("not-probed", id=id, reason=reason)

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """Begin a step, before its first micro-batch."""
        self._current = TrlStep(began=time.perf_counter())
        self._move = None
        with self.guard("weights"):
            self._judge_undone()

    def _judge_undone(self) -> None:
        """Report an update after which the weights are again what they were before it."""
        if (
            self._judge is None
            or self._weights is None
            or not self._before_update
            or not self._latest
        ):
            return
        older = self._before_update.values
        updated = self._latest.values
        now = self._weights.snapshot()
        is_undone = torch.equal(older, now.values) and not torch.equal(older, updated)
        self._undone_updates = self._undone_updates + 1 if is_undone else 0
        self._latest = now
        judge_repeated(
            self._judge.findings_log,
            "optimizer.frozen",
            self._undone_updates,
            "Every update is taken back: at the next step, weights are what they were before it.",
            self.trainer.state.global_step,
        )

    def on_pre_optimizer_step(self, *_: Any, optimizer: Any = None, **__: Any) -> None:
        """Probe the model: gradients are there, and the weights are still those that sampled,
        unless DeepSpeed has updated them already.
        """
        with self.guard("updates"):
            self._current.lr = float(optimizer.param_groups[0]["lr"])
        step = self.trainer.state.global_step + 1
        if self._is_first_step:
            with self.guard("the other processes"):
                self._asks_together = self._can_ask_together()
        if self._is_first_step or step % self._every == 0:
            self._ask("the learner", self._ask_learner)

    def _can_ask_together(self) -> bool:
        """Return True where all processes are watched, and can bring their parts of the weights
        together.
        """
        trainer = self.trainer
        if self._rendezvous is None or not self._sharding or not self._probes or trainer._is_vlm:
            return False
        return not why_not_gathered(trainer, self._sharding) and self._rendezvous.is_complete

    def _ask_learner(self, batch: TrlBatch, loss_pass: LossPass) -> None:
        if self._judge is not None:
            log = self._judge.findings_log
            step = self.trainer.state.global_step + 1
            self._current.gaps |= probe_learner(self.trainer, batch, loss_pass, log, step)

    def _ask_update(self, batch: TrlBatch, loss_pass: LossPass) -> None:
        self._current.gaps |= probe_update(self.trainer, batch, loss_pass)

    def on_optimizer_step(self, *_: Any, **__: Any) -> None:
        """Compare the weights with those before the update."""
        with self.guard("weights"):
            self._current.skipped = bool(self.trainer.accelerator.optimizer_step_was_skipped)
            if self._weights is not None:
                before = self._latest
                self._before_update = before
                now = self._weights.snapshot()
                self._latest = now
                self._move = None if before is None else self._weights.compare(before, now)
        step = self.trainer.state.global_step + 1
        if step <= EARLY_STEPS or step % self._every == 0:
            self._ask("the update", self._ask_update)

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Send the step to the recorder."""
        with self.guard("steps"):
            current = self._current
            current.step = self.trainer.state.global_step
            current.waited = self.guard.take_seconds()
            current.seconds = time.perf_counter() - current.began
            self._is_first_step = False
            if isinstance(self.record, Record):
                self.record.take_step(current, self._move)
            elif self.record is not None:
                self.record.take_step(current, self._movement())

    def _movement(self) -> Callable[[], dict[str, float]] | None:
        """Return a function that makes the metrics of the weights' move in this step."""
        weights = self._weights
        move = self._move
        if weights is None or move is None:
            return None
        return lambda: weights.metrics(move)

    def on_evaluate(self, *_: Any, metrics: dict[str, Any] | None = None, **__: Any) -> None:
        """Send an evaluation to the recorder."""
        with self.guard("evaluations"):
            if self.record is not None and self._evaluated:
                seconds = (metrics or {}).get("eval_runtime")
                self.record.take_evaluation(
                    self._evaluated, seconds, self.trainer.state.global_step
                )
            self._evaluated = []
