"""The learner's side of a step: its log-probabilities on the rollouts, and the update that they
cause.

b = sequence, s = sampled token of it (padded), m = sampled tokens of a micro-batch, n = rollout.
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

from uptrend.algo import Batch, Sums, attended_mask, loss_mask, objective, prepare
from uptrend.config import Config, Learning
from uptrend.policy.attention import Packed
from uptrend.policy.graphed import Graphed
from uptrend.policy.logprobs import Shaping
from uptrend.policy.memory import Fitted, learner_memory, max_tokens_that_fit
from uptrend.policy.optimizer import Applied, Optimizer, learning_rate
from uptrend.policy.policy import Policy
from uptrend.records import ConfigError, ModelError, Role, Rollout
from uptrend.records.rollout import LIMIT_ENDINGS
from uptrend.training.packing import INPUTS, MicroBatch, Shapes, TrainSequence, pack
from uptrend.training.ranks import OneRank, Ranks

MODEL = int(Role.MODEL)
# Loss and its sums, from log-probabilities and entropies of a micro-batch's tokens.
Objective = Callable[[Tensor, Tensor, Batch, Learning], tuple[Tensor, Sums]]
# Parts of a micro-batch's share of the update, in order.
BATCH = [f.name for f in fields(Batch)]
# The most tokens of a micro-batch where attention needs a mask: it grows with their square.
MAX_MASKED_TOKENS = 2048
# Share of a group's tokens from which on sharing their prompt pays: on a GPU it takes two more
# passes over the keys.
MIN_SHARED_PROMPT_SHARE = {"cuda": 0.1, "cpu": 0.0}
# Seconds that compiling took on an H200 (15 to 18), and the share of an update's time that it saved
# (0.46), both on the safe side: whether it pays is computed from these and the time that updates
# take.
COMPILE_SECONDS = 18.0
COMPILE_SAVES = 0.4


@dataclass(frozen=True)
class Experience:
    """A step's rollouts as tensors over the tokens that the model wrote."""

    sequences: list[TrainSequence]  # tokens of each sequence
    rollouts_b: Tensor  # rollout that each sequence belongs to
    groups_b: Tensor  # group that each sequence belongs to
    mask_bs: Tensor  # true for tokens that are trained
    real_bs: Tensor  # true for tokens, False for padding
    sampler_bs: Tensor  # log-probabilities by the sampler
    turns_bs: Tensor  # turn that each token belongs to
    # Tokens that each sampled one of a sequence was drawn from: their numbers and their ids; None
    # for all of them.
    supports: list[tuple[NDArray[np.int32], NDArray[np.int32]] | None]
    # Log-probabilities by the learner of the recorded run; None where the rollouts are this run's
    # own.
    behavior_bs: Tensor | None = None


