"""The bench that probes work on: the parts of the training loop, one step's rollouts, and weights
that come back.

Parts come from the run's components, as in the loop: a fault in any of them shows here as it would
in training. What is expensive is made once and shared: the rollouts, the learner's
log-probabilities, and one real update.

b = sequence, s = sampled token of it.
"""

import asyncio
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from uptrend.algo.losses import k3
from uptrend.config import Config, to_table
from uptrend.doctor.catalogue import complete_fix, settings_in_force
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
from uptrend.rollout.play import RolloutRequest, derive, derive_open_seed
from uptrend.rollout.render import Renderer, make_renderer
from uptrend.rollout.sampler import Extension, Limits, Sampler
from uptrend.tasks import event_loop
from uptrend.tasks.pool import Cursor
from uptrend.tasks.proof import ScoredPlay
from uptrend.tasks.taskset import Taskset, known_gold
from uptrend.training.components import RunContext
from uptrend.training.gather import Gathered, RolloutPlayer
from uptrend.training.learner import Experience, Learner, Update
from uptrend.training.loop import learn

BATCH = 32  # rollouts of the one real update: enough to tell signs apart, and seconds on a CPU
NUDGE = 0.03  # nats by which outputs move in `Updated.nudged_bs`
DEMONSTRATED = 16  # tasks that the expert plays

T = TypeVar("T")
Plays = Sequence[tuple[Task, Taskset]]


@dataclass(frozen=True)
class Updated:
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


