"""From a config to tasks: options of tasksets, the fixed held-out set, and the pool that steps draw
from.

With several `[[tasks]]` each of them is a pool of its own, and `MixedPool` says which of them gives
each group of a step.
"""

import json
import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar, get_type_hints, runtime_checkable

from uptrend.config import Config, Eval, Tasks, build
from uptrend.config.load import check_bounds, check_overlong, longest_turn, unknown
from uptrend.config.schema import DEFAULT_CONTEXT, DEFAULT_MAX_TOKENS, TaskSource
from uptrend.config.tables import join
from uptrend.present.formatting import plural
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


class StageSection(NamedTuple):
    """`[tasks]`, or one of `[[tasks]]`, as it stands in one of its stages."""

    start: int
    where: str  # name in messages
    tasks: Tasks


def source_stages(source: TaskSource) -> list[StageSection]:
    """Return the stages of one of `[[tasks]]`, or of `[tasks]`; one if it has no curriculum."""
    tasks = source.tasks
    if not tasks.stages:
        return [StageSection(1, source.where, tasks)]
    sections = []
    for i, table in enumerate(tasks.stages):
        where = f"{source.where}.stages[{i}]"
        section = _merge_section(tasks, where, table, "start")
        sections.append(StageSection(table["start"], where, section))
    return sections


def stage_sections(config: Config) -> list[StageSection]:
    """Return the stages of all that a run trains on."""
    return [stage for source in config.all_sources for stage in source_stages(source)]


def eval_sections(config: Config) -> dict[str, Eval]:
    """Return `[eval]` as it stands for each held-out set that is played, by label; the first has
    none. With several `[[tasks]]` and no taskset of its own, `[eval]` has only labeled ones.
    """
    sections = {"": config.eval} if config.eval.name else {}
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
    sources = [replace(source, tasks=_resolve_tasks(source)) for source in config.all_sources]
    sections = eval_sections(config)
    main_options: dict[str, Any] = {}
    sets: list[dict[str, Any]] = []
    for label, section in sections.items():
        options = eval_options(config, section)
        if label:
            sets.append({"label": label, **_fill_in(section, options, _where_set(label))})
        else:
            main_options = resolve_taskset_options(section.name, options, "eval")
    return replace(
        config,
        tasks=sources[0].tasks,
        sources=tuple(sources) if config.sources else (),
        eval=replace(config.eval, options=main_options, sets=tuple(sets)),
    )


def _resolve_tasks(source: TaskSource) -> Tasks:
    """Return `[tasks]`, or one of `[[tasks]]`, with every option of its tasksets."""
    stages: list[dict[str, Any]] = []
    if source.tasks.stages:
        for start, where, stage in source_stages(source):
            stages.append({"start": start, **_fill_in(stage, stage.options, where)})
    options = resolve_taskset_options(source.tasks.name, source.tasks.options, source.where)
    return replace(source.tasks, options=options, stages=tuple(stages))


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
    # Options are checked later: another type has no limits of its own.
    reward_names = rewards if isinstance(rewards, list | tuple) else [rewards]
    limits = getattr(find(name), "SAMPLING_LIMITS", {})
    if any(reward in list(ARITHMETIC_RULES) for reward in reward_names):
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
    """Return the options of `[eval]`, or of another set; data that nothing trains on is held out
    whole.
    """
    section = section or config.eval
    options = dict(section.options)
    # Options by which a taskset that reads files or datasets holds out all of them; others have
    # none.
    whole: dict[str, Any] = getattr(find(section.name), "HOLD_OUT_ALL", {})
    data = _named_data(options)
    names_data = any(data)
    sets_split = not whole.keys().isdisjoint(options)
    if not names_data or sets_split:
        return options
    for _, _, stage in stage_sections(config):
        if stage.name == section.name and _named_data(stage.options) == data:
            return options
    return options | whole


