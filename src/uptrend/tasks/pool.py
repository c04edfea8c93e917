"""From a config to tasks: the fixed held-out set, and the pool that steps draw from."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from uptrend.config import Config, Tasks
from uptrend.records import Task, TasksetError, tasks_hash
from uptrend.tasks.sections import eval_options, make_taskset, resolve_options, resolved, stage_sections
from uptrend.tasks.taskset import Taskset

__all__ = ["Cursor", "HeldOut", "Pool", "Stage", "heldout", "make_taskset", "pool", "resolve_options"]


@dataclass(frozen=True)
class HeldOut:
    """The fixed set that a run evaluates on."""

    taskset: Taskset
    """What plays and scores them."""
    tasks: tuple[Task, ...]
    """The held-out tasks."""
    seed: int
    """What chose them."""
    hash: str
    """Equal for runs whose numbers can be compared."""
    notes: tuple[str, ...]
    """What a person should know about them."""

    def describe(self) -> dict[str, Any]:
        """What run.json keeps."""
        return _describe(self.taskset, self.seed, self.tasks)


@dataclass(frozen=True)
class Stage:
    """A part of the curriculum."""

    start: int
    """The step, from 1, at which it begins."""
    taskset: Taskset
    """What plays and scores its tasks."""
    tasks: tuple[Task, ...]
    """What it trains on."""
    seed: int
    """What chose them."""
    options: Mapping[str, Any]
    """Every option of its taskset."""


@dataclass(frozen=True)
class Cursor:
    """How far a run has drawn: plain numbers, kept in checkpoints."""

    stage: int = 0
    """Which stage, from 0."""
    epoch: int = 0
    """How often the stage's tasks were all gone through."""
    position: int = 0
    """How many of this epoch's tasks were drawn."""


@dataclass(frozen=True)
class Pool:
    """What a run trains on."""

    name: str
    """The taskset that `[tasks]` names."""
    stages: tuple[Stage, ...]
    """One, or a curriculum."""
    seed: int
    """tasks.seed."""
    run_seed: int
    """The run's seed; with the other it orders the tasks."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person should know about the tasks."""
        return tuple(dict.fromkeys(note for stage in self.stages for note in stage.taskset.notes))

    def draw(self, step: int, count: int, cursor: Cursor) -> tuple[list[tuple[Task, Taskset]], Cursor]:
        """The next `count` tasks, all different, and where to go on from."""
        index = max(i for i, stage in enumerate(self.stages) if stage.start <= step)
        stage = self.stages[index]
        if count > len(stage.tasks):
            raise TasksetError(f"{count} tasks were to be drawn of the {len(stage.tasks)} that there are.")
        at = cursor if cursor.stage == index else Cursor(stage=index)
        if at.position + count > len(stage.tasks):
            # The rest of the epoch is left undrawn, so that no step repeats a task.
            at = Cursor(index, at.epoch + 1)
        chosen = self._order(index, at.epoch)[at.position : at.position + count]
        return [(task, stage.taskset) for task in chosen], replace(at, position=at.position + count)

    def describe(self) -> dict[str, Any]:
        """What run.json keeps: the whole, and each stage."""
        everything = [task for stage in self.stages for task in stage.tasks]
        stages = [
            {"start": s.start, **_describe(s.taskset, s.seed, s.tasks), "options": dict(s.options)} for s in self.stages
        ]
        whole = _describe(self.stages[0].taskset, self.seed, everything) | {"name": self.name}
        return {**whole, "stages": stages, "notes": list(self.notes)}

    def _order(self, index: int, epoch: int) -> list[Task]:
        order = list(self.stages[index].tasks)
        random.Random(f"{self.seed}-{self.run_seed}-{index}-{epoch}").shuffle(order)
        return order


def heldout(config: Config) -> HeldOut:
    """The set that `[eval]` names."""
    taskset = make_taskset(config.eval.name, eval_options(config), config.eval.seed, "eval")
    tasks = tuple(taskset.heldout(config.eval.tasks))
    if not tasks:
        raise TasksetError(f"eval: {config.eval.name} has no held-out tasks with these options; widen them.")
    return HeldOut(taskset, tasks, config.eval.seed, tasks_hash(tasks), tuple(taskset.notes))


def pool(config: Config, held_out: HeldOut) -> Pool:
    """What `[tasks]` names, without anything that is held out."""
    ids = frozenset(task.id for task in held_out.tasks)
    sections = stage_sections(config)
    stages = tuple(_stage(start, where, section, ids, config) for start, where, section in sections)
    return Pool(config.tasks.name, stages, config.tasks.seed, config.seed)


def _stage(start: int, where: str, section: Tasks, held_out: frozenset[str], config: Config) -> Stage:
    taskset = make_taskset(section.name, section.options, section.seed, where)
    tasks = tuple(taskset.train(section.train, held_out))
    if leaked := held_out.intersection(task.id for task in tasks):
        raise TasksetError(
            f"{where}: {section.name} trains on {len(leaked)} held-out tasks; its train() must leave out `exclude`."
        )
    groups = config.sampling.groups
    if len(tasks) < groups:
        raise TasksetError(
            f"{where} has {len(tasks)} tasks, fewer than sampling.groups = {groups}: "
            f"lower sampling.groups to {max(len(tasks), 1)}, or widen the tasks."
        )
    return Stage(start, taskset, tasks, section.seed, resolved(section.name, section.options, where))


def _describe(taskset: Taskset, seed: int, tasks: Sequence[Task]) -> dict[str, Any]:
    return {
        "name": taskset.name,
        "version": taskset.version,
        "seed": seed,
        "count": len(tasks),
        "hash": tasks_hash(tasks),
    }
