"""From a config to tasks: options of tasksets, the fixed held-out set, and the pool that steps draw from."""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, get_type_hints

from uptrend.config import Config, Eval, Tasks, build
from uptrend.config.load import check_bounds, join, unknown
from uptrend.records import ConfigError, Task, TasksetError, tasks_hash
from uptrend.tasks.registry import find
from uptrend.tasks.taskset import Taskset


def make_taskset(name: str, options: Mapping[str, Any], seed: int, where: str = "tasks") -> Taskset:
    """A taskset from its name and a table of options; errors name the key below `where`."""
    cls = find(name)
    return cls(_options(cls, options, where), seed)


def stage_sections(config: Config) -> list[tuple[int, str, Tasks]]:
    """Each stage's start, its name in messages, and `[tasks]` as it stands in that stage."""
    if not config.tasks.stages:
        return [(1, "tasks", config.tasks)]
    return [_section(config.tasks, f"tasks.stages[{i}]", table) for i, table in enumerate(config.tasks.stages)]


def resolve_options(config: Config) -> Config:
    """The config with every option of its tasksets filled in, so that a changed default can't change it."""
    tasks = replace(
        config.tasks,
        options=resolved(config.tasks.name, config.tasks.options, "tasks"),
        # In full, as a stage of another taskset is to inherit what somebody wrote and not what is filled in here.
        stages=tuple(_stage_table(*stage) for stage in stage_sections(config)) if config.tasks.stages else (),
    )
    evaluation = replace(config.eval, options=resolved(config.eval.name, eval_options(config), "eval"))
    return replace(config, tasks=tasks, eval=evaluation)


def eval_options(config: Config) -> dict[str, Any]:
    """`[eval]`'s options; a source that nothing trains on is held out whole."""
    options = dict(config.eval.options)
    # What a taskset that reads files or datasets is told to hold out all of them; others have no such options.
    whole: dict[str, Any] = getattr(find(config.eval.name), "WHOLE", {})
    if not any(_source(options)) or whole.keys() & options.keys():
        return options
    trained = [_source(s.options) for _, _, s in stage_sections(config) if s.name == config.eval.name]
    return options if _source(options) in trained else options | whole


def _section(base: Tasks, where: str, table: Mapping[str, Any]) -> tuple[int, str, Tasks]:
    if "stages" in table:
        raise ConfigError(f"{where}.stages: a stage has no stages of its own.")
    changes = {key: value for key, value in table.items() if key != "start"}
    given = build(Tasks, {key: getattr(base, key) for key in _own_keys()} | changes, where)
    cls = find(given.name)
    inherited = base.options
    if given.name != base.name:  # another taskset takes over the options that it knows
        known = {f.name for f in fields(cls.Options)}
        inherited = {key: value for key, value in inherited.items() if key in known}
    return table["start"], where, replace(given, options=_merge(cls, inherited, given.options))


def _stage_table(start: int, where: str, section: Tasks) -> dict[str, Any]:
    own = {key: getattr(section, key) for key in _own_keys()}
    return {"start": start, **own, **resolved(section.name, section.options, where)}


def _own_keys() -> list[str]:
    """Return the keys that a stage can change beside its taskset's options."""
    return [f.name for f in fields(Tasks) if f.name not in ("options", "stages")]


def _merge(cls: type[Taskset], base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Changes over a base; a table of options, such as a mix's `arithmetic`, changes key by key."""
    hints = get_type_hints(cls.Options)
    merged = {**base, **changes}
    for key, change in changes.items():
        before = base.get(key)
        if is_dataclass(hints.get(key)) and isinstance(before, Mapping) and isinstance(change, Mapping):
            merged[key] = {**before, **change}
    return merged


def _options(cls: type[Taskset], table: Mapping[str, Any], where: str) -> Any:
    known = [f.name for f in fields(cls.Options)]
    section = Eval if where == "eval" else Tasks
    for key in table:
        if key not in known:
            others = [f.name for f in fields(section) if f.name != "options"]
            raise ConfigError(unknown(join(where, key), key, [*others, *known], where))
    options = build(cls.Options, table, where)
    check_bounds(options, where)
    return options


def resolved(name: str, options: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Every option of a taskset, plain."""
    # Through JSON, so that a config is the same before it is written and after it is read.
    plain: dict[str, Any] = json.loads(json.dumps(asdict(_options(find(name), options, where))))
    return plain


def _source(options: Mapping[str, Any]) -> tuple[Path | None, str]:
    file = options.get("file")
    return Path(str(file)).resolve() if file else None, str(options.get("datasets") or "")


@dataclass(frozen=True)
class HeldOut:
    """The fixed set that a run evaluates on."""

    taskset: Taskset
    tasks: tuple[Task, ...]
    """The held-out tasks."""
    seed: int
    """Seed that chose them."""
    hash: str
    """Equal for runs whose numbers can be compared."""
    notes: tuple[str, ...]
    """Notes for a person."""

    def describe(self) -> dict[str, Any]:
        """Return the entry in run.json."""
        return _describe(self.taskset, self.seed, self.tasks)


@dataclass(frozen=True)
class Stage:
    """A part of the curriculum."""

    start: int
    """The step, from 1, at which it begins."""
    taskset: Taskset
    tasks: tuple[Task, ...]
    seed: int
    """Seed that chose them."""
    options: Mapping[str, Any]
    """Every option of its taskset."""


@dataclass(frozen=True)
class Cursor:
    """Place of a run in its tasks: plain numbers, kept in checkpoints."""

    stage: int = 0
    """Stage, from 0."""
    epoch: int = 0
    """Times that the stage's tasks were all drawn."""
    position: int = 0
    """Tasks of this epoch that were drawn."""


@dataclass(frozen=True)
class Pool:
    """Tasks that a run trains on."""

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
        """Notes for a person on the tasks."""
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
        """Return the entry in run.json: the whole, and each stage."""
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
    """Return the tasks of `[tasks]`, without any that is held out."""
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