def _named_data(options: Mapping[str, Any]) -> tuple[Path | None, str]:
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
    # Labels of the sets whose tasks together are this set's; empty if it has tasks of its own.
    joined: tuple[str, ...] = ()
    label: str = ""  # of the source whose held-out tasks these are, if there are several

    @property
    def by_label(self) -> dict[str, "HeldoutTasks"]:
        """The sets that are played, by label: this one, whose label is empty, unless it joins
        others; and the further ones.
        """
        return dict(self.sets) if self.joined else {"": self, **self.sets}

    def describe(self) -> dict[str, Any]:
        """Return the entry in run.json."""
        entry = _describe(self.taskset, self.seed, self.tasks)
        if self.joined:
            names = dict.fromkeys(self.sets[label].taskset.name for label in self.joined)
            entry = {"name": " + ".join(names), "count": entry["count"], "hash": entry["hash"]}
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
    groups: int = 0  # groups that this one of several sources gave so far
    sources: tuple["Cursor", ...] = ()  # positions in several sources; empty for one

    def to_table(self) -> dict[str, Any]:
        """Return it as plain values; what only several sources have is left out for one."""
        table = asdict(replace(self, sources=()))
        del table["sources"]
        if not self.groups:
            del table["groups"]
        if self.sources:
            table["sources"] = [cursor.to_table() for cursor in self.sources]
        return table

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> "Cursor":
        """Return a cursor from plain values."""
        sources = tuple(cls.from_table(source) for source in table.get("sources", ()))
        return cls(**{**table, "sources": sources})


class Drawn(NamedTuple):
    """A task that was drawn for a group."""

    task: Task
    taskset: Taskset
    source: str  # label of its source; empty if there is one


@dataclass(frozen=True)
class Pool:
    """Tasks that a run trains on."""

    name: str  # taskset that `[tasks]` names
    stages: tuple[Stage, ...]  # one, or a curriculum
    seed: int  # tasks.seed
    run_seed: int  # run's seed; with the other it orders the tasks
    label: str = ""  # of one of several sources
    weight: float = 1.0  # of one of several sources: its part of the groups, up to a factor

    @property
    def sources(self) -> tuple["Pool", ...]:
        """Pools that the groups of a step are drawn from: this one alone."""
        return (self,)

    def assign(self, count: int, cursor: Cursor) -> tuple[list[int], Cursor]:
        """Return the source of each of a step's groups, as its position among the sources, and the
        cursor after that.
        """
        return [0] * count, cursor

    def draw_for(
        self, step: int, slots: Sequence[int], cursor: Cursor, drawn: Sequence[Collection[str]]
    ) -> tuple[list[Drawn], Cursor]:
        """Return a task for each group, and the cursor after them; `slots` are the groups' sources,
        as `assign` returns them, and `drawn` the ids of the step's tasks so far, by source.
        """
        pairs, cursor = self.draw(step, len(slots), cursor, drawn[0])
        return [Drawn(task, taskset, self.label) for task, taskset in pairs], cursor

    def count_at(self, step: int) -> list[int]:
        """Return the number of tasks that may be drawn at a step, by source."""
        return [len(source.stages[source.stage_at(step)].tasks) for source in self.sources]

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
            start = Cursor(stage=index, pass_rates=cursor.pass_rates, groups=cursor.groups)
        if stage.pass_bounds is not None:
            tasks, after = self._draw_by_pass_rate(start, count, drawn, stage.pass_bounds)
            return [(task, stage.taskset) for task in tasks], after
        remaining = self._remaining_tasks(start, drawn)
        if count > len(remaining):
            # The rest of the epoch is left undrawn, so that no step repeats a task.
            start = replace(start, epoch=start.epoch + 1, position=0)
            remaining = self._remaining_tasks(start, drawn)
        next_position = start.position
        pairs: list[tuple[Task, Taskset]] = []
        for position, task in remaining[:count]:
            pairs.append((task, stage.taskset))
            next_position = position + 1
        return pairs, replace(start, position=next_position)

    def _draw_by_pass_rate(
        self, start: Cursor, count: int, drawn: Collection[str], bounds: PassBounds
    ) -> tuple[list[Task], Cursor]:
        """Return the next tasks whose estimated pass rate is within the bounds.

        If one epoch has too few of them, those nearest to the bounds fill up.
        """
        rates = start.pass_rates
        chosen: list[Task] = []
        passed_over: dict[str, Task] = {}
        cursor = start
        # The rest of this epoch, then the tasks of the next one that were not seen by then.
        for epoch in (start.epoch, start.epoch + 1):
            if epoch != start.epoch:
                cursor = replace(start, epoch=epoch, position=0)
            seen = {*drawn, *passed_over, *(task.id for task in chosen)}
            for position, task in self._remaining_tasks(cursor, seen):
                if len(chosen) == count:
                    break
                cursor = replace(cursor, position=position + 1)
                if bounds.hold(rates.get(task.id)):
                    chosen.append(task)
                else:
                    passed_over[task.id] = task
            if len(chosen) == count:
                break
        else:  # too few in both
            nearest = sorted(passed_over.values(), key=lambda task: bounds.distance(rates[task.id]))
            fillers = nearest[: count - len(chosen)]
            chosen += fillers
            for task in fillers:
                del passed_over[task.id]
        # A step may draw several times, to replace dead groups.
        n_passed_over = len(passed_over) + (start.passed_over if drawn else 0)
        # Their estimates move toward one half, so that they are tried again some epochs later.
        rates = pass_over(rates, passed_over)
        return chosen, replace(cursor, pass_rates=rates, passed_over=n_passed_over)

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


