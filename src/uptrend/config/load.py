"""Load a config: a TOML file or a table, overrides, types, bounds and the rules across keys.

Every error names the key and says what would be right. `build` turns any plain table into its
dataclass, so that the options of a taskset follow the same rules.
"""

import dataclasses
import difflib
import operator
import re
import sys
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt, Predicate

from uptrend.config.schema import (
    MAX_CHOSEN_WARMUP_SHARE,
    Chosen,
    Config,
    Eval,
    FunctionName,
    Otherwise,
    Tasks,
    TaskSource,
)
from uptrend.config.tables import flatten, join, to_toml
from uptrend.records import ConfigError
from uptrend.records.dialects import meanings
from uptrend.records.files import MAX_RECIPE_BYTES, parse_toml, read_named
from uptrend.records.lines import plain
from uptrend.records.renamed import current, upgrade_keys

T = TypeVar("T")

# Largest values that seeds, steps and tensors can hold; NaN and infinity are beyond them.
LARGEST_BY_TYPE = {int: 2**63 - 1, float: sys.float_info.max}
# Characters of a number out of range that an error quotes.
QUOTED_CHARACTERS = 24
# Similarities, as `difflib` measures them, from which a name is suggested for another: of a key
# among its neighbors, of a key among all keys of a recipe, and of a path among those with that key.
MIN_SIMILARITY = 0.6
MIN_KEY_SIMILARITY = 0.75
MIN_PATH_SIMILARITY = 0.8
# Clips of losses whose ratio is not a token's: gspo's is the mean of a sequence's (Zheng and others
# 2025, section 5.1), and cispo clips the weight of a token, not its part in the loss.
CLIPS_BY_LOSS = {"gspo": {"clip_low": 3e-4, "clip_high": 4e-4}, "cispo": {"clip_high": 5.0}}
# Correction where another engine samples, or older weights do. By token, since a sequence's ratio
# is a product that grows with its length; the bounds are IcePop's.
CORRECTION: dict[str, Any] = {
    "correction": "token",
    "correction_mode": "mask",
    "correction_floor": 0.5,
    "correction_cap": 5.0,
}
# Share of the context that a turn takes at most, where the recipe leaves its length out.
MAX_CHOSEN_TURN_SHARE = 1 / 2
# Words and test of each numeric bound.
BOUND_TYPES: dict[type, tuple[str, Callable[[Any, Any], bool]]] = {
    Ge: ("at least", operator.ge),
    Gt: ("above", operator.gt),
    Le: ("at most", operator.le),
    Lt: ("below", operator.lt),
}


def load_config(
    source: str | Path | Mapping[str, Any],
    overrides: Iterable[str] | Mapping[str, Any] = (),
    *,
    path: Path | None = None,
    checked: bool = True,
) -> Config:
    """Load a config from a recipe's path or a plain table; overrides are `key=value` texts or
    values by dotted key.

    `path` is the recipe that a table was read from. `tasks` itself can be set to the path of
    another recipe, whose `[tasks]` and `[eval]` are then taken. Without `checked`, bounds and rules
    across keys are not applied; keys and types always are.
    """
    if not isinstance(source, Mapping):
        path = Path(source)
        source = read_toml(path)
    # 1. Today's keys, which overrides have too; each of `[[tasks]]` with its label.
    table = upgrade_keys(source)
    # A config as plain values, by dataclasses.asdict, has every key.
    is_config = isinstance(table.get("omitted"), frozenset)
    omitted_before: frozenset[str] = table.pop("omitted") if is_config else frozenset()
    if is_config:
        _list_sources(table)
    _label_sources(table)
    # 2. Overrides, before anything is derived from what they may change.
    changed_keys = _apply_overrides(table, overrides, path)
    _unwrap_single_source(table)
    # 3. Paths: an override may name a file in the recipe's folder as well.
    if path is not None:
        _resolve_paths(table, path.parent)
    # 4. Today's tasksets and their options, which `[eval]` then inherits.
    _rename_tasksets(table)
    # 5. `[eval]`, from all that `[tasks]` has by now.
    _complete_eval(table)
    # 6. Types, and what depends on values that are known to have them.
    config = _build_config(table)
    stated_keys = flatten(table).keys() - (omitted_before - changed_keys)
    omitted = frozenset(key for key in dotted_keys() if key not in stated_keys)
    config = _choose_by_other_keys(replace(config, omitted=omitted))
    is_shortened = "learning.steps" in changed_keys and "learning.warmup" not in changed_keys
    if path is not None and is_shortened:
        config = shorten_warmup(config)
    if checked:
        check(config)
    return config


