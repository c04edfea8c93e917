"""From a config to tasks: options of tasksets, the fixed held-out set, and the pool that steps draw
from.
"""

import json
import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar, get_type_hints, runtime_checkable

from uptrend.config import Config, Eval, Tasks, build
from uptrend.config.load import check_bounds, check_overlong, longest_turn, unknown
from uptrend.config.schema import DEFAULT_CONTEXT, DEFAULT_MAX_TOKENS
from uptrend.config.tables import join
from uptrend.records import ConfigError, Rollout, Task, TasksetError, tasks_hash
from uptrend.tasks.pass_rates import PassBounds, observe, pass_over
from uptrend.tasks.registry import find
from uptrend.tasks.rewards import ARITHMETIC_RULES
from uptrend.tasks.taskset import Taskset

# Keys that a stage of `[tasks]`, or another set of `[eval]`, can't change, with the reason.
FIXED_KEYS = {
    "stages": "a stage has no stages of its own",
    "sets": "a set has no sets of its own",
    "every": "all sets are evaluated at the same steps",
}
# Limits of `[sampling]` for tasksets without SAMPLING_LIMITS, and for those whose rule grades what
# stands at the start of an answer.
DEFAULT_LIMITS = {"max_tokens": DEFAULT_MAX_TOKENS, "max_turns": 1, "context": DEFAULT_CONTEXT}
SHORT_ANSWER_LIMITS = {"max_tokens": 8}
Section = TypeVar("Section", Tasks, Eval)


def _changeable_keys(section: type) -> list[str]:
    """Return the keys that a stage or set can change, except its taskset's options."""
    return [name for name in _field_names(section) if name not in ("options", *FIXED_KEYS)]


def _field_names(cls: Any) -> list[str]:
    return [member.name for member in fields(cls)]


def make_taskset(name: str, options: Mapping[str, Any], seed: int, where: str = "tasks") -> Taskset:
    """Make a taskset from its name and a table of options; errors name the key below `where`."""
    return find(name)(_options(name, options, where), seed)


