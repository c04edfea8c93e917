"""From a config to tasks: options of tasksets, the fixed held-out set, and the pool that steps draw
from.
"""

import json
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar, get_type_hints, runtime_checkable

from uptrend.config import Config, Eval, Tasks, build
from uptrend.config.load import check_bounds, unknown
from uptrend.config.tables import join
from uptrend.records import ConfigError, Task, TasksetError, tasks_hash
from uptrend.tasks.registry import find
from uptrend.tasks.taskset import Taskset

# Keys that a stage of `[tasks]`, or another set of `[eval]`, can't change.
FIXED = {
    "stages": "a stage has no stages of its own",
    "sets": "a set has no sets of its own",
    "every": "all sets are evaluated at the same steps",
}
Section = TypeVar("Section", Tasks, Eval)


def _keys(section: type) -> list[str]:
    """Return the keys of a section that its tables can change, beside its taskset's options."""
    return [f.name for f in fields(section) if f.name not in ("options", *FIXED)]


def make_taskset(name: str, options: Mapping[str, Any], seed: int, where: str = "tasks") -> Taskset:
    """Make a taskset from its name and a table of options; errors name the key below `where`."""
    return find(name)(_options(name, options, where), seed)


def resolved(name: str, options: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return every option of a taskset, plain."""
    # Through JSON, so that a config is the same before it is written and after it is read.
    plain: dict[str, Any] = json.loads(json.dumps(asdict(_options(name, options, where))))
    return plain


def _options(name: str, table: Mapping[str, Any], where: str) -> Any:
    cls = find(name).Options
    known = [f.name for f in fields(cls)]
    for key in table:
        if key not in known:
            others = [
                f.name
                for f in fields(Eval if where.startswith("eval") else Tasks)
                if f.name != "options"
            ]
            raise ConfigError(unknown(join(where, key), key, [*others, *known], where))
    options = build(cls, table, where)
    check_bounds(options, where)
    return options


def stage_sections(config: Config) -> list[tuple[int, str, Tasks]]:
    """Return each stage's start, its name in messages, and `[tasks]` as it stands in that stage."""
    if not config.tasks.stages:
        return [(1, "tasks", config.tasks)]
    tables = {f"tasks.stages[{i}]": table for i, table in enumerate(config.tasks.stages)}
    return [
        (table["start"], where, _section(config.tasks, where, table, "start"))
        for where, table in tables.items()
    ]


def eval_sections(config: Config) -> dict[str, Eval]:
    """Return `[eval]` as it stands for each held-out set, by label; the first has none."""
    sections = {"": config.eval}
    s = config.sampling
    for i, table in enumerate(config.eval.sets):
        where = f"eval.sets[{i}]"
        sections[table["label"]] = e = _section(config.eval, where, table, "label")
        check_bounds(e, where)
        if (most := e.max_tokens or s.max_tokens) >= (context := e.context or s.context):
            raise ConfigError(
                f"{where}.context = {context} should exceed max_tokens = {most}: it holds the"
                " prompt too."
            )
    return sections


def _section(base: Section, where: str, table: Mapping[str, Any], own: str) -> Section:
    for key in table.keys() & FIXED.keys() & {f.name for f in fields(base)}:
        raise ConfigError(f"{where}.{key}: {FIXED[key]}.")
    changes = {key: value for key, value in table.items() if key != own}
    given = build(
        type(base), {key: getattr(base, key) for key in _keys(type(base))} | changes, where
    )
    hints = get_type_hints(find(given.name).Options)
    # Another taskset takes over the options that it knows.
    options = {
        k: value for k, value in base.options.items() if k in hints or given.name == base.name
    }
    for key, change in given.options.items():
        before: Any = options.get(key)
        # A table of options, such as a mix's `arithmetic`, changes key by key.
        is_table = (
            is_dataclass(hints.get(key))
            and isinstance(before, Mapping)
            and isinstance(change, Mapping)
        )
        options[key] = {**before, **change} if is_table else change
    return replace(given, options=options)


def resolve_options(config: Config) -> Config:
    """Return the config with every option of its tasksets filled in, so that a changed default
    can't change it.
    """
    stages: list[dict[str, Any]] = []
    # In full, as a stage of another taskset is to inherit what somebody wrote and not what is
    # filled in here.
    for start, where, section in stage_sections(config) if config.tasks.stages else ():
        own = {key: getattr(section, key) for key in _keys(Tasks)}
        stages.append({"start": start, **own, **resolved(section.name, section.options, where)})
    options = resolved(config.tasks.name, config.tasks.options, "tasks")
    sets = []
    for label, held in eval_sections(config).items():
        own = {key: getattr(held, key) for key in _keys(Eval)}
        sets.append(
            {
                "label": label,
                **own,
                **resolved(held.name, eval_options(config, held), _where(label)),
            }
        )
    whole = resolved(config.eval.name, eval_options(config), "eval")
    evaluation = replace(config.eval, options=whole, sets=tuple(sets[1:]))
    return replace(
        config, tasks=replace(config.tasks, options=options, stages=tuple(stages)), eval=evaluation
    )


def _where(label: str) -> str:
    return f"eval.sets.{label}" if label else "eval"


def eval_options(config: Config, section: Eval | None = None) -> dict[str, Any]:
    """Return the options of `[eval]`, or of another set; a source that nothing trains on is held
    out whole.
    """
    section = section or config.eval
    options = dict(section.options)
    # What a taskset that reads files or datasets is told to hold out all of them; others have no
    # such options.
    whole: dict[str, Any] = getattr(find(section.name), "WHOLE", {})
    if not any(_source(options)) or whole.keys() & options.keys():
        return options
    trained = [_source(s.options) for _, _, s in stage_sections(config) if s.name == section.name]
    return options if _source(options) in trained else options | whole


def _source(options: Mapping[str, Any]) -> tuple[Path | None, str]:
    file = options.get("file")
    dataset = options.get("dataset")
    split = [str(options.get(key) or "") for key in ("config", "split")] if dataset else []
    return Path(str(file)).resolve() if file else None, ",".join(
        [dataset or options.get("datasets") or "", *split]
    )


@dataclass(frozen=True)
class HeldoutTasks:
    """The fixed set that a run evaluates on."""

    taskset: Taskset
    tasks: tuple[Task, ...]
    seed: int
    hash: str  # equal for runs whose numbers can be compared
    notes: tuple[str, ...]  # notes for a person
    sets: Mapping[str, "HeldoutTasks"] = field(default_factory=dict)  # further sets, by label

    @property
    def by_label(self) -> dict[str, "HeldoutTasks"]:
        """This set, which has no label, and the further ones."""
        return {"": self, **self.sets}

    def describe(self) -> dict[str, Any]:
        """Return the entry in run.json."""
        sets = {label: held.describe() for label, held in self.sets.items()}
        return _describe(self.taskset, self.seed, self.tasks) | ({"sets": sets} if sets else {})


@dataclass(frozen=True)
class Stage:
    """A part of the curriculum."""

    start: int  # step, from 1, at which it begins
    taskset: Taskset
    tasks: tuple[Task, ...]
    seed: int
    options: Mapping[str, Any]  # every option of its taskset


@dataclass(frozen=True)
class Cursor:
    """Place of a run in its tasks: plain numbers, kept in checkpoints."""

    stage: int = 0
    epoch: int = 0  # times that the stage's tasks were all drawn
    position: int = 0  # tasks of this epoch that were drawn


@dataclass(frozen=True)
class Pool:
    """Tasks that a run trains on."""

    name: str  # taskset that `[tasks]` names
    stages: tuple[Stage, ...]  # one, or a curriculum
    seed: int  # tasks.seed
    run_seed: int  # run's seed; with the other it orders the tasks

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for a person on the tasks."""
        return tuple(dict.fromkeys(note for stage in self.stages for note in stage.taskset.notes))

    def stage_at(self, step: int) -> int:
        """Return the index of a step's stage."""
        return max(i for i, stage in enumerate(self.stages) if stage.start <= step)

    def draw(
        self, step: int, count: int, cursor: Cursor, drawn: Collection[str] = ()
    ) -> tuple[list[tuple[Task, Taskset]], Cursor]:
        """Return the next `count` tasks and where to go on from; none with an id in `drawn`, those
        of this step.
        """
        index = self.stage_at(step)
        stage = self.stages[index]
        if count > len(stage.tasks) - len(drawn):
            raise TasksetError(
                f"{count} tasks were to be drawn of the {len(stage.tasks) - len(drawn)} that there"
                " are."
            )
        at = cursor if cursor.stage == index else Cursor(stage=index)
        left = self._left(at, drawn)
        if count > len(left):
            # The rest of the epoch is left undrawn, so that no step repeats a task.
            at = Cursor(index, at.epoch + 1)
            left = self._left(at, drawn)
        end = left[count - 1][0] + 1 if count else at.position
        return [(task, stage.taskset) for _, task in left[:count]], replace(at, position=end)

    def _left(self, at: Cursor, drawn: Collection[str]) -> list[tuple[int, Task]]:
        """Return what is left of an epoch, with each task's place in it."""
        order = list(self.stages[at.stage].tasks)
        random.Random(f"{self.seed}-{self.run_seed}-{at.stage}-{at.epoch}").shuffle(order)
        return [
            (i, task) for i, task in enumerate(order) if i >= at.position and task.id not in drawn
        ]

    def describe(self) -> dict[str, Any]:
        """Return the entry in run.json: the whole, and each stage."""
        everything = [task for stage in self.stages for task in stage.tasks]
        stages = [
            {"start": s.start, **_describe(s.taskset, s.seed, s.tasks), "options": dict(s.options)}
            for s in self.stages
        ]
        whole = _describe(self.stages[0].taskset, self.seed, everything) | {"name": self.name}
        return {**whole, "stages": stages, "notes": list(self.notes)}


def make_heldout(config: Config) -> HeldoutTasks:
    """Return the set that `[eval]` names, with the further ones."""
    sets: dict[str, HeldoutTasks] = {}
    for label, section in eval_sections(config).items():
        taskset = make_taskset(
            section.name, eval_options(config, section), section.seed, _where(label)
        )
        tasks = tuple(taskset.heldout(section.tasks))
        if not tasks:
            raise TasksetError(
                f"{_where(label)}: {section.name} has no held-out tasks with these options; widen"
                " them."
            )
        sets[label] = HeldoutTasks(
            taskset, tasks, section.seed, tasks_hash(tasks), tuple(taskset.notes)
        )
    notes = tuple(dict.fromkeys(note for held in sets.values() for note in held.notes))
    return replace(sets.pop(""), notes=notes, sets=sets)


def make_pool(config: Config, heldout: HeldoutTasks) -> Pool:
    """Return the tasks of `[tasks]`, without any that is held out."""
    ids = frozenset(task.id for held in heldout.by_label.values() for task in held.tasks)
    groups = config.sampling.groups
    stages = list[Stage]()
    for start, where, section in stage_sections(config):
        taskset = make_taskset(section.name, section.options, section.seed, where)
        tasks = tuple(taskset.train(section.train, ids))
        if leaked := ids.intersection(task.id for task in tasks):
            raise TasksetError(
                f"{where}: {section.name} trains on {len(leaked)} held-out tasks; its train() must"
                " leave out `exclude`."
            )
        if len(tasks) < groups:
            raise TasksetError(
                f"{where} has {len(tasks)} tasks, fewer than sampling.groups = {groups}: "
                f"lower sampling.groups to {max(len(tasks), 1)}, or widen the tasks."
            )
        options = resolved(section.name, section.options, where)
        stages.append(Stage(start, taskset, tasks, section.seed, options))
    return Pool(config.tasks.name, tuple(stages), config.tasks.seed, config.seed)


@runtime_checkable
class ChecksMachine(Protocol):
    """A taskset whose plays need more than Python."""

    def check_machine(self) -> None:
        """Raise where this machine lacks what a play needs, such as a sandbox."""


def check_machine(heldout: HeldoutTasks, tasks: Pool | None = None) -> None:
    """Raise before a run where this machine can't play its tasks: each of its rollouts would
    fail.
    """
    tasksets = [held.taskset for held in heldout.by_label.values()]
    for taskset in [*(stage.taskset for stage in (tasks.stages if tasks else ())), *tasksets]:
        if isinstance(taskset, ChecksMachine):
            taskset.check_machine()


def _describe(taskset: Taskset, seed: int, tasks: Sequence[Task]) -> dict[str, Any]:
    facts = {"name": taskset.name, "version": taskset.version, "seed": seed}
    return {**facts, "count": len(tasks), "hash": tasks_hash(tasks)}