@dataclass(frozen=True)
class MixedPool(Pool):
    """Tasks of several sources, from which the groups of a step are drawn by weight.

    Its `stages` are those of all sources, one source after another.
    """

    members: tuple[Pool, ...] = ()  # its sources, at least two

    @property
    def sources(self) -> tuple[Pool, ...]:
        return self.members

    def assign(self, count: int, cursor: Cursor) -> tuple[list[int], Cursor]:
        """Give each group to the source that is furthest behind its share of all groups so far, the
        first of equals.

        So shares hold over the run, to about a group, however few groups a step has; and groups of
        different sources take turns.
        """
        cursors = self._cursors(cursor)
        counts = [each.groups for each in cursors]
        total_weight = sum(source.weight for source in self.members)
        shares = [source.weight / total_weight for source in self.members]
        slots: list[int] = []  # source of each group, as its position
        for _ in range(count):
            n_groups = sum(counts) + 1  # with the one that is given now
            groups_behind = [share * n_groups - n for share, n in zip(shares, counts, strict=True)]
            chosen = groups_behind.index(max(groups_behind))
            counts[chosen] += 1
            slots.append(chosen)
        assigned = [replace(each, groups=n) for each, n in zip(cursors, counts, strict=True)]
        return slots, replace(cursor, sources=tuple(assigned))

    def draw_for(
        self, step: int, slots: Sequence[int], cursor: Cursor, drawn: Sequence[Collection[str]]
    ) -> tuple[list[Drawn], Cursor]:
        after: list[Cursor] = []
        draws: list[Iterator[Drawn]] = []
        for number, (source, own) in enumerate(
            zip(self.members, self._cursors(cursor), strict=True)
        ):
            own_slots = [slot for slot in slots if slot == number]
            own_draws, own_after = source.draw_for(step, own_slots, own, [drawn[number]])
            draws.append(iter(own_draws))
            after.append(own_after)
        return [next(draws[slot]) for slot in slots], replace(cursor, sources=tuple(after))

    def draw(
        self, step: int, count: int, cursor: Cursor, drawn: Collection[str] = ()
    ) -> tuple[list[tuple[Task, Taskset]], Cursor]:
        slots, cursor = self.assign(count, cursor)
        draws, cursor = self.draw_for(step, slots, cursor, [drawn] * len(self.members))
        return [(draw.task, draw.taskset) for draw in draws], cursor

    def observe(self, cursor: Cursor, rollouts: Sequence[Rollout]) -> Cursor:
        after: list[Cursor] = []
        for source, own in zip(self.members, self._cursors(cursor), strict=True):
            own_rollouts = [rollout for rollout in rollouts if rollout.source == source.label]
            after.append(source.observe(own, own_rollouts))
        return replace(cursor, sources=tuple(after))

    def _cursors(self, cursor: Cursor) -> tuple[Cursor, ...]:
        return cursor.sources or (Cursor(),) * len(self.members)

    def describe(self) -> dict[str, Any]:
        """Return the entry in run.json: all tasks together, and each source."""
        all_tasks = [task for stage in self.stages for task in stage.tasks]
        total_weight = sum(source.weight for source in self.members)
        sources = []
        for source in self.members:
            share = source.weight / total_weight
            sources.append({"label": source.label, "share": share, **source.describe()})
        return {
            "name": self.name,
            "count": len(all_tasks),
            "hash": tasks_hash(all_tasks),
            "sources": sources,
            "notes": list(self.notes),
        }


def _unique(notes: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(notes))


def make_heldout(config: Config) -> HeldoutTasks:
    """Return the set that `[eval]` names, with the further ones."""
    source_labels = [source.label for source in config.sources]
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
            taskset,
            tasks,
            section.seed,
            tasks_hash(tasks),
            tuple(taskset.notes),
            label=label if label in source_labels else "",
        )
    notes = _unique([note for heldout in sets.values() for note in heldout.notes])
    main = sets.pop("", None) or _join_heldout(sets, source_labels)
    return replace(main, notes=notes, sets=sets)


