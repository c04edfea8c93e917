"""The learner's side of a step: its log-probabilities on the rollouts, and the update that they
cause.

    rollouts ─ lay_out ─ Experience ─ mini-batches (one optimizer update each)
                                          └─ micro-batches (one pass each; gradients add up)

A pass is one micro-batch's way through the model, with or without a gradient; an epoch is all
mini-batches once. A sequence's number is its place b in the experience. A mini-batch's `Batch` has
a row r for each of its sequences: `numbers_r` leads from rows to numbers, `rows_b` back. A
micro-batch has the numbers of its sequences, `_numbers_m` that of each token's.

b = sequence, s = sampled token of it (padded), m = sampled token of a micro-batch, n = rollout, t =
token of a sequence or a row, k = token that could be sampled instead. In a `Batch`, t is s.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from uptrend.algo import Batch, Sums, attended_mask, loss_mask, prepare
from uptrend.algo import objective as configured_objective
from uptrend.config import Config, Learning
from uptrend.policy.attention import Packed
from uptrend.policy.graphed import Graphed
from uptrend.policy.logprobs import Shaping
from uptrend.policy.memory import MemoryFit, learner_memory, max_tokens_that_fit
from uptrend.policy.optimizer import Applied, Optimizer, learning_rate
from uptrend.policy.policy import Policy
from uptrend.records import ConfigError, ModelError, Role, Rollout
from uptrend.records import Sequence as Tokens
from uptrend.records.rollout import LIMIT_ENDINGS
from uptrend.training.packing import INPUT_NAMES, MicroBatch, Shapes, TrainSequence
from uptrend.training.packing import pack as pack_in_rows
from uptrend.training.ranks import OneRank, Ranks

# Support of a sequence: the number of tokens that each sampled one was drawn from, and their ids.
Support = tuple[NDArray[np.int32], NDArray[np.int32]]
# Loss and its sums, from log-probabilities and entropies of a micro-batch's tokens.
Objective = Callable[[Tensor, Tensor, Batch, Learning], tuple[Tensor, Sums]]

MODEL_ROLE = int(Role.MODEL)
BATCH_NAMES = [f.name for f in fields(Batch)]
# Those of them that the loss multiplies tokens by: with zeros there is no gradient.
LOSS_WEIGHT_NAMES = ("weights_bt", "entropy_weights_bt")
# Log-probability of a token that was not computed. No computed one is positive, but NaN may be one:
# of a model whose weights broke.
NOT_COMPUTED = torch.inf
# Maximum tokens of a micro-batch where attention needs a mask: it grows with their square.
MAX_MASKED_TOKENS = 2048
# Share of a group's tokens from which on sharing their prompt pays: on a GPU it takes two more
# passes over the keys.
MIN_SHARED_PROMPT_SHARE = {"cuda": 0.1, "cpu": 0.0}
# Seconds that compiling took on an H200 (15 to 18), and the share of an update's time that it saved
# (0.46), both on the safe side: whether it pays is computed from these and the time that updates
# take.
COMPILE_SECONDS = 18.0
COMPILED_TIME_SAVED = 0.4
# Compiling has to win back this many times what it takes.
MIN_COMPILE_GAIN = 2
# The first updates load and capture; the fastest of the last ones is what the others would take.
MIN_UPDATES_TIMED = 4
UPDATES_COMPARED = 3


@dataclass(frozen=True)
class Experience:
    """A step's rollouts as tensors over the tokens that the model wrote."""

    sequences: list[TrainSequence]
    rollouts_b: Tensor  # rollout that each sequence belongs to
    groups_b: Tensor  # group that each sequence belongs to
    mask_bs: Tensor  # True for tokens that are trained
    real_bs: Tensor  # True for tokens, False for padding
    sampler_bs: Tensor  # log-probabilities by the sampler
    turns_bs: Tensor  # turn that each token belongs to
    supports: list[Support | None]  # by sequence; None if all tokens could be drawn
    # Log-probabilities by the learner of the recorded run; None if the rollouts are this run's own.
    behavior_bs: Tensor | None = None


