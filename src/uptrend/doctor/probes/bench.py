"""The bench that probes work on: the parts of the training loop, one step's rollouts, and weights
that come back.

Parts come from the run's components, as in the loop: a fault in any of them shows here as it would
in training. What is expensive is made once and shared: the rollouts, the learner's
log-probabilities, and one real update.

b = sequence, s = sampled token of it.
"""

import asyncio
import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from uptrend.algo.losses import k3
from uptrend.config import Config, to_table
from uptrend.doctor.check import make_finding
from uptrend.policy.optimizer import Applied, Optimizer
from uptrend.policy.policy import Policy
from uptrend.policy.weights import Movement, WeightMeter
from uptrend.records import (
    Basis,
    Evidence,
    Finding,
    Fix,
    Message,
    Rollout,
    RunView,
    Severity,
    Task,
    Tool,
)
from uptrend.records import Sequence as TokenSequence
from uptrend.rollout.play import RolloutRequest, derive_open_seed, derive_seed
from uptrend.rollout.render import Renderer, make_renderer
from uptrend.rollout.sampler import Extension, Limits, Sampler
from uptrend.tasks import event_loop
from uptrend.tasks.pool import Cursor, eval_sections
from uptrend.tasks.proof import ScoredPlay
from uptrend.tasks.taskset import Taskset, known_gold
from uptrend.training.components import RunContext
from uptrend.training.gather import Gathered, RolloutPlayer
from uptrend.training.learner import Experience, Learner, Update
from uptrend.training.loop import learn

# Rollouts of the one real update: enough to tell signs apart, and seconds on a CPU.
UPDATE_ROLLOUTS = 32
# Mean distance that log-probabilities move in `TrialUpdate.nudged_bs`: far above rounding in fp32,
# and small enough that the first-order effect of the update decides.
NUDGE_NATS = 0.03
# An update that moves less than this is scaled as if it moved this much: no division by 0.
MIN_UPDATE_NATS = 1e-5
# Tasks that the expert plays.
DEMONSTRATED_TASKS = 16

T = TypeVar("T")
Plays = Sequence[tuple[Task, Taskset]]


@dataclass(frozen=True)
class TrialUpdate:
    """One real update and its effect; the weights are back where they were."""

    update: Update
    exp: Experience
    rollouts: list[Rollout]
    before_bs: Tensor  # learner's log-probabilities before the update
    after_bs: Tensor
    # log-probabilities a little way along the update, where they show its effect to first order
    nudged_bs: Tensor
    moved: Movement
    gradient_share: float  # share of weights that had a gradient


@dataclass(frozen=True)
class TokenStream:
    """Tokens that went into one stream of the sampler, and those that came out."""

    read: list[int] = field(default_factory=list)
    sampled: list[int] = field(default_factory=list)


class RecordingSampler:
    """The sampler that training uses; keeps the tokens of streams that have ended."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._open: dict[int, TokenStream] = {}
        self.streams: list[TokenStream] = []

    async def extend(self, stream: int, ids: Sequence[int], limits: Limits, seed: int) -> Extension:
        tokens = self._open.setdefault(stream, TokenStream())
        tokens.read.extend(ids)
        extension = await self._sampler.extend(stream, ids, limits, seed)
        tokens.sampled.extend(extension.ids.tolist())
        return extension

    def release(self, stream: int) -> None:
        if stream in self._open:
            self.streams.append(self._open.pop(stream))
        self._sampler.release(stream)

    async def load(self, weights: Iterable[tuple[str, Tensor]] | Path, version: int) -> None:
        await self._sampler.load(weights, version)


class GradientCatcher:
    """Takes the optimizer's place: keeps each gradient and changes no weight."""

    has_memory = True  # it never makes one

    def __init__(self, policy: Policy) -> None:
        self._flat = policy.flat
        self.gradients = list[Tensor]()

    def apply(self, lr: float) -> Applied:  # noqa: ARG002 (the optimizer's signature)
        self.gradients.append(self._flat.gradient.clone())
        self._flat.gradient.zero_()
        return Applied(0.0, 0.0, skipped=False)


