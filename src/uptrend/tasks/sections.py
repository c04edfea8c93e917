"""From `[tasks]` and `[eval]` to tasksets: options checked, stages laid over, defaults filled in."""

import json
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, get_type_hints

from uptrend.config import Config, Eval, Tasks, build
from uptrend.config.load import check_bounds, join, unknown
from uptrend.records import ConfigError
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
    """What a stage can change beside its taskset's options."""
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