@dataclass(frozen=True)
class Update:
    """Results of a step's update, on the host."""

    # log-probabilities before the first update; NaN where they were not computed
    learner_bs: Tensor
    reference_bs: Tensor | None  # log-probabilities by the reference
    weights_bs: Tensor  # weight of each token in the loss
    advantages_bs: Tensor  # advantage of each token
    sums: Sums  # sums of the objective over the last pass; losses are means over its mini-batches
    applied: list[Applied]  # results of the optimizer's calls
    lr: float  # learning rate
    padding: float  # share of padding among the tokens through the model
    # true where tokens are weighted for the sampler's difference from the learner
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
    numbers = {group: i for i, group in enumerate(dict.fromkeys(r.group for r in rollouts))}
    flat = [(n, r, s) for n, r in enumerate(rollouts) for s in r.sequences]
    lengths = [len(s.ids) for _, _, s in flat]
    attended_bt = attended_mask(
        torch.arange(max(lengths, default=0)) < torch.tensor(lengths)[:, None]
    ).numpy()
    sequences = []
    for attended_t, (n, r, s) in zip(attended_bt, flat, strict=True):
        sampled = (s.roles == MODEL).nonzero()[0]
        prompt = int(sampled[0]) if len(sampled) else len(s.ids)
        sequences.append(
            TrainSequence(
                ids=s.ids.astype(np.int64),
                sampled=sampled,
                attended=attended_t[: len(s.ids)],
                prompt=prompt,
                group=numbers[r.group],
                rollout=n,
            )
        )
    longest = max(1, *(len(sequence.sampled) for sequence in sequences))
    sampler, behavior = np.zeros((2, len(flat), longest), np.float32)
    real = np.zeros((len(flat), longest), bool)
    turns = np.zeros((len(flat), longest), np.int64)
    supports: list[tuple[NDArray[np.int32], NDArray[np.int32]] | None] = []
    for b, (sequence, (_, _, s)) in enumerate(zip(sequences, flat, strict=True)):
        places = slice(len(sequence.sampled))
        real[b, places] = True
        turns[b, places] = s.turns[sequence.sampled]
        supports.append(
            None if s.support is None else (s.support[0][sequence.sampled], s.support[1])
        )
        sampler[b, places] = behavior[b, places] = s.sampler[sequence.sampled]
        if recorded and s.learner is not None:
            # The recorded learner's log-probabilities before its update; the sampler's where it
            # computed none.
            learner = s.learner[sequence.sampled]
            behavior[b, places] = np.where(np.isnan(learner), sampler[b, places], learner)
    cut = LIMIT_ENDINGS if config.learning.mask_truncated else ()
    out = [r.reward is None or not r.kept or r.ended in cut for _, r, _ in flat]
    real_bs = torch.from_numpy(real)
    return Experience(
        sequences=sequences,
        rollouts_b=torch.tensor([sequence.rollout for sequence in sequences]),
        groups_b=torch.tensor([sequence.group for sequence in sequences]),
        mask_bs=loss_mask(torch.full(real.shape, MODEL), real_bs, torch.tensor(out)),
        real_bs=real_bs,
        sampler_bs=torch.from_numpy(sampler),
        turns_bs=torch.from_numpy(turns),
        supports=supports,
        behavior_bs=torch.from_numpy(behavior) if recorded else None,
    )


def _most_tokens(config: Config) -> int:
    return config.sampling.max_tokens * config.sampling.max_turns