@dataclass(frozen=True)
class Update:
    """Results of a step's update, on the host."""

    # Log-probabilities before the first update; NaN where they were not computed.
    learner_bs: Tensor
    reference_bs: Tensor | None  # log-probabilities by the reference
    weights_bs: Tensor  # weight of each token in the loss
    advantages_bs: Tensor  # advantage of each token
    sums: Sums  # sums of the objective over the last epoch; losses are means over its mini-batches
    applied: list[Applied]  # results of the optimizer's calls
    lr: float  # learning rate
    padding: float  # share of padding among the tokens through the model
    # True if tokens are weighted for the sampler's difference from the learner.
    corrects: bool = False


class Layout(Protocol):
    """Lays rollouts out for the learner: the tokens that train, and those that attention sees."""

    def __call__(
        self, rollouts: Sequence[Rollout], config: Config, *, recorded: bool = False
    ) -> Experience: ...


def lay_out(rollouts: Sequence[Rollout], config: Config, *, recorded: bool = False) -> Experience:
    """Lay out the sampled tokens of rollouts; failed and dropped ones are included, but not
    trained.
    """
    group_numbers: dict[str, int] = {}
    for rollout in rollouts:
        group_numbers.setdefault(rollout.group, len(group_numbers))
    untrained_endings = LIMIT_ENDINGS if config.learning.mask_truncated else ()
    tokens: list[Tokens] = []  # by sequence
    rollout_numbers: list[int] = []
    untrained: list[bool] = []
    for n, rollout in enumerate(rollouts):
        is_untrained = (
            rollout.reward is None or not rollout.kept or rollout.ended in untrained_endings
        )
        for sequence in rollout.sequences:
            tokens.append(sequence)
            rollout_numbers.append(n)
            untrained.append(is_untrained)

    # Attention's mask over all tokens, padded to the longest sequence.
    lengths = [len(sequence.ids) for sequence in tokens]
    exists_bt = torch.arange(max(lengths, default=0)) < torch.tensor(lengths)[:, None]
    attended_bt = attended_mask(exists_bt).numpy()
    sequences: list[TrainSequence] = []
    for b, sequence in enumerate(tokens):
        sampled = (sequence.roles == MODEL_ROLE).nonzero()[0]
        length = len(sequence.ids)
        train_sequence = TrainSequence(
            ids=sequence.ids.astype(np.int64),
            sampled=sampled,
            attended=attended_bt[b, :length],
            prompt=int(sampled[0]) if len(sampled) else length,
            group=group_numbers[rollouts[rollout_numbers[b]].group],
            rollout=rollout_numbers[b],
        )
        sequences.append(train_sequence)

    # Columns of the sampled tokens, padded to the most that a sequence has.
    longest = max(1, *(len(sequence.sampled) for sequence in sequences))
    shape = (len(sequences), longest)
    sampler_bs = np.zeros(shape, np.float32)
    behavior_bs = np.zeros(shape, np.float32)
    is_real_bs = np.zeros(shape, bool)
    turns_bs = np.zeros(shape, np.int64)
    supports: list[Support | None] = []
    for b, sequence in enumerate(tokens):
        sampled = sequences[b].sampled
        count = len(sampled)
        is_real_bs[b, :count] = True
        turns_bs[b, :count] = sequence.turns[sampled]
        sampler_s = sequence.sampler[sampled]
        sampler_bs[b, :count] = sampler_s
        behavior_bs[b, :count] = sampler_s
        if recorded and sequence.learner is not None:
            # The recorded learner's log-probabilities before its update, or else the sampler's.
            learner_s = sequence.learner[sampled]
            behavior_bs[b, :count] = np.where(np.isnan(learner_s), sampler_s, learner_s)
        if sequence.support is None:
            supports.append(None)
        else:
            sizes_t, support_ids = sequence.support
            supports.append((sizes_t[sampled], support_ids))

    real_bs = torch.from_numpy(is_real_bs)
    roles_bs = torch.full(shape, MODEL_ROLE)
    return Experience(
        sequences=sequences,
        rollouts_b=torch.tensor([sequence.rollout for sequence in sequences]),
        groups_b=torch.tensor([sequence.group for sequence in sequences]),
        mask_bs=loss_mask(roles_bs, real_bs, torch.tensor(untrained)),
        real_bs=real_bs,
        sampler_bs=torch.from_numpy(sampler_bs),
        turns_bs=torch.from_numpy(turns_bs),
        supports=supports,
        behavior_bs=torch.from_numpy(behavior_bs) if recorded else None,
    )