def _apply_overrides(
    table: dict[str, Any], overrides: Iterable[str] | Mapping[str, Any], path: Path | None
) -> set[str]:
    """Apply overrides in place, one after another; return their keys. `path` is the recipe's."""
    changed_keys: set[str] = set()
    for override in overrides:
        if isinstance(overrides, Mapping):
            set_value(table, override, overrides[override], override)
            changed_keys.add(current(override))
        else:
            changed_keys.add(apply_override(table, override))
        # `tasks` as the path of another recipe: taken at once, so that later overrides change it.
        if str(table.get("tasks")).endswith(".toml"):
            _take_tasks(table, _find_recipe(Path(str(table["tasks"])), path))
        _label_sources(table)  # an override may set all of `tasks`
    return changed_keys


# Options of tasksets that name files.
_FILE_OPTIONS = ("file", "schema", "reward")
# Keys of other sections that name files, or functions in files.
_FILE_OPTIONS_BY_SECTION = {"learning": ("loss", "advantages"), "warmstart": ("file",)}
# Options that name the rows of a taskset.
_SOURCE_OPTIONS = ("file", "dataset", "config", "split")


def _find_recipe(recipe: Path, other: Path | None) -> Path:
    """Return a recipe's path in the current folder, else in the nearest folder above the other
    recipe: recipes name each other from the top of a project.
    """
    if other is None or recipe.exists():
        return recipe
    for folder in other.resolve().parents:
        if (folder / recipe).is_file():
            return folder / recipe
    return recipe


def _take_tasks(table: dict[str, Any], recipe: Path) -> None:
    """Replace `[tasks]` and `[eval]` by another recipe's, whole: one taskset's options are unknown
    to another.
    """
    other = upgrade_keys(read_toml(recipe))
    _resolve_paths(other, recipe.parent)
    table["tasks"] = other.get("tasks", {})
    table["eval"] = other.get("eval", {})


def _resolve_paths(table: dict[str, Any], folder: Path) -> None:
    """Let relative paths of files in the recipe's folder start there."""
    for section in _task_sections(table):
        for key in _FILE_OPTIONS:
            option = section.get(key)
            if isinstance(option, list):
                section[key] = [_resolve_path(entry, folder) for entry in option]
            elif option is not None:
                section[key] = _resolve_path(option, folder)
    for name, keys in _FILE_OPTIONS_BY_SECTION.items():
        other_section = table.get(name)
        if isinstance(other_section, dict):
            for key in keys:
                if key in other_section:
                    other_section[key] = _resolve_path(other_section[key], folder)


