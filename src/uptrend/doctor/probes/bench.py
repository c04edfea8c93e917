"""The bench that probes work on: the parts of the training loop, a step's rollouts, and weights that come back.

Parts come from the run's components, as in the loop: a fault in any of them shows here as it would in training.
What is expensive is made once and shared: the rollouts, the learner's log-probabilities, and one real update.

b = sequence, s = sampled token of it.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

import numpy as np
import torch
from torch import Tensor

from uptrend.config import Config, to_table
from uptrend.doctor.check import finding
from uptrend.doctor.probes.keep import kept
from uptrend.doctor.probes.tap import Tap
from uptrend.policy.optimizer import Applied, Optimizer
from uptrend.policy.policy import Policy
from uptrend.policy.weights import Movement, WeightMeter
from uptrend.records import Confidence, Evidence, Finding, Rollout, RunView, Severity, Task, Tool
from uptrend.rollout.play import RolloutRequest, derive
from uptrend.tasks.pool import Cursor, HeldOut, Pool
from uptrend.tasks.taskset import Taskset
from uptrend.training.components import Components
from uptrend.training.gather import Gathered, RolloutPlayer
from uptrend.training.learner import Experience, Learner, Update
from uptrend.training.loop import learn

HIGH, MEDIUM, LOW = Confidence.HIGH, Confidence.MEDIUM, Confidence.LOW
CRITICAL, WARNING, NOTE = Severity.CRITICAL, Severity.WARNING, Severity.NOTE
BATCH = 32
"""Rollouts of the one real update: enough to tell signs apart, and seconds on a CPU."""
NUDGE = 0.03
DEMONSTRATED = 16
"""Tasks that the expert plays."""


@dataclass(frozen=True)
class Updated:
    """What one real update did; the weights are back where they were."""

    update: Update
    """What the learner says of it."""
    exp: Experience
    """What it learned from."""
    rollouts: list[Rollout]
    """The same as rollouts."""
    before_bs: Tensor
    """The learner's log-probabilities before it."""
    after_bs: Tensor
    """And after it."""
    nudged_bs: Tensor
    """And a little way along it, where outputs have moved by about `NUDGE` nats: what it does to first order."""
    moved: Movement
    """What moved in the weights."""
    gradient_share: float
    """The share of weights that had a gradient at all."""


class Caught:
    """Stands in for the optimizer: keeps each gradient and changes nothing."""

    def __init__(self, policy: Policy) -> None:
        self._flat, self.gradients = policy.flat, list[Tensor]()

    def apply(self, lr: float) -> Applied:  # noqa: ARG002 (the optimizer's signature)
        """Take the gradient away."""
        self.gradients.append(self._flat.gradient.clone())
        self._flat.gradient.zero_()
        return Applied(0.0, 0.0, skipped=False)