class Learner:
    """Computes log-probabilities and makes updates; loss, packing and schedule can be replaced."""

    def __init__(
        self,
        policy: Policy,
        optimizer: Optimizer,
        config: Config,
        *,
        objective: Objective = objective,
        pack: Callable[..., list[MicroBatch]] = pack,
        schedule: Callable[[Learning, int], float] = learning_rate,
        free: Callable[[torch.device], float] = learner_memory,
    ) -> None:
        self._ranks: Ranks = OneRank()
        self._policy = policy
        self._optimizer = optimizer
        self._config = config
        self._objective = objective
        self._pack = pack
        self._schedule = schedule
        self._free = free
        self._dropout = config.model.lora is not None and config.model.lora.dropout > 0
        self._recomputes = config.model.gradient_checkpointing
        self.fitted: Fitted | None = None  # result of the measurement where `learning.tokens` is 0
        device = policy.device
        self._worth = MIN_SHARED_PROMPT_SHARE[device.type]
        self._shapes = Shapes(is_free=device.type == "cpu")
        self._packed: tuple[Experience | None, dict[tuple[int, ...], list[MicroBatch]]] = (None, {})
        self._by_policy = Graphed(self._look, device)
        self._by_reference = Graphed(partial(self._look, reference=True), device)
        self._by_gradient = Graphed(self._gradient, device, harmless=_weightless)
        self._seconds = list[float]()  # of updates, while it is open whether to compile

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
        self._fit(exp)
        out_bs = torch.full(_padded_shape(exp), torch.inf, device=self._policy.device)
        graphed = self._by_reference if reference else self._by_policy
        forward: Any = graphed if self._has_graphs else partial(self._look, reference=reference)
        with self._policy.as_reference() if reference else torch.no_grad():
            # In the micro-batches of the update: another layout rounds otherwise, by 0.03 nats in
            # bf16, and GSPO clips ratios that leave 1 by 0.0003.
            for rows in self._minibatches(exp):
                for micro, is_own in self._passes(exp, self._teaching(rows, advantages_bs)):
                    (logprobs_m,) = forward(*micro.inputs)
                    if is_own:
                        out_bs[_sequences_of(micro), micro.places_m] = logprobs_m
        return self._collect(out_bs)

    def update(
        self,
        exp: Experience,
        advantages_bs: Tensor,
        step: int,
        *,
        old_bs: Tensor | None,
        reference_bs: Tensor | None,
    ) -> Update:
        """Make all of a step's optimizer updates; `old_bs` is needed where there is more than one.

        Ratios are against `old_bs`, or against the policy that sampled where the experience knows
        it.
        """
        self._fit(exp)
        learning = self._config.learning
        device = self._policy.device
        logprobs_bs = torch.full(_padded_shape(exp), torch.inf, device=device)
        weights_bs = torch.zeros(exp.sampler_bs.shape, device=device)
        mask_bs, sampler_bs, rollouts_b = (
            x.to(device) for x in (exp.mask_bs, exp.sampler_bs, exp.rollouts_b)
        )
        before_bs = old_bs if exp.behavior_bs is None else exp.behavior_bs.to(device)
        given_bs = advantages_bs.to(device)
        lr = self.rate(step)
        applied = list[Applied]()
        padding = torch.zeros(2)
        total = torch.zeros(len(fields(Sums)), device=device)
        minibatches = self._minibatches(exp)
        for number, rows in enumerate(minibatches * learning.updates, 1):
            on = rows.to(device)
            # Weights are those of the whole mini-batch, so that gradients of micro-batches simply
            # add up.
            whole = prepare(
                mask_bs[on],
                rollouts_b[on],
                given_bs[on],
                learning,
                _most_tokens(self._config),
                old_bt=None if before_bs is None else before_bs[on],
                sampler_bt=sampler_bs[on],
                reference_bt=None if reference_bs is None else reference_bs[on],
            )
            weights_bs[on] = whole.weights_bt
            place = torch.zeros(len(exp.sequences), dtype=torch.long, device=device)
            place[on] = torch.arange(len(on), device=device)
            for micro, is_own in self._passes(exp, self._teaching(rows, advantages_bs)):
                is_real_m = micro.places_m < weights_bs.shape[1]
                sequences_m = _sequences_of(micro)
                # Of a filler nothing is in the mask: its old log-probabilities may be NaN.
                part = whole.tokens(
                    place[sequences_m], micro.places_m * is_real_m, is_real_m & is_own
                )
                gradient = self._by_gradient if self._has_graphs else self._gradient
                inputs = *micro.inputs, *(getattr(part, name) for name in BATCH)
                logprobs_m, sums = gradient(*(inputs if is_own else _weightless(inputs)))
                if not is_own:
                    continue
                if number > len(minibatches) * (learning.updates - 1):  # the last pass
                    total = total + sums
                logprobs_bs[sequences_m, micro.places_m] = logprobs_m
                padding += torch.tensor([micro.padding, 1.0])
            if not self._policy.is_sharded:
                self._ranks.all_reduce(self._policy.flat.gradient)
            applied.append(self._optimizer.apply(lr))
        whole_pass = Sums(*self._ranks.all_reduce(total.cpu()))
        padding = self._ranks.all_reduce(padding)
        # Each mini-batch has a whole loss of its own.
        names = "policy_loss", "kl_loss", "entropy_bonus"
        losses = {name: getattr(whole_pass, name) / len(minibatches) for name in names}
        return Update(
            learner_bs=(self._collect(logprobs_bs) if old_bs is None else old_bs).cpu(),
            reference_bs=None if reference_bs is None else reference_bs.cpu(),
            weights_bs=weights_bs.cpu(),
            advantages_bs=advantages_bs.cpu(),
            sums=replace(whole_pass, **losses),
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
        """True where log-probabilities before the update must be computed apart from it."""
        learning = self._config.learning
        return (
            learning.updates * learning.minibatches > 1
            or self._dropout
            or learning.kl.estimator == "k1"
        )

    @property
    def _has_graphs(self) -> bool:
        """True where the update runs as CUDA graphs, on a GPU."""
        # Activations that are recomputed come with a random state, which a graph can't remember; a
        # mask is made on the host. Weights that are sharded come and go.
        return not self._recomputes and self._policy.packs and not self._policy.is_sharded

    def _look(self, *inputs: Any, reference: bool = False) -> tuple[Tensor]:
        return self._forward(*inputs, reference=reference)[:1]

    def _gradient(self, *inputs: Any) -> tuple[Tensor, Tensor]:
        """Add a micro-batch's gradient; forward, objective and backward as one function of tensors,
        for a graph.
        """
        micro = inputs[: len(INPUTS)]
        given = inputs[len(INPUTS) :]
        part = Batch(**dict(zip(BATCH, given, strict=True)))
        # Training mode only where it matters: for dropout, and for transformers' gradient
        # checkpointing.
        self._policy.model.train(self._dropout or self._recomputes)
        try:
            logprobs_m, entropy_m = self._forward(*micro)
            # Without a bonus no gradient of the entropy is needed, and none is computed.
            entropy_m = entropy_m if self._config.learning.entropy else entropy_m.detach()
            loss, sums = self._objective(
                logprobs_m[None], entropy_m[None], part, self._config.learning
            )
            self._policy.backward(loss)
        finally:
            self._policy.model.eval()
        return logprobs_m.detach(), torch.stack(
            [getattr(sums, f.name).float() for f in fields(sums)]
        )

    def consider_compiling(self, seconds: float, steps_left: int) -> None:
        """Compile where the rest of the run is long enough to win the time back; `seconds` is what
        an update took.
        """
        is_open = self._config.compute.compile == "auto" and not self._policy.compiled
        # A sampler keeps layers from running compiled, in all threads: one that works meanwhile
        # would at random.
        is_open &= not self._config.sampling.ahead and not self._policy.is_sharded
        if not is_open or self._policy.device.type != "cuda":
            return
        self._seconds.append(seconds)
        # The first ones load and capture; the fastest of the last few is what the others would
        # take.
        if (
            min(self._seconds[-3:]) * COMPILE_SAVES * steps_left > 2 * COMPILE_SECONDS
            and len(self._seconds) >= 4
        ):
            self._policy.compile()
            for graphed in (self._by_policy, self._by_reference, self._by_gradient):
                graphed.forget()

    def _minibatches(self, exp: Experience) -> list[Tensor]:
        """Sequences of each optimizer update of a pass, whole groups together."""
        parts = torch.arange(int(exp.groups_b.max()) + 1).chunk(self._config.learning.minibatches)
        return [torch.isin(exp.groups_b, part).nonzero().squeeze(1) for part in parts]

    def _teaching(self, rows: Tensor, advantages_bs: Tensor | None) -> list[int]:
        """Return the sequences that go through the model: all, or those that are not dead."""
        if advantages_bs is not None and self._config.learning.skip_dead:
            rows = rows[(advantages_bs[rows] != 0).any(1)]
        return rows.tolist()

    def _passes(self, exp: Experience, numbers: list[int]) -> Iterator[tuple[MicroBatch, bool]]:
        """Yield the micro-batches of this rank, and whether they are its own.

        Where weights are sharded every rank makes as many passes: what others have more is filled
        up with one sequence.
        """
        if self._ranks.count > 1:  # the largest groups first, so that shares are about even
            tokens = Counter[int]()
            for b in numbers:
                tokens[int(exp.groups_b[b])] += exp.sequences[b].width
            mine = set(self._ranks.shard(sorted(tokens, key=lambda group: (-tokens[group], group))))
            numbers = [b for b in numbers if int(exp.groups_b[b]) in mine]
        micros = self._micros(exp, numbers)
        # One at least: without a pass there would be no gradient, not even one of 0.
        most = (
            max(1, *self._ranks.exchange(len(micros))) if self._policy.is_sharded else len(micros)
        )
        yield from ((micro, True) for micro in micros)
        widths = {b: sequence.width for b, sequence in enumerate(exp.sequences) if sequence.width}
        if most > len(micros) and widths:
            shortest = min(widths, key=lambda b: widths[b])
            (filler,) = self._micros(exp, [shortest])
            yield from [(filler, False)] * (most - len(micros))

    def _collect(self, found_bs: Tensor) -> Tensor:
        """Join what each rank computed; NaN where nobody did, and without the place for filler."""
        found_bs = found_bs[:, :-1]
        is_known_bs = ~found_bs.isposinf()
        if self._ranks.count > 1:
            both = torch.stack([found_bs.where(is_known_bs, 0.0), is_known_bs.to(found_bs.dtype)])
            found_bs, shared_bs = self._ranks.all_reduce(both)
            is_known_bs = shared_bs > 0
        return found_bs.where(is_known_bs, torch.nan)

    def _micros(self, exp: Experience, numbers: Sequence[int]) -> list[MicroBatch]:
        """Pack sequences into micro-batches, once for all passes over the same sequences."""
        wanted = tuple(b for b in numbers if len(exp.sequences[b].sampled))
        if self._packed[0] is not exp:
            self._packed = (exp, {})
        if wanted not in self._packed[1]:
            tokens = self._config.learning.tokens if self.fitted is None else self.fitted.tokens
            tokens = tokens if self._policy.packs else min(tokens, MAX_MASKED_TOKENS)
            longest = exp.sampler_bs.shape[1]
            micros = (
                self._pack(exp.sequences, wanted, tokens, self._worth, self._shapes, longest)
                if wanted
                else []
            )
            self._packed[1][wanted] = [
                self._shaped(micro, exp).to(self._policy.device) for micro in micros
            ]
        return self._packed[1][wanted]

    def adopt(self, fitted: dict[str, Any]) -> None:
        """Take the result of an earlier measurement, of the run that goes on."""
        self.fitted = Fitted(**fitted)
        self._recompute(self.fitted.gradient_checkpointing)

    def _recompute(self, wish: bool) -> None:
        if wish and not self._config.model.gradient_checkpointing:
            self._policy.core.gradient_checkpointing_enable({"use_reentrant": False})
        self._recomputes = wish

    def _fit(self, exp: Experience) -> None:
        """Measure how many tokens fit into memory, where asked; recompute activations where a
        rollout might not.
        """
        if self._config.learning.tokens or self.fitted is not None or not exp.real_bs.any():
            return
        if self._policy.is_sharded:
            raise ConfigError(
                "learning.tokens = 0 measures what fits into one process. Sharded weights need a"
                " number."
            )
        asked = self._config.model.gradient_checkpointing
        device = self._policy.device
        free = self._free(device)
        longest = max(len(sequence.ids) for sequence in exp.sequences)
        fits = 0
        if device.type == "cpu":  # which ranks on one machine share
            free /= int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
        if not self._optimizer.has_memory:  # it makes two numbers per weight at its first step
            free -= 2 * self._policy.flat.values.nbytes
        # Before any gradient of the step, which passes of a measurement would be added to.
        random = torch.random.fork_rng([device] if device.type == "cuda" else [])  # dropout draws
        with torch.enable_grad(), random:
            for recompute in (True,) if asked else (False, True):
                self._recompute(recompute)
                # A graph keeps the memory of a pass for itself, beside that of passes without one.
                has_graphs = device.type == "cuda" and self._has_graphs
                fits, each = max_tokens_that_fit(
                    partial(self._try, exp), device, free / 2 if has_graphs else free
                )
                fits = min(self._ranks.exchange(fits))
                self.fitted = Fitted(fits, recompute, each, free / 2**30)
                if fits >= self._config.sampling.context:
                    break
        self._policy.flat.gradient.zero_()
        if fits < longest:
            raise ModelError(
                f"A rollout of {longest:,} tokens does not fit into {free / 2**30:.2g} GiB of free"
                " memory, even with gradient checkpointing. Use a smaller model, model.lora, or a"
                " lower sampling.context."
            )

    def _try(self, exp: Experience, tokens: int) -> int:
        """Make a pass over so many tokens at least, of the longest answer again and again; return
        how many they are.
        """
        sequence = max(exp.sequences, key=lambda sequence: len(sequence.sampled))
        device = self._policy.device
        count = -(-tokens // sequence.width)
        sampled = len(sequence.sampled)
        sequences = [replace(sequence, group=i, rollout=i) for i in range(count)]
        (micro,) = pack(sequences, range(count), 1 << 60, self._worth, Shapes(), sampled)
        ones_bs = torch.ones(count, sampled, device=device)
        given = dict.fromkeys(("old_bt", "sampler_bt", "reference_bt"), ones_bs)
        rollouts_b = torch.arange(count, device=device)
        batch = prepare(
            ones_bs > 0, rollouts_b, 0 * ones_bs, self._config.learning, sampled, **given
        )
        micro = micro.to(device)
        part = batch.tokens(micro.sequences_m, micro.places_m, micro.places_m < sampled)
        self._gradient(*micro.inputs, *(getattr(part, name) for name in BATCH))
        return len(micro.ids_t)

    def _shaped(self, micro: MicroBatch, exp: Experience) -> MicroBatch:
        """Add what the sampler did to the distributions of a micro-batch's tokens."""
        is_real_m = micro.places_m.numpy() < exp.sampler_bs.shape[1]  # the others only fill up
        supports = [support for b in micro.numbers if (support := exp.supports[b]) is not None]
        if len(supports) == len(micro.numbers):
            sizes = np.concatenate([support[0] for support in supports])
            width = int(sizes.max())
            width = width if self._shapes.is_free else 1 << (width - 1).bit_length()
            support_mk = np.repeat(micro.targets_m.numpy()[:, None], width, 1)
            holes = np.zeros(support_mk.shape, bool)
            holes[is_real_m] = np.arange(width) < sizes[:, None]
            support_mk[holes] = np.concatenate([support[1] for support in supports])
            micro = replace(micro, support_mk=torch.from_numpy(support_mk))
        if self._config.sampling.repetition_penalty != 1:
            sequences = [exp.sequences[b] for b in micro.numbers]
            contexts_st = np.zeros(
                (len(sequences), max(len(sequence.ids) for sequence in sequences)), np.int64
            )
            for context_t, sequence in zip(contexts_st, sequences, strict=True):
                context_t[: len(sequence.ids)] = sequence.ids
            ends_m = np.ones(len(is_real_m), np.int64)
            ends_m[is_real_m] = np.concatenate([sequence.sampled for sequence in sequences])
            micro = replace(
                micro, contexts_st=torch.from_numpy(contexts_st), ends_m=torch.from_numpy(ends_m)
            )
        return micro

    def _forward(self, *inputs: Any, reference: bool = False) -> tuple[Tensor, Tensor]:
        given = dict(zip(INPUTS, inputs, strict=True))
        sampling = self._config.sampling
        shaping = Shaping(
            given["support_mk"],
            sampling.repetition_penalty,
            given["contexts_st"],
            given["sequences_m"],
            given["ends_m"],
        )
        packed = Packed(
            *(given[x] for x in ("starts_n", "key_starts_n", "longest", "longest", "keys_k"))
        )
        row = (
            given["ids_t"],
            given["positions_t"],
            packed,
            given["predictors_m"],
            given["targets_m"],
        )
        return self._policy.score(*row, sampling.temperature, shaping=shaping, reference=reference)


def _weightless(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the inputs with weights of 0: their gradient is 0 as well."""
    names = [*INPUTS, *BATCH]
    return tuple(x * 0 if "weights" in name else x for name, x in zip(names, inputs, strict=True))


def _sequences_of(micro: MicroBatch) -> Tensor:
    return torch.tensor(micro.numbers, device=micro.sequences_m.device)[micro.sequences_m]


def _padded_shape(exp: Experience) -> tuple[int, int]:
    # One place more than the longest sequence needs: tokens that only fill up a shape are written
    # there.
    return exp.sampler_bs.shape[0], exp.sampler_bs.shape[1] + 1