def _join_heldout(sets: Mapping[str, HeldoutTasks], labels: Sequence[str]) -> HeldoutTasks:
    """Return the held-out tasks of all sources as one set."""
    origin: dict[str, str] = {}
    tasks: list[Task] = []
    for label in labels:
        for task in sets[label].tasks:
            other = origin.setdefault(task.id, label)
            if other != label:
                raise TasksetError(
                    f"{_where_set(label)} has held-out tasks that {_where_set(other)} has too, for"
                    f" example {_quote(task)}: an accuracy over both would count them twice. Change"
                    " the options of one, or give [eval] a name."
                )
        tasks += sets[label].tasks
    first = sets[labels[0]]
    return replace(
        first, tasks=tuple(tasks), hash=tasks_hash(tasks), joined=tuple(labels), label=""
    )


# Characters that an error quotes of a question.
MAX_QUOTED_QUESTION = 60


def _quote(task: Task) -> str:
    text = " ".join(message.content for message in task.messages if message.role != "system")
    return repr(text[:MAX_QUOTED_QUESTION])


def make_pool(config: Config, heldout: HeldoutTasks) -> Pool:
    """Return the tasks of `[tasks]`, or of all `[[tasks]]`, without any that is held out."""
    pools = [_make_source(config, source, heldout) for source in config.all_sources]
    if not config.sources:
        return pools[0]
    pool = MixedPool(
        name=" + ".join(dict.fromkeys(pool.name for pool in pools)),
        stages=tuple(stage for pool in pools for stage in pool.stages),
        seed=config.tasks.seed,
        run_seed=config.seed,
        members=tuple(pools),
    )
    _check_shares(config, pool)
    return pool


def _make_source(config: Config, source: TaskSource, heldout: HeldoutTasks) -> Pool:
    """Return the tasks of `[tasks]`, or of one of `[[tasks]]`."""
    excluded: set[str] = set()
    label_of_heldout: dict[str, str] = {}  # held-out tasks of other sources
    for label, heldout_set in heldout.by_label.items():
        ids = [task.id for task in heldout_set.tasks]
        if heldout_set.label in ("", source.label):
            excluded.update(ids)
        else:
            label_of_heldout |= dict.fromkeys(ids, label)
    groups = config.sampling.groups
    stages: list[Stage] = []
    for start, where, section in source_stages(source):
        taskset = make_taskset(section.name, section.options, section.seed, where)
        tasks = tuple(taskset.train(section.train, frozenset(excluded)))
        leaked = excluded.intersection(task.id for task in tasks)
        if leaked:
            raise TasksetError(
                f"{where}: {section.name} trains on {len(leaked)} held-out tasks; its train() must"
                " leave out `exclude`."
            )
        shared = [task for task in tasks if task.id in label_of_heldout]
        if shared:
            raise TasksetError(
                f"{where} trains on {plural(len(shared), 'task')} that"
                f" {_where_set(label_of_heldout[shared[0].id])} holds out, for example"
                f" {_quote(shared[0])}: its accuracy would mean nothing. Change the options of one."
            )
        if len(tasks) < groups and not config.sources:
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
    return Pool(
        source.tasks.name,
        tuple(stages),
        source.tasks.seed,
        config.seed,
        source.label,
        source.weight,
    )


# Groups over which shares are tried out: with weights such as 3 and 7, they repeat after 10.
TRIED_GROUPS = 10_000


def _check_shares(config: Config, pool: MixedPool) -> None:
    """Raise an error if a source has fewer tasks than it has groups in some step."""
    groups = config.sampling.groups
    max_groups = [0] * len(pool.members)  # of each source in one step
    cursor = Cursor()
    for _ in range(min(config.learning.steps, max(1, TRIED_GROUPS // groups))):
        slots, cursor = pool.assign(groups, cursor)
        for number, count in enumerate(max_groups):
            max_groups[number] = max(count, slots.count(number))
    for source, needed in zip(pool.members, max_groups, strict=True):
        count = min(len(stage.tasks) for stage in source.stages)
        if count < needed:
            raise TasksetError(
                f"tasks.{source.label} has {plural(count, 'task')}, and up to {needed} of a step's"
                f" {groups} groups are its share: lower its weight or sampling.groups, or widen the"
                " tasks."
            )


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