class Learner:
    """Computes log-probabilities and makes updates; loss, packing and schedule can be replaced."""

    def __init__(
        self,
        policy: Policy,
        optimizer: Optimizer,
        config: Config,
        *,
        objective: Objective = configured_objective,
        pack: Callable[..., list[MicroBatch]] = pack_in_rows,
        schedule: Callable[[Learning, int], float] = learning_rate,
        free: Callable[[torch.device], float] = learner_memory,
    ) -> None:
        device = policy.device
        self._ranks: Ranks = OneRank()
        self._policy = policy
        self._optimizer = optimizer
        self._config = config
        self._objective = objective
        self._pack = pack
        self._schedule = schedule
        self._free_memory = free
        self._has_dropout = config.model.lora is not None and config.model.lora.dropout > 0
        self._recomputes = config.model.gradient_checkpointing
        self.memory_fit: MemoryFit | None = (
            None  # result of the measurement if `learning.tokens` is 0
        )
        # Packing.
        self._min_prompt_saving = MIN_SHARED_PROMPT_SHARE[device.type]
        self._shapes = Shapes(is_free=device.type == "cpu")
        self._packed_experience: Experience | None = None
        self._packed: dict[tuple[int, ...], list[MicroBatch]] = {}  # of that one, by its sequences
        # Passes through the model.
        self._policy_graphs = Graphed(self._logprobs, device)
        self._reference_graphs = Graphed(partial(self._logprobs, reference=True), device)
        self._gradient_graphs = Graphed(self._add_gradient, device, harmless=_without_loss)
        self._update_seconds = list[float]()  # while it is open whether to compile

    def join(self, ranks: Ranks) -> None:
        """Share passes and updates with other ranks, by whole groups."""
        self._ranks = ranks

    def logprobs(
        self, exp: Experience, *, reference: bool, advantages_bs: Tensor | None = None
    ) -> Tensor:
        """Compute log-probabilities of every sampled token without a gradient, by the policy or the
        reference.

        With `advantages_bs`, of those that the update will look at.
        """
        self._fit_memory(exp)
        logprobs_bs = self._empty_logprobs(exp)
        forward: Any = partial(self._logprobs, reference=reference)
        if self._can_capture:
            forward = self._reference_graphs if reference else self._policy_graphs
        with self._policy.as_reference() if reference else torch.no_grad():
            # In the micro-batches of the update: another layout rounds otherwise, by 0.03 nats in
            # bf16, and GSPO clips ratios that leave 1 by 0.0003.
            for numbers_r in self._minibatches(exp):
                numbers = self._numbers_to_score(numbers_r, advantages_bs)
                for micro, is_filler in self._micro_batches_of_rank(exp, numbers):
                    (logprobs_m,) = forward(*micro.inputs)
                    if not is_filler:
                        logprobs_bs[_numbers_m(micro), micro.places_m] = logprobs_m
        return self._join_logprobs(logprobs_bs)

    def update(
        self,
        exp: Experience,
        advantages_bs: Tensor,
        step: int,
        *,
        old_bs: Tensor | None,
        reference_bs: Tensor | None,
    ) -> Update:
        """Make all of a step's optimizer updates; `old_bs` is needed if there is more than one.

        Ratios are against `old_bs`, or against the policy that sampled if the experience has its
        log-probabilities.
        """
        self._fit_memory(exp)
        learning = self._config.learning
        device = self._policy.device
        lr = self.rate(step)
        max_rollout_tokens = self._config.sampling.max_tokens * self._config.sampling.max_turns
        mask_bs = exp.mask_bs.to(device)
        sampler_bs = exp.sampler_bs.to(device)
        rollouts_b = exp.rollouts_b.to(device)
        device_advantages_bs = advantages_bs.to(device)
        ratio_base_bs = old_bs if exp.behavior_bs is None else exp.behavior_bs.to(device)

        logprobs_bs = self._empty_logprobs(exp)
        weights_bs = torch.zeros(exp.sampler_bs.shape, device=device)
        sums = torch.zeros(len(fields(Sums)), device=device)
        padding = torch.zeros(2)  # sum of shares, and their number
        applied = list[Applied]()
        minibatches = self._minibatches(exp)
        last_epoch = learning.updates - 1
        for epoch in range(learning.updates):
            for numbers_r in minibatches:
                # Weights in the loss are those of the whole mini-batch, so that gradients of
                # micro-batches simply add up.
                device_numbers_r = numbers_r.to(device)
                batch = prepare(
                    mask_bs[device_numbers_r],
                    rollouts_b[device_numbers_r],
                    device_advantages_bs[device_numbers_r],
                    learning,
                    max_rollout_tokens,
                    old_bt=None if ratio_base_bs is None else ratio_base_bs[device_numbers_r],
                    sampler_bt=sampler_bs[device_numbers_r],
                    reference_bt=None if reference_bs is None else reference_bs[device_numbers_r],
                )
                weights_bs[device_numbers_r] = batch.weights_bt
                # Row of each sequence in the batch; those of other mini-batches are not looked up.
                rows_b = torch.zeros(len(exp.sequences), dtype=torch.long, device=device)
                rows_b[device_numbers_r] = torch.arange(len(numbers_r), device=device)

                numbers = self._numbers_to_score(numbers_r, advantages_bs)
                for micro, is_filler in self._micro_batches_of_rank(exp, numbers):
                    logprobs_m, micro_sums = self._backward(micro, batch, rows_b, is_filler)
                    if is_filler:
                        continue
                    if epoch == last_epoch:
                        sums = sums + micro_sums
                    logprobs_bs[_numbers_m(micro), micro.places_m] = logprobs_m
                    padding += torch.tensor([micro.padding, 1.0])
                # Sharded gradients were summed in the backward pass.
                if not self._policy.is_sharded:
                    self._ranks.all_reduce(self._policy.flat.gradient)
                applied.append(self._optimizer.apply(lr))

        all_sums = Sums(*self._ranks.all_reduce(sums.cpu()))
        padding = self._ranks.all_reduce(padding)
        # Each mini-batch has a whole loss of its own.
        mean_losses = {
            name: getattr(all_sums, name) / len(minibatches)
            for name in ("policy_loss", "kl_loss", "entropy_bonus")
        }
        if old_bs is None:  # one optimizer update, whose passes came before it
            old_bs = self._join_logprobs(logprobs_bs)
        return Update(
            learner_bs=old_bs.cpu(),
            reference_bs=None if reference_bs is None else reference_bs.cpu(),
            weights_bs=weights_bs.cpu(),
            advantages_bs=advantages_bs.cpu(),
            sums=replace(all_sums, **mean_losses),
            applied=applied,
            lr=lr,
            padding=float(padding[0] / padding[1].clamp(min=1)),
            corrects=learning.correction != "none",
        )

    def rate(self, step: int) -> float:
        """Return the learning rate of a step."""
        return self._schedule(self._config.learning, step)

    @property
    def needs_old(self) -> bool:
        """True if log-probabilities before the update must be computed apart from it."""
        learning = self._config.learning
        return (
            learning.updates * learning.minibatches > 1
            or self._has_dropout
            or learning.kl.estimator == "k1"
        )

    def consider_compiling(self, seconds: float, steps_left: int) -> None:
        """Compile if the rest of the run is long enough to win the time back; `seconds` is the time
        of an update.
        """
        policy = self._policy
        if self._config.compute.compile != "auto" or policy.compiled or policy.is_sharded:
            return
        # A sampler that works meanwhile would be compiled at random times: layers run as they are
        # while it samples, in all threads.
        if self._config.sampling.ahead or policy.device.type != "cuda":
            return
        self._update_seconds.append(seconds)
        if len(self._update_seconds) < MIN_UPDATES_TIMED:
            return
        update_seconds = min(self._update_seconds[-UPDATES_COMPARED:])
        saved_seconds = update_seconds * COMPILED_TIME_SAVED * steps_left
        if saved_seconds > MIN_COMPILE_GAIN * COMPILE_SECONDS:
            policy.compile()
            for graphs in (self._policy_graphs, self._reference_graphs, self._gradient_graphs):
                graphs.forget()

    def adopt_memory_fit(self, memory_fit: dict[str, Any]) -> None:
        """Take over an earlier measurement, of the run that goes on."""
        self.memory_fit = MemoryFit(**memory_fit)
        self._set_recomputing(self.memory_fit.gradient_checkpointing)

    # From mini-batches to micro-batches

    def _minibatches(self, exp: Experience) -> list[Tensor]:
        """Return the numbers of the sequences of each optimizer update of an epoch, whole groups
        together.
        """
        groups = torch.arange(int(exp.groups_b.max()) + 1)
        minibatches: list[Tensor] = []
        for part in groups.chunk(self._config.learning.minibatches):
            minibatches.append(torch.isin(exp.groups_b, part).nonzero().squeeze(1))
        return minibatches

    def _numbers_to_score(self, numbers_r: Tensor, advantages_bs: Tensor | None) -> list[int]:
        """Return the numbers of those that go through the model: all, or those not dead."""
        if advantages_bs is not None and self._config.learning.skip_dead:
            is_dead_r = (advantages_bs[numbers_r] == 0).all(1)
            numbers_r = numbers_r[~is_dead_r]
        return numbers_r.tolist()

    def _micro_batches_of_rank(
        self, exp: Experience, numbers: list[int]
    ) -> Iterator[tuple[MicroBatch, bool]]:
        """Yield this rank's micro-batches, each with False, and then fillers, each with True.

        Where weights are sharded, all ranks have to take part in every pass, so each needs the same
        number: a rank with fewer fills up with one short sequence, whose gradient counts 0.
        """
        if self._ranks.count > 1:
            # The largest groups first, so that the ranks' shares are about even.
            tokens_by_group = Counter[int]()
            for b in numbers:
                tokens_by_group[int(exp.groups_b[b])] += exp.sequences[b].width
            by_size = sorted(tokens_by_group, key=lambda group: (-tokens_by_group[group], group))
            own_groups = set(self._ranks.shard(by_size))
            numbers = [b for b in numbers if int(exp.groups_b[b]) in own_groups]
        micros = self._micro_batches(exp, numbers)
        n_fillers = 0
        if self._policy.is_sharded:
            # At least one pass: without any there would be no gradient, not even one of 0. Counts
            # are exchanged before the first pass, in which a rank waits for all others.
            n_fillers = max(1, *self._ranks.exchange(len(micros))) - len(micros)
        for micro in micros:
            yield micro, False

        widths = {b: sequence.width for b, sequence in enumerate(exp.sequences) if sequence.width}
        if n_fillers and widths:
            shortest = min(widths, key=lambda b: widths[b])
            (filler,) = self._micro_batches(exp, [shortest])
            for _ in range(n_fillers):
                yield filler, True

    def _micro_batches(self, exp: Experience, numbers: Sequence[int]) -> list[MicroBatch]:
        """Pack sequences into micro-batches, once for all passes over the same sequences."""
        key = tuple(b for b in numbers if len(exp.sequences[b].sampled))
        if self._packed_experience is not exp:
            self._packed_experience = exp
            self._packed = {}
        if key not in self._packed:
            tokens = (
                self._config.learning.tokens if self.memory_fit is None else self.memory_fit.tokens
            )
            if not self._policy.packs:
                tokens = min(tokens, MAX_MASKED_TOKENS)
            micros: list[MicroBatch] = []
            if key:
                micros = self._pack(
                    exp.sequences,
                    key,
                    tokens,
                    self._min_prompt_saving,
                    self._shapes,
                    exp.sampler_bs.shape[1],
                )
            self._packed[key] = [
                self._with_distributions(micro, exp).to(self._policy.device) for micro in micros
            ]
        return self._packed[key]

    def _with_distributions(self, micro: MicroBatch, exp: Experience) -> MicroBatch:
        """Add the sampler's changes to the distributions of a micro-batch's tokens."""
        is_real_m = micro.places_m.numpy() < exp.sampler_bs.shape[1]  # the others only fill up
        supports = [exp.supports[b] for b in micro.numbers]
        known_supports = [support for support in supports if support is not None]
        if len(known_supports) == len(supports):
            # Rows of different sizes, filled up with the sampled token itself. On a GPU the width
            # is a power of two, for few shapes.
            sizes_m = np.concatenate([sizes for sizes, _ in known_supports])
            width = int(sizes_m.max())
            if not self._shapes.is_free:
                width = 1 << (width - 1).bit_length()
            support_mk = np.repeat(micro.targets_m.numpy()[:, None], width, 1)
            is_support_mk = np.zeros(support_mk.shape, bool)
            is_support_mk[is_real_m] = np.arange(width) < sizes_m[:, None]
            support_mk[is_support_mk] = np.concatenate([ids for _, ids in known_supports])
            micro = replace(micro, support_mk=torch.from_numpy(support_mk))

        if self._config.sampling.repetition_penalty != 1:
            sequences = [exp.sequences[b] for b in micro.numbers]
            longest = max(len(sequence.ids) for sequence in sequences)
            contexts_st = np.zeros((len(sequences), longest), np.int64)
            for context_t, sequence in zip(contexts_st, sequences, strict=True):
                context_t[: len(sequence.ids)] = sequence.ids
            ends_m = np.ones(len(is_real_m), np.int64)
            ends_m[is_real_m] = np.concatenate([sequence.sampled for sequence in sequences])
            micro = replace(
                micro, contexts_st=torch.from_numpy(contexts_st), ends_m=torch.from_numpy(ends_m)
            )
        return micro

    # Passes through the model

    @property
    def _can_capture(self) -> bool:
        """True if passes may be captured as CUDA graphs; on a CPU `Graphed` captures nothing."""
        # Activations that are recomputed come with a random state, which a graph can't remember; a
        # mask is made on the host. Weights that are sharded come and go.
        return not self._recomputes and self._policy.packs and not self._policy.is_sharded

    def _backward(
        self, micro: MicroBatch, batch: Batch, rows_b: Tensor, is_filler: bool
    ) -> tuple[Tensor, Tensor]:
        """Add the gradient of a micro-batch's part of a batch; return its log-probabilities and its
        sums.
        """
        is_real_m = micro.places_m < batch.mask_bt.shape[1]
        rows_m = rows_b[_numbers_m(micro)]
        # Filling tokens stand at place 0 and are not in the mask; neither is any token of a filling
        # micro-batch: its old log-probabilities may be NaN.
        part = batch.tokens(rows_m, micro.places_m * is_real_m, is_real_m & (not is_filler))
        inputs = (*micro.inputs, *_values_of(part))
        if is_filler:
            inputs = _without_loss(inputs)
        add_gradient = self._gradient_graphs if self._can_capture else self._add_gradient
        logprobs_m, sums = add_gradient(*inputs)
        return logprobs_m, sums

    def _add_gradient(self, *inputs: Any) -> tuple[Tensor, Tensor]:
        """Add a micro-batch's gradient: forward, objective and backward as one function of tensors,
        for a graph.
        """
        micro_inputs = inputs[: len(INPUT_NAMES)]
        batch_values = inputs[len(INPUT_NAMES) :]
        batch = Batch(**dict(zip(BATCH_NAMES, batch_values, strict=True)))
        # Training mode only if it matters: for dropout, and for transformers' gradient
        # checkpointing.
        self._policy.model.train(self._has_dropout or self._recomputes)
        try:
            logprobs_m, entropy_m = self._forward(*micro_inputs)
            if not self._config.learning.entropy:  # without a bonus no gradient is needed
                entropy_m = entropy_m.detach()
            loss, sums = self._objective(
                logprobs_m[None], entropy_m[None], batch, self._config.learning
            )
            self._policy.backward(loss)
        finally:
            self._policy.model.eval()
        values = [getattr(sums, f.name).float() for f in fields(sums)]
        return logprobs_m.detach(), torch.stack(values)

    def _logprobs(self, *inputs: Any, reference: bool = False) -> tuple[Tensor]:
        """Return a micro-batch's log-probabilities, as a tuple for a graph."""
        logprobs_m, _ = self._forward(*inputs, reference=reference)
        return (logprobs_m,)

    def _forward(self, *inputs: Any, reference: bool = False) -> tuple[Tensor, Tensor]:
        """Compute log-probabilities and entropies of a micro-batch's sampled tokens."""
        values = dict(zip(INPUT_NAMES, inputs, strict=True))
        sampling = self._config.sampling
        shaping = Shaping(
            values["support_mk"],
            sampling.repetition_penalty,
            values["contexts_st"],
            values["sequences_m"],
            values["ends_m"],
        )
        longest = values["longest"]
        packed = Packed(
            values["starts_n"], values["key_starts_n"], longest, longest, values["keys_k"]
        )
        return self._policy.score(
            values["ids_t"],
            values["positions_t"],
            packed,
            values["predictors_m"],
            values["targets_m"],
            sampling.temperature,
            shaping=shaping,
            reference=reference,
        )

    def _empty_logprobs(self, exp: Experience) -> Tensor:
        """Return a tensor for what this rank computes, until `_join_logprobs`.

        It has a place more than the longest sequence needs: tokens that only fill up a shape are
        written there.
        """
        rows, places = exp.sampler_bs.shape
        return torch.full((rows, places + 1), NOT_COMPUTED, device=self._policy.device)

    def _join_logprobs(self, logprobs_bs: Tensor) -> Tensor:
        """Join what each rank computed: NaN where none did, and without the place for filler."""
        logprobs_bs = logprobs_bs[:, :-1]
        is_known_bs = logprobs_bs != NOT_COMPUTED
        if self._ranks.count > 1:
            # A sequence is one rank's, so the sum over ranks is its value.
            values_bs = logprobs_bs.where(is_known_bs, 0.0)
            both = torch.stack([values_bs, is_known_bs.to(values_bs.dtype)])
            logprobs_bs, counts_bs = self._ranks.all_reduce(both)
            is_known_bs = counts_bs > 0
        return logprobs_bs.where(is_known_bs, torch.nan)

    # Memory

    def _fit_memory(self, exp: Experience) -> None:
        """Measure how many tokens fit into memory if `learning.tokens` is 0; recompute activations
        if a rollout might not.
        """
        if self._config.learning.tokens or self.memory_fit is not None or not exp.real_bs.any():
            return
        if self._policy.is_sharded:
            raise ConfigError(
                "learning.tokens = 0 measures what fits into one process. Sharded weights need a"
                " number."
            )
        device = self._policy.device
        free_bytes = self._free_memory(device)
        if device.type == "cpu":  # which ranks on one machine share
            free_bytes /= int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
        if not self._optimizer.has_memory:  # it makes two numbers per weight at its first step
            free_bytes -= 2 * self._policy.flat.values.nbytes
        free_gib = free_bytes / 2**30

        must_recompute = self._config.model.gradient_checkpointing
        tokens = 0
        # Before any gradient of the step, which passes of a measurement would be added to; and
        # without what dropout draws from the step's random state.
        random_fork = torch.random.fork_rng([device] if device.type == "cuda" else [])
        with torch.enable_grad(), random_fork:
            for recompute in (True,) if must_recompute else (False, True):
                self._set_recomputing(recompute)
                # A graph keeps the memory of a pass for itself, beside that of passes without one.
                captures = device.type == "cuda" and self._can_capture
                usable_bytes = free_bytes / 2 if captures else free_bytes
                run_trial = partial(self._run_trial, exp)
                tokens, bytes_per_token = max_tokens_that_fit(run_trial, device, usable_bytes)
                tokens = min(self._ranks.exchange(tokens))
                self.memory_fit = MemoryFit(tokens, recompute, bytes_per_token, free_gib)
                if tokens >= self._config.sampling.context:
                    break
        self._policy.flat.gradient.zero_()

        longest = max(len(sequence.ids) for sequence in exp.sequences)
        if tokens < longest:
            raise ModelError(
                f"A rollout of {longest:,} tokens does not fit into {free_gib:.2g} GiB of free"
                " memory, even with gradient checkpointing. Use a smaller model, model.lora, or a"
                " lower sampling.context."
            )

    def _set_recomputing(self, recomputes: bool) -> None:
        """Switch gradient checkpointing on if activations are recomputed and it is not on yet."""
        if recomputes and not self._config.model.gradient_checkpointing:
            self._policy.core.gradient_checkpointing_enable({"use_reentrant": False})
        self._recomputes = recomputes

    def _run_trial(self, exp: Experience, tokens: int) -> int:
        """Make a pass over at least this many tokens, of the longest answer again and again; return
        how many they are.
        """
        device = self._policy.device
        sequence = max(exp.sequences, key=lambda sequence: len(sequence.sampled))
        sampled = len(sequence.sampled)
        count = -(-tokens // sequence.width)
        copies = [replace(sequence, group=i, rollout=i) for i in range(count)]
        no_budget = 1 << 60  # all in one micro-batch
        # Not `self._pack`, which is free to make several.
        (micro,) = pack_in_rows(
            copies, range(count), no_budget, self._min_prompt_saving, Shapes(), sampled
        )
        micro = micro.to(device)
        ones_bs = torch.ones(count, sampled, device=device)
        batch = prepare(
            ones_bs > 0,
            torch.arange(count, device=device),
            0 * ones_bs,
            self._config.learning,
            sampled,
            old_bt=ones_bs,
            sampler_bt=ones_bs,
            reference_bt=ones_bs,
        )
        part = batch.tokens(micro.sequences_m, micro.places_m, micro.places_m < sampled)
        self._add_gradient(*micro.inputs, *_values_of(part))
        return len(micro.ids_t)


def _values_of(batch: Batch) -> tuple[Any, ...]:
    """Return a batch's values in the order of BATCH_NAMES."""
    return tuple(getattr(batch, name) for name in BATCH_NAMES)


def _without_loss(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return inputs of `_add_gradient` with which it adds 0: tokens have no weight in the loss."""
    values = dict(zip([*INPUT_NAMES, *BATCH_NAMES], inputs, strict=True))
    for name in LOSS_WEIGHT_NAMES:
        values[name] = values[name] * 0
    return tuple(values.values())


def _numbers_m(micro: MicroBatch) -> Tensor:
    """Return the number of the sequence that each sampled token belongs to."""
    return torch.tensor(micro.numbers, device=micro.sequences_m.device)[micro.sequences_m]