def resolve_taskset_options(name: str, options: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return every option of a taskset as plain values, defaults included."""
    # Through JSON, so that a config is the same before it is written and after it is read.
    plain: dict[str, Any] = json.loads(json.dumps(asdict(_options(name, options, where))))
    return plain


def _options(name: str, table: Mapping[str, Any], where: str) -> Any:
    """Return a table of options as the taskset's own dataclass, checked."""
    options_class = find(name).Options
    option_names = _field_names(options_class)
    for key in table:
        if key not in option_names:
            section = Eval if where.startswith("eval") else Tasks
            section_keys = _field_names(section)
            section_keys.remove("options")
            known = [*section_keys, *option_names]
            raise ConfigError(unknown(join(where, key), key, known, where))
    options = build(options_class, table, where)
    check_bounds(options, where)
    return options


def stage_sections(config: Config) -> list[tuple[int, str, Tasks]]:
    """Return each stage's start, its name in messages, and `[tasks]` as it stands in that stage."""
    if not config.tasks.stages:
        return [(1, "tasks", config.tasks)]
    sections = []
    for i, table in enumerate(config.tasks.stages):
        where = f"tasks.stages[{i}]"
        section = _merge_section(config.tasks, where, table, "start")
        sections.append((table["start"], where, section))
    return sections


def eval_sections(config: Config) -> dict[str, Eval]:
    """Return `[eval]` as it stands for each held-out set, by label; the first has none."""
    sections = {"": config.eval}
    for i, table in enumerate(config.eval.sets):
        where = f"eval.sets[{i}]"
        section = _merge_section(config.eval, where, table, "label")
        check_bounds(section, where)
        max_tokens = section.max_tokens or config.sampling.max_tokens
        context = section.context or config.sampling.context
        if max_tokens >= context:
            raise ConfigError(
                f"{where}.context = {context} should exceed max_tokens = {max_tokens}: it holds the"
                " prompt too."
            )
        sections[table["label"]] = section
    return sections


def _merge_section(base: Section, where: str, table: Mapping[str, Any], own_key: str) -> Section:
    """Return a section with the changes of a stage or set; `own_key` is the key that only these
    have.
    """
    for key in table.keys() & FIXED_KEYS.keys() & set(_field_names(base)):
        raise ConfigError(f"{where}.{key}: {FIXED_KEYS[key]}.")
    inherited = {key: getattr(base, key) for key in _changeable_keys(type(base))}
    changes = {key: value for key, value in table.items() if key != own_key}
    section = build(type(base), inherited | changes, where)

    # Another taskset takes over the options that it knows.
    hints = get_type_hints(find(section.name).Options)
    options: dict[str, Any] = {}
    for key, value in base.options.items():
        if key in hints or section.name == base.name:
            options[key] = value
    for key, change in section.options.items():
        before = options.get(key)
        # A table of options, such as a mix's `arithmetic`, changes key by key.
        if (
            is_dataclass(hints.get(key))
            and isinstance(before, Mapping)
            and isinstance(change, Mapping)
        ):
            options[key] = {**before, **change}
        else:
            options[key] = change
    return replace(section, options=options)


def resolve_options(config: Config) -> Config:
    """Return the config with every option of its tasksets and their own limits filled in, so that a
    changed default can't change it.
    """
    config = with_own_limits(config)
    # Stages and sets in full, before `[tasks]` and `[eval]` are filled in: those of another taskset
    # inherit what the user wrote, and not the defaults.
    stages: list[dict[str, Any]] = []
    if config.tasks.stages:
        for start, where, stage in stage_sections(config):
            stages.append({"start": start, **_fill_in(stage, stage.options, where)})
    task_options = resolve_taskset_options(config.tasks.name, config.tasks.options, "tasks")
    tasks = replace(config.tasks, options=task_options, stages=tuple(stages))

    sections = eval_sections(config)
    main = sections.pop("")
    main_options = resolve_taskset_options(main.name, eval_options(config, main), "eval")
    sets: list[dict[str, Any]] = []
    for label, section in sections.items():
        options = eval_options(config, section)
        sets.append({"label": label, **_fill_in(section, options, _where_set(label))})
    evaluation = replace(config.eval, options=main_options, sets=tuple(sets))
    return replace(config, tasks=tasks, eval=evaluation)


def with_own_limits(config: Config) -> Config:
    """Return the config with the limits of its tasksets in `[sampling]` where the recipe leaves
    them out, and in `[eval]` where the tasksets of evaluations have higher ones.
    """
    if not any(f"sampling.{name}" in config.omitted for name in DEFAULT_LIMITS):
        return config
    task_sections = [section for _, _, section in stage_sections(config)]
    limits = [own_limits(section.name, section.options) for section in task_sections]
    held_out_sections = eval_sections(config).values()
    eval_limits = [own_limits(section.name, section.options) for section in held_out_sections]
    sampling: dict[str, Any] = {}
    evaluation: dict[str, Any] = {}
    for name in DEFAULT_LIMITS:
        if f"sampling.{name}" not in config.omitted:
            continue
        sampling[name] = max(taskset[name] for taskset in limits)
        eval_limit = max(taskset[name] for taskset in eval_limits)
        if eval_limit > sampling[name] and f"eval.{name}" in config.omitted:
            evaluation[name] = eval_limit
    chosen_keys = {f"sampling.{name}" for name in sampling} | {
        f"eval.{name}" for name in evaluation
    }
    config = replace(
        config,
        sampling=replace(config.sampling, **sampling),
        eval=replace(config.eval, **evaluation),
        omitted=config.omitted - chosen_keys,
    )
    # A turn leaves room for its prompt.
    longest = longest_turn(config)
    if "max_tokens" in sampling and sampling["max_tokens"] > longest:
        config = replace(config, sampling=replace(config.sampling, max_tokens=longest))
    if evaluation.get("max_tokens", 0) > longest:
        config = replace(config, eval=replace(config.eval, max_tokens=longest))
    if sampling:
        check_overlong(config)
    return config


def own_limits(name: str, options: Mapping[str, Any]) -> dict[str, int]:
    """Return the limits of `[sampling]` that suit a taskset with these options, by key."""
    rewards = options.get("reward")
    reward_names = [rewards] if isinstance(rewards, str) else rewards or ()
    limits = getattr(find(name), "SAMPLING_LIMITS", {})
    if any(name in ARITHMETIC_RULES for name in reward_names):
        limits = SHORT_ANSWER_LIMITS
    return DEFAULT_LIMITS | limits


def _fill_in(section: Section, options: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return a stage or set as a table with all its keys and every option of its taskset."""
    keys = {key: getattr(section, key) for key in _changeable_keys(type(section))}
    return keys | resolve_taskset_options(section.name, options, where)


def _where_set(label: str) -> str:
    # Once the labels are known to be good, a set is named by its own, and not by its position.
    return f"eval.sets.{label}" if label else "eval"


def eval_options(config: Config, section: Eval | None = None) -> dict[str, Any]:
    """Return the options of `[eval]`, or of another set; a source that nothing trains on is held
    out whole.
    """
    section = section or config.eval
    options = dict(section.options)
    # Options by which a taskset that reads files or datasets holds out all of them; others have
    # none.
    whole: dict[str, Any] = getattr(find(section.name), "HOLD_OUT_ALL", {})
    source = _source(options)
    names_source = any(source)
    sets_split = not whole.keys().isdisjoint(options)
    if not names_source or sets_split:
        return options
    for _, _, stage in stage_sections(config):
        if stage.name == section.name and _source(stage.options) == source:
            return options
    return options | whole


def _source(options: Mapping[str, Any]) -> tuple[Path | None, str]:
    """Return the file and the dataset that options name."""
    file = options.get("file")
    path = Path(str(file)).resolve() if file else None
    dataset = options.get("dataset")
    if not dataset:
        return path, options.get("datasets") or ""
    config = str(options.get("config") or "")
    split = str(options.get("split") or "")
    return path, f"{dataset},{config},{split}"


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
        """This set, whose label is empty, and the further ones."""
        return {"": self, **self.sets}

    def describe(self) -> dict[str, Any]:
        """Return the entry in run.json."""
        entry = _describe(self.taskset, self.seed, self.tasks)
        if self.sets:
            entry["sets"] = {label: further.describe() for label, further in self.sets.items()}
        return entry


@dataclass(frozen=True)
class Stage:
    """A part of the curriculum."""

    start: int  # step, from 1, at which it begins
    taskset: Taskset
    tasks: tuple[Task, ...]
    seed: int
    options: Mapping[str, Any]  # every option of its taskset
    pass_bounds: PassBounds | None = None  # None to draw all tasks in their order


@dataclass(frozen=True)
class Cursor:
    """Position of a run in its tasks, as checkpoints keep it."""

    stage: int = 0
    epoch: int = 0  # times that the stage's tasks were all drawn
    position: int = 0  # tasks of this epoch that were drawn or passed over
    # Estimated pass rate of tasks that were drawn, by id, if tasks are drawn by it.
    pass_rates: Mapping[str, float] = field(default_factory=dict)
    passed_over: int = 0  # tasks that the last step's draws passed over


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
        return _unique([note for stage in self.stages for note in stage.taskset.notes])

    def stage_at(self, step: int) -> int:
        """Return the index of the stage that a step belongs to."""
        return max(i for i, stage in enumerate(self.stages) if stage.start <= step)

    def draw(
        self, step: int, count: int, cursor: Cursor, drawn: Collection[str] = ()
    ) -> tuple[list[tuple[Task, Taskset]], Cursor]:
        """Return the next `count` tasks and the cursor after them; `drawn` are ids of the step's
        tasks so far, which are not drawn again.
        """
        index = self.stage_at(step)
        stage = self.stages[index]
        n_available = len(stage.tasks) - len(drawn)
        if count > n_available:
            raise TasksetError(
                f"{count} tasks were to be drawn of the {n_available} that there are."
            )
        start = cursor
        if cursor.stage != index:
            start = Cursor(stage=index, pass_rates=cursor.pass_rates)
        if stage.pass_bounds is not None:
            tasks, after = self._draw_by_pass_rate(start, count, drawn, stage.pass_bounds)
            return [(task, stage.taskset) for task in tasks], after
        remaining = self._remaining_tasks(start, drawn)
        if count > len(remaining):
            # The rest of the epoch is left undrawn, so that no step repeats a task.
            start = replace(start, epoch=start.epoch + 1, position=0)
            remaining = self._remaining_tasks(start, drawn)
        position = start.position
        pairs: list[tuple[Task, Taskset]] = []
        for place, task in remaining[:count]:
            pairs.append((task, stage.taskset))
            position = place + 1
        return pairs, replace(start, position=position)

    def _draw_by_pass_rate(
        self, start: Cursor, count: int, drawn: Collection[str], bounds: PassBounds
    ) -> tuple[list[Task], Cursor]:
        """Return the next tasks whose estimated pass rate is within the bounds.

        If one epoch has too few of them, those nearest to the bounds fill up.
        """
        rates = start.pass_rates
        chosen: list[Task] = []
        passed_over: dict[str, Task] = {}
        place = start
        for epoch in (start.epoch, start.epoch + 1):
            if epoch != start.epoch:
                place = replace(start, epoch=epoch, position=0)
            taken = {*drawn, *passed_over, *(task.id for task in chosen)}
            for position, task in self._remaining_tasks(place, taken):
                if len(chosen) == count:
                    break
                place = replace(place, position=position + 1)
                if bounds.hold(rates.get(task.id)):
                    chosen.append(task)
                else:
                    passed_over[task.id] = task
            if len(chosen) == count:
                break
        else:
            nearest = sorted(passed_over.values(), key=lambda task: bounds.distance(rates[task.id]))
            fillers = nearest[: count - len(chosen)]
            chosen += fillers
            for task in fillers:
                del passed_over[task.id]
        # A step may draw several times, to replace dead groups.
        n_passed_over = len(passed_over) + (start.passed_over if drawn else 0)
        rates = pass_over(rates, passed_over)
        return chosen, replace(place, pass_rates=rates, passed_over=n_passed_over)

    def observe(self, cursor: Cursor, rollouts: Sequence[Rollout]) -> Cursor:
        """Return the cursor after a step's rollouts, which estimate pass rates."""
        if self.stages[cursor.stage].pass_bounds is None:
            return cursor
        return replace(cursor, pass_rates=observe(cursor.pass_rates, rollouts))

    def _remaining_tasks(self, start: Cursor, drawn: Collection[str]) -> list[tuple[int, Task]]:
        """Return the tasks of an epoch from a cursor on, each with its position in the epoch."""
        order = list(self.stages[start.stage].tasks)
        random.Random(f"{self.seed}-{self.run_seed}-{start.stage}-{start.epoch}").shuffle(order)
        remaining = []
        for position in range(start.position, len(order)):
            if order[position].id not in drawn:
                remaining.append((position, order[position]))
        return remaining

    def describe(self) -> dict[str, Any]:
        """Return the entry in run.json: all tasks together, and each stage."""
        all_tasks: list[Task] = []
        stages = []
        for stage in self.stages:
            all_tasks += stage.tasks
            description = _describe(stage.taskset, stage.seed, stage.tasks)
            stages.append({"start": stage.start, **description, "options": dict(stage.options)})
        whole = _describe(self.stages[0].taskset, self.seed, all_tasks) | {"name": self.name}
        return {**whole, "stages": stages, "notes": list(self.notes)}


def _unique(notes: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(notes))


def make_heldout(config: Config) -> HeldoutTasks:
    """Return the set that `[eval]` names, with the further ones."""
    sets: dict[str, HeldoutTasks] = {}
    for label, section in eval_sections(config).items():
        where = _where_set(label)
        options = eval_options(config, section)
        taskset = make_taskset(section.name, options, section.seed, where)
        tasks = tuple(taskset.heldout(section.tasks))
        if not tasks:
            raise TasksetError(
                f"{where}: {section.name} has no held-out tasks with these options; widen them."
            )
        sets[label] = HeldoutTasks(
            taskset, tasks, section.seed, tasks_hash(tasks), tuple(taskset.notes)
        )
    notes = _unique([note for heldout in sets.values() for note in heldout.notes])
    return replace(sets.pop(""), notes=notes, sets=sets)


def make_pool(config: Config, heldout: HeldoutTasks) -> Pool:
    """Return the tasks of `[tasks]`, without any that is held out."""
    heldout_ids: set[str] = set()
    for heldout_set in heldout.by_label.values():
        heldout_ids.update(task.id for task in heldout_set.tasks)
    excluded = frozenset(heldout_ids)
    groups = config.sampling.groups
    stages: list[Stage] = []
    for start, where, section in stage_sections(config):
        taskset = make_taskset(section.name, section.options, section.seed, where)
        tasks = tuple(taskset.train(section.train, excluded))
        leaked = excluded.intersection(task.id for task in tasks)
        if leaked:
            raise TasksetError(
                f"{where}: {section.name} trains on {len(leaked)} held-out tasks; its train() must"
                " leave out `exclude`."
            )
        if len(tasks) < groups:
            raise TasksetError(
                f"{where} has {len(tasks)} tasks, fewer than sampling.groups = {groups}: lower"
                f" sampling.groups to {max(len(tasks), 1)}, or widen the tasks."
            )
        options = resolve_taskset_options(section.name, section.options, where)
        bounds = None
        if section.draw == "pass-rate":
            if section.pass_low >= section.pass_high:
                raise ConfigError(
                    f"{where}.pass_low = {section.pass_low} should be below pass_high ="
                    f" {section.pass_high}."
                )
            bounds = PassBounds(section.pass_low, section.pass_high)
        stages.append(Stage(start, taskset, tasks, section.seed, options, bounds))
    return Pool(config.tasks.name, tuple(stages), config.tasks.seed, config.seed)


@runtime_checkable
class ChecksMachine(Protocol):
    """A taskset whose plays need more than Python."""

    def check_machine(self) -> None:
        """Raise an error if this machine lacks what a play needs, such as a sandbox."""


def check_machine(heldout: HeldoutTasks, tasks: Pool | None = None) -> None:
    """Raise an error before a run if this machine can't play its tasks: each of its rollouts would
    fail.
    """
    stages = tasks.stages if tasks else ()
    tasksets = [stage.taskset for stage in stages]
    tasksets += [heldout_set.taskset for heldout_set in heldout.by_label.values()]
    for taskset in tasksets:
        if isinstance(taskset, ChecksMachine):
            taskset.check_machine()


def _describe(taskset: Taskset, seed: int, tasks: Sequence[Task]) -> dict[str, Any]:
    return {
        "name": taskset.name,
        "version": taskset.version,
        "seed": seed,
        "count": len(tasks),
        "hash": tasks_hash(tasks),
    }