def _task_sections(table: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield `[tasks]` or each of `[[tasks]]`, and `[eval]`, each followed by its stages or sets."""
    tasks = table.get("tasks")
    sources = tasks if isinstance(tasks, list) else [tasks]
    for section in (*sources, table.get("eval")):
        if isinstance(section, dict):
            yield section
            for key in ("stages", "sets"):
                tables = section.get(key)
                if isinstance(tables, list | tuple):
                    yield from (table for table in tables if isinstance(table, dict))


def _rename_tasksets(table: Mapping[str, Any]) -> None:
    """Replace an older name of a taskset, and `jsonl`'s options by those of `data` that do the
    same, in place.
    """
    for section in _task_sections(table):
        name = section.get("name")
        if not isinstance(name, str) or current(name) == name:
            continue
        section["name"] = current(name)
        if "split" in section:
            section["hold_out"] = "quarter" if section.pop("split") else "all"
        # `jsonl` graded what stands at the start of an answer to a prompt of raw text.
        rule = section.get("reward", "exact")
        section["reward"] = "start" if rule == "exact" else rule
        section.setdefault("chat", False)


def _resolve_path(option: Any, folder: Path) -> Any:
    """Return `file` or `file:function` with the folder before it, if the file is there."""
    if not isinstance(option, str):
        return option
    name, colon, function = option.partition(":")
    if not name or Path(name).is_absolute() or not (folder / name).is_file():
        return option
    return f"{folder / name}{colon}{function}"


def _complete_eval(table: dict[str, Any]) -> None:
    """Give an `[eval]` without a taskset that of `[tasks]`, with its options; the default taskset
    keeps its default evaluation.
    """
    tasks = table.get("tasks")
    evaluation = table.setdefault("eval", {})
    if not isinstance(evaluation, dict):
        return
    if isinstance(tasks, list):
        # Empty in the config of a run, and as good as left out elsewhere.
        if evaluation.get("name", "") == "":
            table["eval"] = _sets_of_sources(tasks, evaluation)
    elif "name" in evaluation or not isinstance(tasks, Mapping):
        return
    elif tasks.get("name", Tasks.name) != Tasks.name:
        table["eval"] = _inherit_taskset(tasks, evaluation)


def _inherit_taskset(tasks: Mapping[str, Any], evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """Return `[eval]` or one of its sets with the taskset of `[tasks]` and its options."""
    # Other keys of `[tasks]`, such as `train`, stay there.
    section_keys = [*_field_names(Tasks), "label", "weight"]
    inherited = {
        key: value for key, value in tasks.items() if key == "name" or key not in section_keys
    }
    names_other_source = any(
        key in evaluation and evaluation[key] != inherited.get(key) for key in _SOURCE_OPTIONS
    )
    if names_other_source:
        # `hold_out` is about the rows of `[tasks]`, not about other ones.
        inherited.pop("hold_out", None)
    return {**inherited, **evaluation}


def _sets_of_sources(sources: list[Any], evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """Return an `[eval]` without a taskset in which each of `[[tasks]]` has a held-out set of its
    own, under its label; a set that the user wrote under that label changes it.
    """
    options = evaluation.keys() - set(_field_names(Eval))
    if options:
        option = min(options)
        raise ConfigError(
            f"eval.{option}: each of [[tasks]] is evaluated on its own held-out tasks. Write it"
            " into the [[eval.sets]] of that label, or give [eval] a name."
        )
    tables = evaluation.get("sets", ())
    if not isinstance(tables, list | tuple) or not all(isinstance(t, Mapping) for t in tables):
        return {**evaluation, "name": ""}  # an error of its type, once the config is built
    labels = [source["label"] for source in sources]
    own_sets: dict[str, Mapping[str, Any]] = {}
    further_sets: list[dict[str, Any]] = []
    for table in tables:
        label = table.get("label")
        if label not in labels and "name" not in table:
            raise ConfigError(
                f"eval.sets: {label!r} is the label of none of [[tasks]] ({', '.join(labels)}):"
                " give the set a name."
            )
        if label in labels and label not in own_sets:
            own_sets[label] = table
        else:  # a second one of the same label is an error of `check`
            further_sets.append(dict(table))
    completed: list[dict[str, Any]] = []
    for source in sources:
        own = own_sets.get(source["label"], {})
        taskset = source.get("name", Tasks.name)
        if own.get("name", taskset) == taskset:
            own = _inherit_taskset(source, own)
        completed.append({"label": source["label"], **own})
    completed += further_sets
    return {**evaluation, "name": "", "sets": completed}


# Characters of a label.
_LABEL_PATTERN = re.compile("[A-Za-z0-9-]+")


def _label_sources(table: dict[str, Any]) -> None:
    """Give each of `[[tasks]]` a label, in place; a list of one is `[tasks]`."""
    sources = table.get("tasks")
    if not isinstance(sources, list):
        return
    if not sources:
        raise ConfigError("tasks is an empty list: [[tasks]] names at least one taskset.")
    labels: list[str] = []
    for i, source in enumerate(sources):
        if not isinstance(source, dict):
            raise ConfigError(f"tasks[{i}] = {source!r} should be a table: [[tasks]].")
        name = source.get("name", Tasks.name)
        label = source.setdefault("label", re.sub("[^A-Za-z0-9-]+", "-", str(name)).strip("-"))
        if not isinstance(label, str) or not _LABEL_PATTERN.fullmatch(label):
            raise ConfigError(
                f"tasks[{i}].label = {label!r} should be a name of letters, digits and hyphens."
            )
        if label in labels:
            raise ConfigError(
                f"tasks[{i}].label = {label!r} is another taskset's already: give each of [[tasks]]"
                " a label of its own."
            )
        labels.append(label)


def _list_sources(table: dict[str, Any]) -> None:
    """Write the sources of a config's plain values as `[[tasks]]`, in place."""
    sources = table.pop("sources", ())
    if sources:
        table["tasks"] = [
            {"label": source["label"], "weight": source["weight"], **source["tasks"]}
            for source in sources
        ]


def _unwrap_single_source(table: dict[str, Any]) -> None:
    """Turn a list of one taskset into `[tasks]`, in place."""
    sources = table.get("tasks")
    if isinstance(sources, list) and len(sources) == 1:
        (source,) = sources
        table["tasks"] = {key: source[key] for key in source if key not in ("label", "weight")}


def _build_config(table: dict[str, Any]) -> Config:
    """Build a config; `[[tasks]]` become its sources, of which `tasks` is the first."""
    tables = table.get("tasks")
    if not isinstance(tables, list):
        return build(Config, table)
    sources: list[TaskSource] = []
    for values in tables:
        where = f"tasks.{values['label']}"
        keys = {key: value for key, value in values.items() if key not in ("label", "weight")}
        weight = convert(float, values.get("weight", TaskSource.weight), f"{where}.weight")
        sources.append(TaskSource(build(Tasks, keys, where), values["label"], weight))
    config = build(Config, {key: value for key, value in table.items() if key != "tasks"})
    return replace(config, tasks=sources[0].tasks, sources=tuple(sources))


def _field_names(cls: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(cls)]


def shorten_warmup(config: Config) -> Config:
    """Lower a warm-up that is longer than the run to half of its steps, with a note."""
    steps = config.learning.steps
    warmup = config.learning.warmup
    if not 0 < steps < warmup:
        return config
    shorter = steps // 2
    note = (
        f"learning.warmup = {shorter}: the recipe's {warmup} would exceed learning.steps = {steps}."
    )
    learning = replace(config.learning, warmup=shorter)
    return replace(config, learning=learning, notes=(*config.notes, note))


def _choose_by_other_keys(config: Config) -> Config:
    """Choose values that the recipe leaves out and that other keys decide."""
    sampling = config.sampling
    learning = config.learning
    learning_changes: dict[str, Any] = {}
    notes = config.notes

    max_warmup = int(MAX_CHOSEN_WARMUP_SHARE * learning.steps)
    learning_changes["warmup"] = min(learning.warmup, max_warmup)
    learning_changes |= CLIPS_BY_LOSS.get(learning.loss, {})
    samples_elsewhere = sampling.engine == "vllm" or sampling.ahead > 0
    if samples_elsewhere and "learning.correction" in config.omitted:
        learning_changes |= CORRECTION
        note = (
            'learning.correction = "token": tokens whose probability differs much between sampler'
            ' and learner are left out. "none" trains on all of them.'
        )
        if sampling.ahead == 0:
            notes = (*notes, note)
    chosen = {
        key: value for key, value in learning_changes.items() if f"learning.{key}" in config.omitted
    }

    max_tokens = sampling.max_tokens
    if "sampling.max_tokens" in config.omitted:
        # So that the rules across keys hold; the taskset's own length comes later.
        max_tokens = min(max_tokens, longest_turn(config))
    return replace(
        config,
        sampling=replace(sampling, max_tokens=max_tokens),
        learning=replace(learning, **chosen),
        notes=notes,
    )


def longest_turn(config: Config) -> int:
    """Return the maximum tokens of a turn that leave room for its prompt."""
    contexts = [config.sampling.context, config.eval.context or config.sampling.context]
    return max(1, int(MAX_CHOSEN_TURN_SHARE * min(contexts)))


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file as a table."""
    try:
        return parse_toml(read_named(path, MAX_RECIPE_BYTES).decode("utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"There is no recipe at {path}.") from None
    except IsADirectoryError:
        raise ConfigError(f"{path} is a folder; a recipe is a TOML file.") from None
    except OSError as error:
        raise ConfigError(f"{path} could not be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not a text file; a recipe is TOML.") from None
    except tomllib.TOMLDecodeError as error:
        if path.suffix in (".py", ".json"):
            right = f"a script or settings of TRL become one by: uptrend convert {path}"
            raise ConfigError(f"{path} is no recipe, which is TOML; {right}") from None
        raise ConfigError(f"{path} is not TOML: {error}.") from None


def apply_override(table: dict[str, Any], override: str) -> str:
    """Set one value in place: `learning.lr=2e-5`; return its key. What is not TOML is taken as
    text.
    """
    path, equals, text = override.partition("=")
    keys = [key.strip() for key in path.split(".")]
    if not equals or not all(keys):
        raise ConfigError(
            f"--set {override}: write it as key=value, for example --set learning.lr=2e-5."
        )
    set_value(table, ".".join(keys), parse_value(text.strip()), f"--set {override}")
    return current(".".join(keys))


def set_value(table: dict[str, Any], path: str, value: Any, source: str) -> None:
    """Set the value of a dotted key in place; an error begins with `source`, the setting as the
    user wrote it.
    """
    *parents, last = current(path).split(".")
    for depth, key in enumerate(parents, start=1):
        if table.get(key) is None:  # absent, or a resolved config's null
            table[key] = {}
        child: Any = table[key]
        if isinstance(child, list) and parents[:depth] == ["tasks"]:
            label = parents[1] if len(parents) > 1 else ""
            _set_in_source(child, label, [*parents[2:], last], value, source)
            return
        if not isinstance(child, dict):
            raise ConfigError(f"{source}: {'.'.join(parents[:depth])} is a value, not a table.")
        table = child
    table[last] = value


def _set_in_source(
    sources: list[dict[str, Any]], label: str, keys: list[str], value: Any, source: str
) -> None:
    """Set the value of a key of one of `[[tasks]]` in place."""
    by_label = {str(table["label"]): table for table in sources}
    if label not in by_label and len(sources) == 1:
        # A list of one is [tasks].
        path = [label, *keys] if label else keys
        set_value(sources[0], ".".join(path), value, source)
        return
    if label not in by_label:
        if keys[-1] in by_label and not label:
            raise ConfigError(
                f"{source}: tasks.{keys[-1]} is a table. Set one of its keys, for example"
                f" tasks.{keys[-1]}.train."
            )
        first = next(iter(by_label))
        raise ConfigError(
            f"{source}: [[tasks]] has several tasksets, {', '.join(by_label)}. Name one, for"
            f" example tasks.{first}.{keys[-1]}."
        )
    set_value(by_label[label], ".".join(keys), value, source)


def parse_value(text: str) -> Any:
    """Parse a value as TOML; what is not TOML is text."""
    try:
        table = parse_toml(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return table["value"] if len(table) == 1 else text


def to_table(config: Config) -> dict[str, Any]:
    """Return every value of a config, plain, as run.json keeps it; `options` are merged into their
    section.
    """
    table: dict[str, Any] = plain(dataclasses.asdict(config))
    del table["notes"]  # run.json has them beside the config
    del table["omitted"]
    _list_sources(table)
    tasks = table["tasks"]
    for section in (*(tasks if isinstance(tasks, list) else [tasks]), table["eval"]):
        section |= section.pop("options")
    return table


def build(cls: type[T], values: Mapping[str, Any], where: str = "") -> T:
    """Build a dataclass from a table; unknown keys go to its `options` field if it has one, or are
    errors.
    """
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    hints = typing.get_type_hints(cls)
    known = [name for name, field in fields.items() if is_key(field)]
    arguments: dict[str, Any] = {}
    options: dict[str, Any] = {}
    for key, value in values.items():
        if key in known:
            arguments[key] = convert(hints[key], value, join(where, key))
        elif "options" not in fields:
            # Of an unknown section, the message names its first key.
            full = next(iter(flatten({key: value}, where)))
            raise ConfigError(unknown(full, key, known, where))
        elif key == "options":  # under its own name, as a dataclass turned into plain values has it
            _check_options_table(value, known, where)
            options |= value
        else:
            options[key] = value
    if "options" in fields:
        arguments["options"] = options
    for name, field in fields.items():
        has_default = field.default is not MISSING or field.default_factory is not MISSING
        if name not in arguments and not has_default:
            raise ConfigError(f"{join(where, name)} is missing.")
    try:
        return cls(**arguments)
    except ConfigError as error:
        # A dataclass knows the names of its fields, but not the section that it is in.
        message = join(where, str(error)) if error.is_of_field else str(error)
        raise ConfigError(message) from None


def is_key(field: dataclasses.Field[Any]) -> bool:
    """Return True for a field that recipes have; a taskset declares its options, and loading fills
    in `omitted`, and `sources` from `[[tasks]]`.
    """
    return field.name not in ("options", "omitted", "sources")


def _check_options_table(value: Any, known: Iterable[str], where: str) -> None:
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"{where}.options = {value!r} should be a table; write options in [{where}] itself."
        )
    for name in value:
        if name in known:
            raise ConfigError(
                f"{where}.options.{name} is a key of [{where}] itself: write {where}.{name}."
            )


def convert(kind: Any, value: Any, where: str) -> Any:
    """Convert a plain value to the type that a field declares, or raise an error that says what it
    takes.
    """
    origin = get_origin(kind)
    type_arguments = get_args(kind)
    if kind is Any:
        return value
    if origin is typing.Literal:
        # By type as well: 1 equals True.
        if any(value == choice and type(value) is type(choice) for choice in type_arguments):
            return value
        words = choices_in_words(kind)
        raise ConfigError(
            f"{where} = {value!r} is not one of {', '.join(words)}.{nearest(str(value), words)}"
        )
    if origin in (types.UnionType, typing.Union) and FunctionName in type_arguments:
        if isinstance(value, str) and ":" in value:
            return value
        try:
            return convert(type_arguments[0], value, where)
        except ConfigError as error:
            raise ConfigError(f"{error} A function of yours is module:function.") from None
    if origin in (types.UnionType, typing.Union):
        inner = next(option for option in type_arguments if option is not type(None))
        # TOML has no null, so `false` stands for the absence of a table.
        is_none = value is None or (value is False and dataclasses.is_dataclass(inner))
        return None if is_none else convert(inner, value, where)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{where} = {value!r} should be a list, for example [{value!r}].")
        item_kind = type_arguments[0]
        return tuple(convert(item_kind, item, f"{where}[{i}]") for i, item in enumerate(value))
    if origin is dict:
        if not isinstance(value, Mapping):
            raise ConfigError(f"{where} = {value!r} should be a table.")
        item_kind = type_arguments[1]
        return {
            str(key): convert(item_kind, item, join(where, str(key))) for key, item in value.items()
        }
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        if not isinstance(value, Mapping):
            keys = ", ".join(field.name for field in dataclasses.fields(kind))
            raise ConfigError(f"{where} = {value!r} should be a table with {keys}.")
        return build(kind, value, where)
    return _scalar(kind, value, where)


def choices_in_words(kind: Any) -> list[str]:
    """Return the values of a Literal as a recipe has them."""
    return [choice if isinstance(choice, str) else to_toml(choice) for choice in get_args(kind)]


def _scalar(kind: type, value: Any, where: str) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # `not … <=`, because NaN is neither above nor below anything.
    if is_number and not abs(value) <= LARGEST_BY_TYPE[type(value)]:
        raise ConfigError(f"{where} = {str(value)[:QUOTED_CHARACTERS]} is out of range.")
    if kind is float and is_number:
        return float(value)
    if kind is int and is_number and isinstance(value, int):
        return value
    if kind in (str, bool) and isinstance(value, kind):
        return value
    names = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
    raise ConfigError(f"{where} = {value!r} should be {names.get(kind, kind.__name__)}.")


def unknown(full: str, key: str, known: Iterable[str], where: str = "") -> str:
    """Return the message about an unknown key: what another trainer's name means here, else the
    nearest by spelling.
    """
    known = list(known)
    sections = {field.name for field in dataclasses.fields(Config)}
    is_config = not where or where.partition(".")[0] in sections
    hint = config_hint(full, key, known) if is_config else nearest(key, known)
    if not hint:
        hint = f" {where or 'The top level'} takes {', '.join(known)}."
    return f"{full} is not a known key.{hint}"


def config_hint(full: str, key: str, known: Iterable[str]) -> str:
    """Return « Did you mean …? » for a key that no recipe has: another trainer's name, ours
    elsewhere, or a typo.
    """
    # Another trainer's name.
    names = {path: path.rpartition(".")[2] for path in dotted_keys()}
    differences_by_key = meanings(full, names.values())
    if differences_by_key:
        hint = f" Did you mean {' or '.join(differences_by_key)}?"
        for differences in differences_by_key.values():
            hint = " ".join([hint, *differences])
        return hint

    # A typo of a key of this section, then of a key of any section.
    last = full.rpartition(".")[2]
    hint = "" if last in names.values() else nearest(key, known)
    if hint:
        return hint
    close = difflib.get_close_matches(last, set(names.values()), n=1, cutoff=MIN_KEY_SIMILARITY)
    if not close:
        return ""
    paths = [path for path, name in names.items() if name == close[0]]
    closest = difflib.get_close_matches(full, paths, n=1, cutoff=MIN_PATH_SIMILARITY)
    return f" Did you mean {' or '.join(closest or paths)}?"


def nearest(word: str, known: Iterable[str]) -> str:
    """Return « Did you mean …? » with the nearest known word; empty if none is near."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=MIN_SIMILARITY)
    return f" Did you mean {close[0]}?" if close else ""


def dotted_keys() -> Iterator[str]:
    """Yield every key of a recipe but those of tasksets, as `--set` takes them."""
    yield from _hints_by_key()


@cache
def chosen_keys() -> frozenset[str]:
    """Return the keys whose value a run chooses where its recipe leaves them out."""
    keys = []
    for key, hint in _hints_by_key().items():
        if any(isinstance(bound, Chosen) for bound in bounds_of(hint)):
            keys.append(key)
    return frozenset(keys)


@cache
def _hints_by_key() -> dict[str, Any]:
    """Return the annotation of each key, bounds included."""
    return dict(_annotated_keys(Config))


def _annotated_keys(cls: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    annotations = get_type_hints(cls, include_extras=True)
    for name, hint in get_type_hints(cls).items():
        if not is_key(cls.__dataclass_fields__[name]):
            continue
        # A section, or one that may be absent.
        kinds = (hint, *get_args(hint))
        section = next((kind for kind in kinds if dataclasses.is_dataclass(kind)), None)
        if section is not None:
            yield from _annotated_keys(section, join(where, name))
        else:
            yield join(where, name), annotations[name]


def check(config: Config) -> None:
    """Raise a ConfigError for the first value that can't work, with its key and what would be
    right.
    """
    check_bounds(config)
    for source in config.sources:
        _check_field(source, "weight", source.where)
        check_bounds(source.tasks, source.where)
    for source in config.all_sources:
        for i, stage in enumerate(source.tasks.stages):
            start = stage.get("start")
            if isinstance(start, bool) or not isinstance(start, int):
                raise ConfigError(
                    f"{source.where}.stages[{i}].start = {start!r} should be the step at which it"
                    " begins."
                )
    labels = [table.get("label") for table in config.eval.sets]
    for i, label in enumerate(labels):
        if not isinstance(label, str) or not _LABEL_PATTERN.fullmatch(label):
            raise ConfigError(
                f"eval.sets[{i}].label = {label!r} should be a name of letters, digits and hyphens."
            )
        if label in labels[:i]:
            raise ConfigError(f"eval.sets[{i}].label = {label!r} is another set's already.")
    check_overlong(config)
    for holds, sentence in _rules(config):
        if not holds:
            raise ConfigError(sentence)


def check_overlong(config: Config) -> None:
    """Raise a ConfigError if the penalty on a rollout's length begins below its first token."""
    sampling = config.sampling
    rollout_tokens = sampling.max_tokens * sampling.max_turns
    if sampling.overlong > rollout_tokens:
        raise ConfigError(
            f"sampling.overlong = {sampling.overlong} should be at most the {rollout_tokens} tokens"
            " of a rollout (sampling.max_tokens x max_turns)."
        )


def check_bounds(section: Any, where: str = "") -> None:
    """Raise a ConfigError for the first value of a dataclass that is outside the bounds of its
    annotation.
    """
    for field in dataclasses.fields(section):
        value = getattr(section, field.name)
        if dataclasses.is_dataclass(value):
            check_bounds(value, join(where, field.name))
        else:
            _check_field(section, field.name, where)


def _check_field(section: Any, name: str, where: str) -> None:
    """Raise a ConfigError for a value of a dataclass that is outside the bounds of its
    annotation.
    """
    value = getattr(section, name)
    bounds = bounds_of(get_type_hints(type(section), include_extras=True)[name])
    if all(_holds(bound, value) for bound in bounds):
        return
    key = join(where, name)
    sentences = [bound.sentence for bound in bounds if isinstance(bound, Otherwise)]
    if sentences:
        raise ConfigError(f"{key} = {value!r}: {sentences[0]}")
    raise ConfigError(f"{key} = {value} should be {bounds_in_words(bounds)}.")


def bounds_of(hint: Any) -> tuple[Any, ...]:
    """Return the annotations of a field's type."""
    return tuple(get_args(hint)[1:]) if get_origin(hint) is Annotated else ()


def bounds_in_words(bounds: Iterable[Any]) -> str:
    """Return numeric bounds in words, for messages and `uptrend explain`; empty for none."""
    limits = [bound for bound in bounds if type(bound) in BOUND_TYPES]
    if limits == [Ge(0)]:
        return "0 or more"
    return " and ".join(f"{BOUND_TYPES[type(limit)][0]} {_limit(limit)}" for limit in limits)


def _limit(bound: Any) -> Any:
    return dataclasses.astuple(bound)[0]  # each bound has one field, under a name of its own


def _holds(bound: Any, value: Any) -> bool:
    if isinstance(bound, Predicate):
        return bool(bound.func(value))
    if type(bound) not in BOUND_TYPES:
        return True
    _, compare = BOUND_TYPES[type(bound)]
    return compare(value, _limit(bound))


def _rules(config: Config) -> list[tuple[bool, str]]:
    """Return rules across keys: True for a rule that holds, and its sentence for when it does
    not. `check` has to have seen that each stage has a start.
    """
    sampling = config.sampling
    learning = config.learning
    kl = learning.kl
    curricula: list[tuple[bool, str]] = []
    for source in config.all_sources:
        starts = [stage["start"] for stage in source.tasks.stages]
        curricula.append(
            (
                not starts or (starts[0] == 1 and starts == sorted(set(starts))),
                (
                    f"{source.where}.stages start at {starts}: the first should start at 1, and"
                    " each later than the one before."
                ),
            )
        )
    eval_context = config.eval.context or sampling.context
    eval_max_tokens = config.eval.max_tokens or sampling.max_tokens
    is_cispo = learning.loss == "cispo"
    truncation = (sampling.top_p, sampling.top_k, sampling.min_p, sampling.repetition_penalty)
    return [
        *curricula,
        (
            bool(config.eval.name.strip() or config.sources),
            f"eval.name = {config.eval.name!r}: it is empty.",
        ),
        (
            sampling.context > sampling.max_tokens,
            (
                f"sampling.context = {sampling.context} should exceed sampling.max_tokens ="
                f" {sampling.max_tokens}: it holds the prompt too."
            ),
        ),
        (
            eval_context > eval_max_tokens,
            (
                f"eval.context = {eval_context} should exceed eval.max_tokens = {eval_max_tokens}:"
                " it holds the prompt too."
            ),
        ),
        (
            learning.warmup <= learning.steps,
            (
                f"learning.warmup = {learning.warmup} should be between 0 and learning.steps ="
                f" {learning.steps}."
            ),
        ),
        (
            sampling.groups % learning.minibatches == 0,
            (
                f"learning.minibatches = {learning.minibatches} should divide sampling.groups ="
                f" {sampling.groups}."
            ),
        ),
        (
            not is_cispo or learning.clip_high >= 1,
            (
                f"learning.clip_high = {learning.clip_high}: cispo clips the ratio itself at"
                " clip_high. Use 1 or more, for example 5."
            ),
        ),
        # cispo has no lower clip.
        (
            is_cispo or learning.clip_low < 1,
            f"learning.clip_low = {learning.clip_low} should be below 1.",
        ),
        (
            learning.clip_max == 0 or (not is_cispo and learning.clip_max > 1 + learning.clip_high),
            (
                f"learning.clip_max = {learning.clip_max} should be above 1 + clip_high ="
                f" {1 + learning.clip_high:g}; cispo has none."
            ),
        ),
        (
            learning.correction_floor < learning.correction_cap,
            (
                f"learning.correction_floor = {learning.correction_floor} should be below"
                f" learning.correction_cap = {learning.correction_cap}."
            ),
        ),
        (
            sampling.ahead == 0 or learning.correction != "none",
            (
                f"sampling.ahead = {sampling.ahead} learns from rollouts of older weights, which"
                " learning.correction = 'none' takes for new ones. Set learning.correction ="
                " 'token': tokens then count by learner/sampler probability."
            ),
        ),
        (
            sampling.engine != "vllm" or truncation == (1.0, 0, 0.0, 1.0),
            (
                "sampling.engine = 'vllm' needs sampling.top_p = 1, top_k = 0, min_p = 0 and"
                " repetition_penalty = 1: otherwise the learner has to know the tokens that each"
                " was drawn from, which vLLM does not tell."
            ),
        ),
        (
            sampling.engine != "vllm" or bool(sampling.servers),
            (
                "sampling.servers is empty: sampling.engine = 'vllm' needs an address, for example"
                " http://127.0.0.1:8000."
            ),
        ),
        (
            kl.reset_every == 0 or kl.beta > 0,
            (
                f"learning.kl.reset_every = {kl.reset_every} needs learning.kl.beta above 0:"
                " without a penalty there is no reference to reset."
            ),
        ),
        (
            not learning.skip_dead or (kl.beta == 0 and learning.entropy == 0),
            (
                "learning.skip_dead = true needs learning.kl.beta = 0 and learning.entropy = 0:"
                " with either of them dead groups teach too."
            ),
        ),
    ]
