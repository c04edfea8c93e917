"""Planted faults as values: a cause of the catalogue, the settings that go with it, and the parts
that it replaces.

    alter = wrapped(advantages=lambda make: lambda *given, **how: -make(*given, **how))
    start(alter(prepare(config)), path)

Every helper below returns an `Alter`. Nothing is patched: a run or a bench without the altered
parts is healthy.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import Any

from uptrend.algo import objective
from uptrend.policy.optimizer import learning_rate
from uptrend.policy.policy import Policy
from uptrend.records import Message, Reward, Rollout, Task
from uptrend.tasks.pool import Pool
from uptrend.tasks.taskset import Play, Taskset
from uptrend.training.components import RunContext
from uptrend.training.observer import Observer
from uptrend.training.packing import pack

Alter = Callable[[RunContext], RunContext]
Settings = Mapping[str, Any]
"""Config values by dotted key."""
LEARNER_PARTS = {"objective": objective, "pack": pack, "schedule": learning_rate}


def unaltered(context: RunContext) -> RunContext:
    """Return the run as it is: for faults of the config alone."""
    return context


@dataclass(frozen=True)
class Strength:
    """One way in which a fault is planted."""

    name: str
    """Short description."""
    alter: Alter = unaltered
    """Replaces the faulty parts. Called once per run, so that what a part counts begins anew."""
    settings: Settings = field(default_factory=dict)
    """Config values that are wrong, or without which the fault can't show."""
    observers: Callable[[RunContext], Sequence[Observer]] = lambda _: ()
    """Makes observers that belong to the fault."""
    probe: str = ""
    """Probe that names the fault before the first step; empty where no test asks it."""
    two_turns: bool = False
    """True where it needs a task of several turns."""


@dataclass(frozen=True)
class Fault:
    """One cause, at one or more strengths."""

    id: str
    """Id in the catalogue."""
    strengths: tuple[Strength, ...]
    """From the plainest on; the first is planted on the fitting half, all of them on the reported
    half.
    """
    steps: int = 5
    """Steps of training; invariants and probes need 5 at most."""
    also: tuple[str, ...] = ()
    """Other ids that name the same cause rightly, fixed before anything was run."""
    fix: tuple[str, ...] = ()
    """Config keys of which a right fix changes one; empty where code is wrong, and the cause must
    be right.
    """
    two_turns: bool = False
    """True where all strengths need a task of several turns."""
    wordy: bool = False
    """True where it shows on a model of words alone."""
    seeds: int = 1
    """Seeds on the reported half; faults of curves have more than one."""
    resumed_at: int | None = None
    """Step after which the run is interrupted and resumed."""

    @property
    def right(self) -> frozenset[str]:
        """Every id that counts as right."""
        return frozenset((self.id, *self.also))


def of_parts(id: str, alter: Alter, settings: Settings | None = None, **rest: Any) -> Fault:
    """Make a fault with one strength."""
    return Fault(id, (Strength("planted", alter, settings or {}),), **rest)


def of_settings(id: str, *settings: Settings, probe: str = "", **rest: Any) -> Fault:
    """Make a fault of the config alone, one strength per table; its fix changes what the first
    table sets.
    """
    probes = (probe, *[""] * len(settings))
    strengths = tuple(
        Strength(_words(t), settings=t, probe=p) for t, p in zip(settings, probes, strict=False)
    )
    return Fault(id, strengths, fix=rest.pop("fix", tuple(settings[0])), **rest)


def _words(table: Settings) -> str:
    return ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in table.items())


def together(*alters: Alter) -> Alter:
    """Apply several alterations in order."""
    return lambda context: reduce(lambda before, alter: alter(before), alters, context)


def wrapped(**wrappers: Callable[[Any], Any]) -> Alter:
    """Replace components: each wrapper receives the component of its name and returns the faulty
    one.
    """

    def alter(context: RunContext) -> RunContext:
        before = context.components
        parts = {name: wrap(getattr(before, name)) for name, wrap in wrappers.items()}
        return replace(context, components=replace(before, **parts))

    return alter


def learner(**wrappers: Callable[[Any], Any]) -> Alter:
    """Replace the learner's objective, pack or schedule."""

    def wrap(make: Any) -> Any:
        return partial(make, **{name: wrap(LEARNER_PARTS[name]) for name, wrap in wrappers.items()})

    return wrapped(learner=wrap)


def gathered(change: Callable[[list[Rollout]], list[Rollout]]) -> Alter:
    """Change the rollouts of each step after they were scored."""

    def wrap(gather: Any) -> Any:
        def run(*given: Any) -> Any:
            found = gather(*given)
            return replace(found, rollouts=change(found.rollouts))

        return run

    return wrapped(gather=wrap)


def policy(faulty: type[Policy]) -> Alter:
    """Use a subclass of Policy over the same model."""
    return lambda context: replace(context, policy=faulty(**vars(context.policy)))


def pool(faulty: type[Pool]) -> Alter:
    """Use a subclass of Pool over the same tasks."""
    return lambda context: replace(context, pool=faulty(**vars(context.pool)))


def train_tasks(change: Callable[[RunContext, Taskset, list[Task]], Sequence[Task]]) -> Alter:
    """Change the tasks that are trained on; at most as many are kept as there were."""

    def alter(context: RunContext) -> RunContext:
        stages = [
            replace(s, tasks=tuple(change(context, s.taskset, list(s.tasks)))[: len(s.tasks)])
            for s in context.pool.stages
        ]
        return replace(context, pool=replace(context.pool, stages=tuple(stages)))

    return alter


def tasksets(make: Callable[[Taskset], Taskset]) -> Alter:
    """Replace the tasksets that play and score, in training and in evaluation alike."""

    def alter(context: RunContext) -> RunContext:
        stages = tuple(replace(stage, taskset=make(stage.taskset)) for stage in context.pool.stages)
        heldout = replace(context.heldout, taskset=make(context.heldout.taskset))
        return replace(context, pool=replace(context.pool, stages=stages), heldout=heldout)

    return alter


def plays(wrap: Callable[[Any, Task], Play]) -> Alter:
    """Wrap every play of the tasksets: `wrap` receives the play and its task."""

    def make(taskset: Any) -> Taskset:
        class Wrapped(type(taskset)):  # type: ignore[misc]
            def open(self, task: Task, seed: int) -> Play:
                return wrap(super().open(task, seed), task)

        return Wrapped(taskset.options, taskset.seed)

    return tasksets(make)


class PlayWrapper:
    """Play that passes everything on; subclasses spoil one method."""

    def __init__(self, play: Any, task: Task) -> None:
        self.play, self.task, self.messages, self.tools = play, task, play.messages, play.tools

    async def respond(self, message: Message) -> Sequence[Message] | None:
        """See Play."""
        answers: Sequence[Message] | None = await self.play.respond(message)
        return answers

    async def score(self) -> Reward:
        """See Play."""
        reward: Reward = await self.play.score()
        return reward

    async def close(self) -> None:
        """See Play."""
        await self.play.close()