class Bench:
    """One recipe's parts, ready to be probed; close it to have everything as it was."""

    def __init__(
        self,
        config: Config,
        policy: Policy,
        pool: Pool,
        held_out: HeldOut,
        groups: int = 16,
        components: Components | None = None,
    ) -> None:
        self.components = components or Components()
        self.policy, self.pool, self.held_out = policy, pool, held_out
        self.groups = min(groups, min(len(stage.tasks) for stage in pool.stages[:1]))
        self.config = config
        self.original = policy.flat.values.data.clone()
        self.rehearsed: object = None  # see rehearsal
        self.tap = Tap(self.components.sampler(policy))
        self.player = RolloutPlayer(policy, self.tap, config)
        self.view = RunView(
            source=config.name, trainer="uptrend", name=config.name, steps=np.zeros(0, np.int64), metrics={},
            config=to_table(config), rollout_steps=(0,),
        )  # fmt: skip

    @cached_property
    def learner(self) -> Learner:
        """To look with; it holds an optimizer that is never asked."""
        return self.components.learner(self.policy, cast(Optimizer, Caught(self.policy)), self.config)

    @cached_property
    def gathered(self) -> Gathered:
        """A first step's groups, as training would draw and play them."""
        config = replace(self.config, sampling=replace(self.config.sampling, groups=self.groups))
        return self.components.gather(self.player, self.pool, Cursor(), 1, config)

    @property
    def rollouts(self) -> list[Rollout]:
        """Those that training would learn from."""
        return self.gathered.rollouts

    @cached_property
    def exp(self) -> Experience:
        """The rollouts as the learner gets them."""
        return self.experience(self.rollouts)

    @cached_property
    def logprobs_bs(self) -> Tensor:
        """The learner's log-probabilities of them."""
        return self.logprobs(self.exp)

    @cached_property
    def updated(self) -> Updated:
        """One real update at the recipe's full learning rate on as many of the groups as are quick."""
        return self.try_update(self.batch, self.config)

    @cached_property
    def batch(self) -> list[Rollout]:
        """Whole groups, about `BATCH` rollouts."""
        names = list(dict.fromkeys(r.group for r in self.rollouts))
        chosen = set(names[: max(1, BATCH // self.config.sampling.size)])
        return [r for r in self.rollouts if r.group in chosen]

    @cached_property
    def demonstrations(self) -> list[Rollout]:
        """The expert's rollouts on training tasks, in the model's tokens."""
        stage = self.pool.stages[0]
        requests = [
            RolloutRequest(t, stage.taskset, 0, f"gold-{n}", 0, 0) for n, t in enumerate(stage.tasks[:DEMONSTRATED])
        ]
        return self.player.demonstrate(requests)

    @cached_property
    def tools(self) -> tuple[Tool, ...]:
        """What the first task lets the model call."""
        stage = self.pool.stages[0]

        async def read() -> tuple[Tool, ...]:
            play = stage.taskset.open(stage.tasks[0], 0)
            try:
                return tuple(play.tools)
            finally:
                await play.close()

        return asyncio.run(read())

    @cached_property
    def tasks(self) -> dict[str, tuple[Task, Taskset]]:
        """Every training task by its id, with what plays it; the first stage's where several have it."""
        return {task.id: (task, stage.taskset) for stage in reversed(self.pool.stages) for task in stage.tasks}

    @property
    def drawn(self) -> list[tuple[Task, Taskset]]:
        """The tasks that the rollouts are of."""
        return [self.tasks[t] for t in dict.fromkeys(r.task for r in self.rollouts if r.task in self.tasks)]

    @property
    def exact(self) -> bool:
        """Whether arithmetic is fp32, so that equal things are equal to rounding."""
        return self.policy.device.type == "cpu" and self.policy.flat.values.dtype == torch.float32

    def near(self, fp32: float, bf16: float) -> float:
        """The tolerance that goes with the arithmetic."""
        return fp32 if self.exact else bf16

    def experience(self, rollouts: Sequence[Rollout]) -> Experience:
        """Rollouts as the learner gets them."""
        return self.components.layout(rollouts, self.config)

    def logprobs(self, exp: Experience, *, reference: bool = False) -> Tensor:
        """Log-probabilities of every sampled token, on the host."""
        return self.learner.logprobs(exp, reference=reference).cpu()

    def play(self, tasks: Sequence[tuple[Task, Taskset]], size: int, temperature: float, word: str) -> list[Rollout]:
        """Groups of some tasks; the word makes their seeds."""
        requests = [
            RolloutRequest(task, taskset, 0, f"{word}-{n:04d}", i, derive(self.config.seed, word, n, i))
            for n, (task, taskset) in enumerate(tasks)
            for i in range(size)
        ]
        return self.player.play(requests, temperature=temperature)

    def make_learner(self, config: Config) -> tuple[Learner, Optimizer]:
        """Make a learner with an optimizer of its own."""
        optimizer = self.components.optimizer(self.policy.flat, config.learning)
        return self.components.learner(self.policy, optimizer, config), optimizer

    def learn(
        self, learner: Learner, exp: Experience, rollouts: Sequence[Rollout], step: int, config: Config
    ) -> tuple[Update, Tensor]:
        """Compute advantages and make an update, as the loop does."""
        return learn(self.components, learner, exp, rollouts, step, config)

    def synchronize(self, version: int = 0) -> None:
        """Give the sampler the weights as they are, as the loop does after an update."""
        self.tap.load((), version=version)

    @contextmanager
    def scratch(self) -> Iterator[None]:
        """Whatever happens to the weights inside, they come back, and the sampler gets them."""
        with kept(self.policy, self.original):
            yield
        self.synchronize()

    def try_update(self, rollouts: list[Rollout], config: Config) -> Updated:
        """One real update, measured and undone."""
        exp = self.components.layout(rollouts, config)
        with self.scratch():
            learner, optimizer = self.make_learner(config)
            meter = WeightMeter(self.policy.flat)
            before_bs = learner.logprobs(exp, reference=False).cpu()
            meter.before()
            update, _ = self.learn(learner, exp, rollouts, max(1, config.learning.warmup), config)
            moved = meter.after()
            after_bs = learner.logprobs(exp, reference=False).cpu()
            self._go_along(NUDGE / max(1e-5, float((after_bs - before_bs)[exp.real_bs].abs().nanmean())))
            nudged_bs = learner.logprobs(exp, reference=False).cpu() if self.exact else after_bs
            memory = optimizer.adamw.state.get(self.policy.flat.values, {}).get("exp_avg")
            share = 0.0 if memory is None else float((memory != 0).float().mean())
        return Updated(update, exp, rollouts, before_bs, after_bs, nudged_bs, moved, share)

    def _go_along(self, part: float) -> None:
        """Weights this part of the way from where they were to where they are; more than 1 goes beyond."""
        self.policy.flat.values.data.sub_(self.original).mul_(part).add_(self.original)

    def found(
        self, id: str, severity: Severity, confidence: Confidence, summary: str, *evidence: Evidence | str
    ) -> Finding:
        """A finding on this recipe."""
        observations = [Evidence(e) if isinstance(e, str) else e for e in evidence]
        return finding(self.view, id, severity, confidence, summary, observations)


def name_of(rollout: Rollout) -> str:
    """How evidence names a rollout."""
    return f"{rollout.step}/{rollout.group}/{rollout.index}"