class RecordingSampler:
    """The sampler that training uses; keeps the tokens of streams that have ended."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._open: dict[int, tuple[list[int], list[int]]] = {}
        self.streams: list[tuple[list[int], list[int]]] = []  # read and said

    async def extend(self, stream: int, ids: Sequence[int], limits: Limits, seed: int) -> Extension:
        read, said = self._open.setdefault(stream, ([], []))
        read += ids
        extension = await self._sampler.extend(stream, ids, limits, seed)
        said += extension.ids.tolist()
        return extension

    def release(self, stream: int) -> None:
        if stream in self._open:
            self.streams.append(self._open.pop(stream))
        self._sampler.release(stream)

    async def load(self, weights: Iterable[tuple[str, Tensor]] | Path, version: int) -> None:
        await self._sampler.load(weights, version)


class GradientCatcher:
    """Stands in for the optimizer: keeps each gradient and changes nothing."""

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

    def __init__(self, context: RunContext, groups: int) -> None:
        """Take a recipe's parts; the probes play `groups` groups, or as many as there are tasks."""
        self.config = context.config
        self.policy = context.policy
        self.pool = context.pool
        self.heldout = context.heldout
        self.components = context.components
        self.has_compared_chat = context.has_compared_chat
        self.stage = context.pool.stages[0]
        self.groups = min(groups, len(self.stage.tasks))
        self.original = self.policy.flat.values.data.clone()
        self.sampler = RecordingSampler(self.components.sampler(self.policy))
        self._player = RolloutPlayer(self.policy, self.sampler, self.config)
        self._made: dict[object, Any] = {}
        self._view = RunView(
            source=self.config.name,
            trainer="uptrend",
            name=self.config.name,
            steps=np.zeros(0, np.int64),
            metrics={},
            config=to_table(self.config),
            rollout_steps=(0,),
        )

    def found(
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
        observed = [seen(evidence, value, rollout)] if isinstance(evidence, str) else evidence
        cause = make_finding(self._view, id, severity, basis, summary, observed)
        return (
            cause
            if fix is None
            else replace(
                cause, fix=complete_fix(fix, self._view.trainer, settings_in_force(self._view))
            )
        )

    @property
    def more_turns(self) -> Fix:
        """Fix for rollouts that are cut by turns; the catalogue's is for those cut by tokens."""
        turns = {"sampling.max_turns": 2 * self.config.sampling.max_turns}
        return Fix("Give rollouts as many turns as the task takes.", {"uptrend": turns})

    def more_tokens(self, needed: int) -> Fix:
        """Fix for answers that are longer than a turn may be."""
        tokens = {"sampling.max_tokens": 2 ** (needed - 1).bit_length()}
        return Fix(
            "Give a turn as many tokens as the longest right answer takes.", {"uptrend": tokens}
        )

    @cached_property
    def tasks(self) -> dict[str, tuple[Task, Taskset]]:
        """Every training task by id, with its taskset; the first stage's where several have it."""
        return {
            task.id: (task, stage.taskset)
            for stage in reversed(self.pool.stages)
            for task in stage.tasks
        }

    def few(self, most: int) -> int:
        """Return the number of plays of a kind that a probe may make: slow tasksets say how many
        they allow.
        """
        return min(most, getattr(self.stage.taskset, "FEW_PLAYS", most))

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
        """Renders messages of the first stage into the model's tokens."""
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
        """Tasks of the rollouts."""
        return [
            self.tasks[t]
            for t in dict.fromkeys(r.task for r in self.rollouts if r.task in self.tasks)
        ]

    @cached_property
    def batch(self) -> list[Rollout]:
        """Whole groups, about `BATCH` rollouts, in their order."""
        names = list(by_group(self.rollouts))[: max(1, BATCH // self.config.sampling.size)]
        return [r for r in self.rollouts if r.group in names]

    @cached_property
    def demonstrations(self) -> list[Rollout]:
        """The expert's rollouts on training tasks that have one, in the model's tokens."""
        taskset = self.stage.taskset
        seed = self.config.seed
        tasks = [
            task for task in self.stage.tasks[: self.few(DEMONSTRATED)] if known_gold(taskset, task)
        ]
        requests = [
            RolloutRequest(task, taskset, 0, f"gold-{n}", 0, 0, derive_open_seed(seed, f"gold-{n}"))
            for n, task in enumerate(tasks)
        ]
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
        sampling = config.sampling
        player = RolloutPlayer(self.policy, self.sampler, config)
        seed = config.seed
        requests = [
            RolloutRequest(
                task, taskset, 0, group, i, derive(seed, word, n, i), derive_open_seed(seed, group)
            )
            for n, (task, taskset) in enumerate(tasks)
            for group in [f"{word}-{n:04d}"]
            for i in range(size)
        ]
        return player.play(requests, temperature=sampling.temperature)

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

        The last `late` of them begin when the first ones have had two answers: what these have done
        is then there.
        """
        plays = [self.tasks[r.task] for r in rollouts] if plays is None else plays
        turns = [r.model_messages for r in rollouts] if turns is None else turns
        seeds = [derive_open_seed(self.config.seed, r.group) for r in rollouts]

        async def run() -> list[ScoredPlay]:
            events = [asyncio.Event() for _ in rollouts]
            waits: list[list[asyncio.Event]] = [[]] * (len(events) - late) + [
                events[: len(events) - late]
            ] * late
            waiting = [_say(*each) for each in zip(turns, plays, seeds, events, waits, strict=True)]
            return (
                await event_loop.together(waiting) if at_once else [await each for each in waiting]
            )

        return event_loop.run(run())

    @property
    def exact(self) -> bool:
        """True where arithmetic is fp32, so that equal things are equal to rounding."""
        return self.policy.device.type == "cpu" and self.policy.flat.values.dtype == torch.float32

    def near(self, fp32: float, bf16: float) -> float:
        """Choose the tolerance that goes with the arithmetic."""
        return fp32 if self.exact else bf16

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
        return self.components.learner(
            self.policy, cast(Optimizer, GradientCatcher(self.policy)), self.config
        )

    def experience(self, rollouts: Sequence[Rollout], config: Config | None = None) -> Experience:
        """Lay rollouts out for the learner."""
        config = config or self.config
        s = config.sampling
        longest = max(r.sampled_tokens for r in rollouts)
        if longest > s.max_tokens * s.max_turns:  # the expert's: no limit cuts them
            config = replace(config, sampling=replace(s, max_tokens=longest))
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
    def updated(self) -> Updated:
        """One real update at the recipe's full learning rate on `batch`."""
        return self.try_update(self.batch, self.config)

    def try_update(self, rollouts: list[Rollout], config: Config, step: int = 0) -> Updated:
        """Make one real update, by default at the full learning rate; measure it and undo it."""
        exp = self.experience(rollouts, config)
        with self.scratch():
            learner, optimizer = self.make_learner(config)
            meter = WeightMeter(self.policy.flat)
            before_bs = self.logprobs(exp, learner)
            meter.before()
            update, *_ = learn(
                self.components,
                learner,
                exp,
                rollouts,
                step or max(1, config.learning.warmup),
                config,
            )
            moved = meter.after()
            after_bs = self.logprobs(exp, learner)
            self.move_along(
                self.original, NUDGE / max(1e-5, distance(after_bs, before_bs, exp.real_bs))
            )
            nudged_bs = self.logprobs(exp, learner) if self.exact else after_bs
            share = optimizer.reached()
        return Updated(update, exp, rollouts, before_bs, after_bs, nudged_bs, moved, share)

    def move_along(self, start: Tensor, part: float) -> None:
        """Put weights this part of the way from `start` to where they are; more than 1 goes
        beyond.
        """
        self.policy.flat.values.data.sub_(start).mul_(part).add_(start)

    def once(self, make: "Callable[[Bench], T]") -> T:
        """Return `make(bench)`, computed once: several probes may share it."""
        if make not in self._made:
            self._made[make] = make(self)
        return cast(T, self._made[make])


@contextmanager
def random_state_kept(policy: Policy) -> Iterator[None]:
    """Restore random states and the model's mode at the end."""
    states = (random.getstate(), np.random.get_state())
    training = policy.model.training
    try:
        with torch.random.fork_rng(range(torch.cuda.device_count())):
            yield
    finally:
        policy.model.train(training)
        random.setstate(states[0])
        np.random.set_state(states[1])


def seen(
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


def distance(a_bs: Tensor, b_bs: Tensor, real_bs: Tensor) -> float:
    """Return the mean distance of log-probabilities, in nats."""
    return float((a_bs - b_bs)[real_bs].abs().nanmean())


def kl_between(policy_bs: Tensor, other_bs: Tensor, real_bs: Tensor) -> float:
    """Estimate KL(policy ‖ other) on tokens that the policy sampled, by k3."""
    return float(k3(policy_bs, other_bs)[real_bs].nanmean())


async def _say(
    said: Sequence[Message],
    played: tuple[Task, Taskset],
    seed: int,
    is_on: asyncio.Event,
    after: list[asyncio.Event],
) -> ScoredPlay:
    for other in after:
        await other.wait()
    task, taskset = played
    play = taskset.open(task, seed)
    observed = list[tuple[str, ...]]()
    try:
        observed.append(tuple(m.content for m in play.messages))
        for message in said:
            await asyncio.sleep(0)  # others take their turn in between, as in training
            observed.append(tuple(m.content for m in await play.respond(message) or ()))
            if len(observed) > 2:
                is_on.set()
        return ScoredPlay(tuple(observed), await play.score())
    except Exception as error:  # a task's own failure is an observation too
        return ScoredPlay((*observed, (f"{type(error).__name__}: {error}",)), None, error)
    finally:
        is_on.set()
        await play.close()