class Bench:
    """One recipe's parts, ready to be probed."""

    def __init__(
        self, context: RunContext, groups: int, original: Tensor | None = None, source: str = ""
    ) -> None:
        """Take a recipe's parts; the probes play `groups` groups, or as many as there are tasks.

        `original` is a copy of the weights, if another bench has one; `source` is the label of the
        source that the parts are of, if there are several.
        """
        self._context = context
        self.source = source
        self.config = context.config
        self.policy = context.policy
        self.pool = context.pool
        self.heldout = context.heldout
        self.components = context.components
        self.has_compared_chat = context.has_compared_chat
        self.stage = context.pool.stages[0]
        self.groups = min(groups, len(self.stage.tasks))
        # Most groups of a step of the run that have its tasks: of one of several sources its share.
        self.step_groups = self.config.sampling.groups
        self.original = self.policy.flat.values.data.clone() if original is None else original
        self.sampler = RecordingSampler(self.components.sampler(self.policy))
        self._player = RolloutPlayer(self.policy, self.sampler, self.config)
        self._shared: dict[object, Any] = {}
        self._view = RunView(
            source=self.config.name,
            trainer="uptrend",
            name=self.config.name,
            steps=np.zeros(0, np.int64),
            metrics={},
            config=to_table(self.config),
            rollout_steps=(0,),
        )

    @cached_property
    def by_source(self) -> "list[Bench]":
        """A bench for each of several sources, with its tasks alone; this one if there is one."""
        config = self.config
        benches: list[Bench] = []
        total_weight = sum(source.weight for source in config.sources)
        for source, pool in zip(config.sources, self.pool.sources, strict=False):
            heldout = self.heldout
            evaluation = config.eval
            if heldout.joined:
                heldout = heldout.sets[source.label]
                evaluation = eval_sections(config)[source.label]
            own_config = replace(config, tasks=source.tasks, sources=(), eval=evaluation)
            context = replace(self._context, config=own_config, pool=pool, heldout=heldout)
            bench = Bench(context, self.groups, self.original, source.label)
            bench.step_groups = math.ceil(self.step_groups * source.weight / total_weight)
            benches.append(bench)
        return benches or [self]

    def finding(
        self,
        id: str,
        severity: Severity,
        summary: str,
        evidence: str | Sequence[Evidence],
        value: float | None = None,
        rollout: Rollout | None = None,
        basis: Basis = Basis.PROOF,
        fix: Fix | None = None,
    ) -> Finding:
        """Make a finding on this recipe; `value` and `rollout` go with evidence in one sentence."""
        if isinstance(evidence, str):
            evidence = [make_evidence(evidence, value, rollout)]
        return make_finding(self._view, id, severity, basis, summary, evidence, fix)

    @property
    def more_turns(self) -> Fix:
        """Fix for rollouts that are cut by turns; the catalogue's is for those cut by tokens."""
        turns = {"sampling.max_turns": 2 * self.config.sampling.max_turns}
        return Fix("Give rollouts as many turns as the task takes.", {"uptrend": turns})

    def more_tokens(self, needed: int) -> Fix:
        """Return the fix for answers that are longer than a turn may be: the next power of 2."""
        tokens = {"sampling.max_tokens": 2 ** (needed - 1).bit_length()}
        return Fix(
            "Give a turn as many tokens as the longest right answer takes.", {"uptrend": tokens}
        )

    @cached_property
    def tasks(self) -> dict[str, tuple[Task, Taskset]]:
        """Every training task by id, with its taskset; the first stage's if several have it."""
        tasks: dict[str, tuple[Task, Taskset]] = {}
        for stage in reversed(self.pool.stages):
            for task in stage.tasks:
                tasks[task.id] = (task, stage.taskset)
        return tasks

    def max_plays(self, wanted: int) -> int:
        """Return the number of plays of a kind that a probe may make: `wanted`, or the limit of a
        slow taskset.
        """
        return min(wanted, getattr(self.stage.taskset, "MAX_PROBE_PLAYS", wanted))

    @cached_property
    def tools(self) -> tuple[Tool, ...]:
        """Tools of the first task."""
        play = self.stage.taskset.open(self.stage.tasks[0], 0)
        try:
            return tuple(play.tools)
        finally:
            event_loop.run(play.close())

    @cached_property
    def renderer(self) -> Renderer:
        """Renderer of the first stage's messages into the model's tokens."""
        return make_renderer(self.policy, self.config, self.stage.taskset.chat)

    @cached_property
    def gathered(self) -> Gathered:
        """Groups of a first step, as training would draw and play them."""
        config = replace(self.config, sampling=replace(self.config.sampling, groups=self.groups))
        return self.components.gather(self._player, self.pool, Cursor(), 1, config)

    @property
    def rollouts(self) -> list[Rollout]:
        """Rollouts that training would learn from."""
        return self.gathered.rollouts

    @cached_property
    def played(self) -> list[Rollout]:
        """All rollouts of the step, those of dropped groups included."""
        return [*self.gathered.rollouts, *self.gathered.dropped]

    @property
    def drawn(self) -> list[tuple[Task, Taskset]]:
        """Tasks of the rollouts, each once, in their order."""
        ids = dict.fromkeys(rollout.task for rollout in self.rollouts)
        return [self.tasks[id] for id in ids if id in self.tasks]

    @cached_property
    def batch(self) -> list[Rollout]:
        """Whole groups, about `UPDATE_ROLLOUTS` rollouts, in their order."""
        n_groups = max(1, UPDATE_ROLLOUTS // self.config.sampling.size)
        names = list(by_group(self.rollouts))[:n_groups]
        return [rollout for rollout in self.rollouts if rollout.group in names]

    @cached_property
    def demonstrations(self) -> list[Rollout]:
        """The expert's rollouts on training tasks that have one, in the model's tokens."""
        taskset = self.stage.taskset
        requests = list[RolloutRequest]()
        for task in self.stage.tasks[: self.max_plays(DEMONSTRATED_TASKS)]:
            if known_gold(taskset, task):
                group = f"gold-{len(requests)}"
                seed = derive_open_seed(self.config.seed, group)
                requests.append(RolloutRequest(task, taskset, 0, group, 0, 0, seed))
        return self._player.demonstrate(requests)

    def play(self, tasks: Plays, size: int, word: str, **limits: float) -> list[Rollout]:
        """Play groups of some tasks; `word` makes their seeds, and `limits` replace values of
        [sampling].

        With other limits and the same word, rollouts say the same as far as the limits let them.
        """
        sampling = replace(self.config.sampling, **limits)  # type: ignore[arg-type]
        return self.play_under(replace(self.config, sampling=sampling), tasks, size, word)

    def play_under(self, config: Config, tasks: Plays, size: int, word: str) -> list[Rollout]:
        """Play groups of some tasks under another config; `word` makes their seeds."""
        requests = list[RolloutRequest]()
        for n, (task, taskset) in enumerate(tasks):
            group = f"{word}-{n:04d}"
            open_seed = derive_open_seed(config.seed, group)
            for i in range(size):
                seed = derive_seed(config.seed, word, n, i)
                requests.append(RolloutRequest(task, taskset, 0, group, i, seed, open_seed))
        player = RolloutPlayer(self.policy, self.sampler, config)
        return player.play(requests, temperature=config.sampling.temperature)

    def replay(
        self,
        rollouts: Sequence[Rollout],
        plays: Plays | None = None,
        turns: Sequence[Sequence[Message]] | None = None,
        *,
        at_once: bool = False,
        late: int = 0,
    ) -> list[ScoredPlay]:
        """Say each rollout's turns (or others) to its task (or another) again, one by one or all
        side by side.

        The last `late` of them begin when each of the others has had two answers: by then, what
        these leave behind is there.
        """
        if plays is None:
            plays = [self.tasks[rollout.task] for rollout in rollouts]
        if turns is None:
            turns = [rollout.model_messages for rollout in rollouts]
        n_early = len(rollouts) - late

        async def replay_all() -> list[ScoredPlay]:
            under_way = [asyncio.Event() for _ in rollouts]
            replays = []
            rows = zip(rollouts, plays, turns, under_way, strict=True)
            for i, (rollout, play, messages, is_under_way) in enumerate(rows):
                seed = derive_open_seed(self.config.seed, rollout.group)
                waits_for = under_way[:n_early] if i >= n_early else []
                replays.append(_replay(messages, play, seed, is_under_way, waits_for))
            if at_once:
                return await event_loop.together(replays)
            return [await replay for replay in replays]

        return event_loop.run(replay_all())

    @property
    def is_exact(self) -> bool:
        """True if arithmetic is fp32 on a CPU, so that equal things are equal to rounding."""
        return self.policy.device.type == "cpu" and self.policy.flat.values.dtype == torch.float32

    def tolerance(self, fp32: float, bf16: float) -> float:
        """Choose the tolerance that goes with the arithmetic."""
        return fp32 if self.is_exact else bf16

    @cached_property
    def exp(self) -> Experience:
        """The rollouts as the learner gets them."""
        return self.experience(self.rollouts)

    @cached_property
    def logprobs_bs(self) -> Tensor:
        """Learner's log-probabilities of the rollouts."""
        return self.logprobs(self.exp)

    @cached_property
    def learner(self) -> Learner:
        """A learner to compute log-probabilities with; its optimizer changes nothing."""
        catcher = cast(Optimizer, GradientCatcher(self.policy))
        return self.components.learner(self.policy, catcher, self.config)

    def experience(self, rollouts: Sequence[Rollout], config: Config | None = None) -> Experience:
        """Lay rollouts out for the learner."""
        config = config or self.config
        sampling = config.sampling
        longest = max(rollout.sampled_tokens for rollout in rollouts)
        # No limit cuts the expert's rollouts, so they may be longer than the model's can be.
        if longest > sampling.max_tokens * sampling.max_turns:
            config = replace(config, sampling=replace(sampling, max_tokens=longest))
        return self.components.layout(rollouts, config)

    def logprobs(
        self, exp: Experience, learner: Learner | None = None, *, reference: bool = False
    ) -> Tensor:
        """Compute log-probabilities of every sampled token, on the host."""
        return (learner or self.learner).logprobs(exp, reference=reference).cpu()

    def make_learner(self, config: Config) -> tuple[Learner, Optimizer]:
        """Make a learner that trains, with its optimizer."""
        optimizer = self.components.optimizer(self.policy.flat, config.learning)
        return self.components.learner(self.policy, optimizer, config), optimizer

    @contextmanager
    def scratch(self) -> Iterator[None]:
        """Let weights change inside; afterwards they and all random states are as before, and the
        sampler has them.
        """
        try:
            with random_state_kept(self.policy):
                yield
        finally:
            self.policy.flat.values.data.copy_(self.original)
            self.policy.flat.gradient.zero_()
            self.synchronize(0)

    def synchronize(self, version: int) -> None:
        """Give the sampler the weights as they are now, under a version."""
        event_loop.run(self.sampler.load(self.policy.named(), version))

    @cached_property
    def trial_update(self) -> TrialUpdate:
        """One real update at the recipe's full learning rate on `batch`."""
        return self.try_update(self.batch, self.config)

    def try_update(self, rollouts: list[Rollout], config: Config) -> TrialUpdate:
        """Make one real update at the full learning rate; measure it and undo it."""
        exp = self.experience(rollouts, config)
        first_full_step = max(1, config.learning.warmup)
        with self.scratch():
            learner, optimizer = self.make_learner(config)
            meter = WeightMeter(self.policy.flat)
            before_bs = self.logprobs(exp, learner)
            meter.remember()
            update, *_ = learn(self.components, learner, exp, rollouts, first_full_step, config)
            moved = meter.movement()
            after_bs = self.logprobs(exp, learner)

            update_nats = distance(after_bs, before_bs, exp.real_bs)
            self.move_along(self.original, NUDGE_NATS / max(MIN_UPDATE_NATS, update_nats))
            # bf16 weights round so small a way off: the whole update has to do.
            nudged_bs = self.logprobs(exp, learner) if self.is_exact else after_bs
            gradient_share = optimizer.reached()
        return TrialUpdate(
            update, exp, rollouts, before_bs, after_bs, nudged_bs, moved, gradient_share
        )

    def move_along(self, start: Tensor, part: float) -> None:
        """Put weights this part of the way from `start` to where they are; more than 1 goes
        beyond.
        """
        self.policy.flat.values.data.sub_(start).mul_(part).add_(start)

    def compute_once(self, compute: "Callable[[Bench], T]") -> T:
        """Return `compute(bench)`, computed once: several probes may share it."""
        if compute not in self._shared:
            self._shared[compute] = compute(self)
        return cast(T, self._shared[compute])


@contextmanager
def random_state_kept(policy: Policy) -> Iterator[None]:
    """Restore random states and the model's mode at the end."""
    python_state = random.getstate()
    numpy_state = np.random.get_state()
    is_training = policy.model.training
    try:
        with torch.random.fork_rng(range(torch.cuda.device_count())):
            yield
    finally:
        policy.model.train(is_training)
        random.setstate(python_state)
        np.random.set_state(numpy_state)


def make_evidence(
    text: str, value: float | None = None, rollout: Rollout | None = None, metric: str = ""
) -> Evidence:
    """Make evidence; a rollout is named as `uptrend runs show --rollout` takes it."""
    return Evidence(text, value, metric, rollout="" if rollout is None else rollout.name)


def by_group(rollouts: Iterable[Rollout]) -> dict[str, list[Rollout]]:
    """Sort rollouts by the id of their group."""
    groups: dict[str, list[Rollout]] = {}
    for rollout in rollouts:
        groups.setdefault(rollout.group, []).append(rollout)
    return groups


def with_sequences(rollouts: Iterable[Rollout]) -> list[tuple[Rollout, TokenSequence]]:
    """Return every sequence with its rollout, in the order of the learner's rows."""
    return [(rollout, sequence) for rollout in rollouts for sequence in rollout.sequences]


def distance(a_bs: Tensor, b_bs: Tensor, real_bs: Tensor) -> float:
    """Return the mean distance of log-probabilities, in nats."""
    return float((a_bs - b_bs)[real_bs].abs().nanmean())


def kl_between(policy_bs: Tensor, other_bs: Tensor, real_bs: Tensor) -> float:
    """Estimate KL(policy ‖ other) on tokens that the policy sampled, by k3."""
    return float(k3(policy_bs, other_bs)[real_bs].nanmean())


async def _replay(
    turns: Sequence[Message],
    played: tuple[Task, Taskset],
    seed: int,
    is_under_way: asyncio.Event,
    waits_for: list[asyncio.Event],
) -> ScoredPlay:
    """Say turns to a task and score it; set `is_under_way` after two answers, or at the end."""
    for other in waits_for:
        await other.wait()
    task, taskset = played
    play = taskset.open(task, seed)
    observed = list[tuple[str, ...]]()
    try:
        observed.append(tuple(message.content for message in play.messages))
        for turn in turns:
            await asyncio.sleep(0)  # others take their turn in between, as in training
            replies = await play.respond(turn) or ()
            observed.append(tuple(reply.content for reply in replies))
            if len(observed) > 2:  # the prompt and two answers
                is_under_way.set()
        return ScoredPlay(tuple(observed), await play.score())
    except Exception as error:  # a task's own failure is an observation too
        failure = (f"{type(error).__name__}: {error}",)
        return ScoredPlay((*observed, failure), None, error)
    finally:
        is_under_way.set()
        await play.close()
