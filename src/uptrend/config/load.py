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
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt, Predicate

from uptrend.config.schema import Config, Otherwise, Tasks
from uptrend.config.tables import flatten, join, to_toml
from uptrend.records import ConfigError
from uptrend.records.dialects import meanings
from uptrend.records.files import MAX_RECIPE_BYTES, parse_toml, read_named
from uptrend.records.lines import plain
from uptrend.records.renamed import current, upgrade_keys

T = TypeVar("T")

# Largest values that seeds, steps and tensors can hold; NaN and infinity are beyond them.
LARGEST = {int: 2**63 - 1, float: sys.float_info.max}
BOUNDS: dict[type, tuple[str, Callable[[Any, Any], bool]]] = {
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
    table = upgrade_keys(source)
    changed = set[str]()
    for override in overrides:
        if isinstance(overrides, Mapping):
            set_value(table, override, overrides[override], override)
            changed.add(current(override))
        else:
            changed.add(apply_override(table, override))
        if str(table.get("tasks")).endswith(".toml"):
            _take_tasks(table, _from_above(Path(str(table["tasks"])), path))
    if path is not None:
        _find_beside(table, path.parent)
    _rename_tasksets(table)
    _complete_eval(table)
    config = build(Config, table)
    if path is not None and "learning.steps" in changed and "learning.warmup" not in changed:
        config = shorten_warmup(config)
    if checked:
        check(config)
    return config


# Options that name files, and those by which `[eval]` has rows of its own.
_FILES = ("file", "schema", "reward")
_SOURCES = ("file", "dataset", "config", "split")


def _from_above(recipe: Path, other: Path | None) -> Path:
    """Return a recipe that is not here from a folder above the other one: recipes name each other
    from the top.
    """
    folders = () if other is None or recipe.exists() else other.resolve().parents
    return next((folder / recipe for folder in folders if (folder / recipe).is_file()), recipe)


def _take_tasks(table: dict[str, Any], recipe: Path) -> None:
    """Replace `[tasks]` and `[eval]` by another recipe's, whole: one taskset's options are unknown
    to another.
    """
    other = upgrade_keys(read_toml(recipe))
    _find_beside(other, recipe.parent)
    table |= {section: other.get(section, {}) for section in ("tasks", "eval")}


def _find_beside(table: dict[str, Any], folder: Path) -> None:
    """Let relative paths start at the recipe's folder where the file is there."""
    for section in _task_sections(table):
        for key in _FILES:
            given = section.get(key)
            if isinstance(given, list):
                section[key] = [_beside(each, folder) for each in given]
            elif given is not None:
                section[key] = _beside(given, folder)


def _task_sections(table: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield `[tasks]` and `[eval]`, each followed by its stages or sets."""
    for section in (table.get("tasks"), table.get("eval")):
        if isinstance(section, dict):
            yield section
            for key in ("stages", "sets"):
                yield from (table for table in section.get(key, ()) if isinstance(table, dict))


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


def _beside(given: Any, folder: Path) -> Any:
    name, colon, function = given.partition(":") if isinstance(given, str) else ("", "", "")
    is_there = name and not Path(name).is_absolute() and (folder / name).is_file()
    return f"{folder / name}{colon}{function}" if is_there else given


def _complete_eval(table: dict[str, Any]) -> None:
    """Give an `[eval]` without a taskset that of `[tasks]`; the default one is evaluated as it is
    by default.
    """
    tasks = table.get("tasks")
    evaluation = table.setdefault("eval", {})
    if not isinstance(tasks, Mapping) or not isinstance(evaluation, dict) or "name" in evaluation:
        return
    if tasks.get("name", Tasks.name) == Tasks.name:
        return
    own = [field.name for field in dataclasses.fields(Tasks)]
    options = {key: value for key, value in tasks.items() if key == "name" or key not in own}
    if any(evaluation.get(key, options.get(key)) != options.get(key) for key in _SOURCES):
        options.pop("hold_out", None)  # of other rows
    table["eval"] = options | evaluation


def shorten_warmup(config: Config) -> Config:
    """Lower a recipe's warm-up that a shorter run has no room for to half of its steps, with a
    note.
    """
    steps = config.learning.steps
    warmup = config.learning.warmup
    if not 0 < steps < warmup:
        return config
    note = (
        f"learning.warmup = {steps // 2}: the recipe's {warmup} would exceed learning.steps ="
        f" {steps}."
    )
    return replace(
        config, learning=replace(config.learning, warmup=steps // 2), notes=(*config.notes, note)
    )


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


def set_value(table: dict[str, Any], path: str, value: Any, given: str) -> None:
    """Set the value of a dotted key in place; an error begins with `given`, the way the user wrote
    it.
    """
    *parents, last = current(path).split(".")
    for depth, key in enumerate(parents, start=1):
        if table.get(key) is None:  # absent, or a resolved config's null
            table[key] = {}
        table = table[key]
        if not isinstance(table, dict):
            raise ConfigError(f"{given}: {'.'.join(parents[:depth])} is a value, not a table.")
    table[last] = value


def parse_value(text: str) -> Any:
    """Parse a value as TOML; what is not TOML is text."""
    try:
        table = parse_toml(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return table["value"] if len(table) == 1 else text


def to_table(config: Config) -> dict[str, Any]:
    """Return every value of a config, plain, as run.json keeps it; `options` stand in their
    section.
    """
    table: dict[str, Any] = plain(dataclasses.asdict(config))
    del table["notes"]  # run.json has them beside the config
    for section in ("tasks", "eval"):
        table[section] |= table[section].pop("options")
    return table


def build(cls: type[T], values: Mapping[str, Any], where: str = "") -> T:
    """Build a dataclass from a table; unknown keys go to its `options` field if it has one, or are
    errors.
    """
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    hints = typing.get_type_hints(cls)
    known = [name for name in fields if name != "options"]
    given: dict[str, Any] = {}
    options: dict[str, Any] = {}
    for key, value in values.items():
        if key in known:
            given[key] = convert(hints[key], value, join(where, key))
        elif "options" not in fields:
            # of a whole section that is not known, its first key
            full = next(iter(flatten({key: value}, where)))
            raise ConfigError(unknown(full, key, known, where))
        elif key == "options":  # under its own name, as a dataclass turned into plain values has it
            if not isinstance(value, Mapping):
                raise ConfigError(
                    f"{where}.options = {value!r} should be a table; write options in [{where}]"
                    " itself."
                )
            if misplaced := [name for name in value if name in known]:
                right = f"is a key of [{where}] itself: write {where}.{misplaced[0]}."
                raise ConfigError(f"{where}.options.{misplaced[0]} {right}")
            options |= value
        else:
            options[key] = value
    if "options" in fields:
        given["options"] = options
    for name, field in fields.items():
        optional = field.default is not MISSING or field.default_factory is not MISSING
        if name not in given and not optional:
            raise ConfigError(f"{join(where, name)} is missing.")
    try:
        return cls(**given)
    except ConfigError as error:  # a dataclass knows its fields, and not where it stands
        raise ConfigError(join(where, str(error)) if error.is_of_field else str(error)) from None


def convert(kind: Any, value: Any, where: str) -> Any:
    """Convert a plain value to the type that a field declares, or raise an error that says what it
    takes.
    """
    origin = get_origin(kind)
    inner = get_args(kind)
    if kind is Any:
        return value
    if origin is typing.Literal:
        # By type as well: 1 equals True.
        if any(value == choice and type(value) is type(choice) for choice in inner):
            return value
        words = choices_in_words(kind)
        raise ConfigError(
            f"{where} = {value!r} is not one of {', '.join(words)}.{nearest(str(value), words)}"
        )
    if origin in (types.UnionType, typing.Union):
        wanted = next(option for option in inner if option is not type(None))
        # TOML has no null, so `false` stands for the absence of a table.
        is_none = value is None or (value is False and dataclasses.is_dataclass(wanted))
        return None if is_none else convert(wanted, value, where)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{where} = {value!r} should be a list, for example [{value!r}].")
        return tuple(convert(inner[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if origin is dict:
        if not isinstance(value, Mapping):
            raise ConfigError(f"{where} = {value!r} should be a table.")
        return {str(k): convert(inner[1], v, join(where, str(k))) for k, v in value.items()}
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        if not isinstance(value, Mapping):
            keys = ", ".join(f.name for f in dataclasses.fields(kind))
            raise ConfigError(f"{where} = {value!r} should be a table with {keys}.")
        return build(kind, value, where)
    return _scalar(kind, value, where)


def choices_in_words(kind: Any) -> list[str]:
    """Return the values of a Literal as a recipe has them."""
    return [choice if isinstance(choice, str) else to_toml(choice) for choice in get_args(kind)]


def _scalar(kind: type, value: Any, where: str) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and not abs(value) <= LARGEST[type(value)]:
        raise ConfigError(f"{where} = {str(value)[:24]} is out of range.")
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
    is_config = not where or where.partition(".")[0] in {
        field.name for field in dataclasses.fields(Config)
    }
    hint = config_hint(full, key, known) if is_config else nearest(key, known)
    rest = "" if hint else f" {where or 'The top level'} takes {', '.join(known)}."
    return f"{full} is not a known key.{hint}{rest}"


def config_hint(full: str, key: str, known: Iterable[str]) -> str:
    """Return « Did you mean …? » for a key that no recipe has: another trainer's name, ours
    elsewhere, or a typo.
    """
    names = {path: path.rpartition(".")[2] for path in dotted_keys()}
    if theirs := meanings(full, names.values()):
        differences = [text for texts in theirs.values() for text in texts]
        return " ".join([f" Did you mean {' or '.join(theirs)}?", *differences])
    last = full.rpartition(".")[2]
    hint = "" if last in names.values() else nearest(key, known)
    if not hint and (
        close := difflib.get_close_matches(last, set(names.values()), n=1, cutoff=0.75)
    ):
        same = [path for path, name in names.items() if name == close[0]]
        hint = (
            " Did you mean"
            f" {' or '.join(difflib.get_close_matches(full, same, n=1, cutoff=0.8) or same)}?"
        )
    return hint


def nearest(word: str, known: Iterable[str]) -> str:
    """Return « Did you mean …? » where a known word is near."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" Did you mean {close[0]}?" if close else ""


def dotted_keys(cls: Any = Config, where: str = "") -> Iterator[str]:
    """Yield every key of a recipe but those of tasksets, as `--set` takes them."""
    for name, hint in typing.get_type_hints(cls).items():
        section = next(
            (kind for kind in (hint, *get_args(hint)) if dataclasses.is_dataclass(kind)), None
        )
        if section is not None:
            yield from dotted_keys(section, join(where, name))
        elif name != "options":
            yield join(where, name)


def check(config: Config) -> None:
    """Raise a ConfigError at the first value that can't work, naming its key and what would be
    right.
    """
    check_bounds(config)
    starts = [stage.get("start") for stage in config.tasks.stages]
    for i, start in enumerate(starts):
        if isinstance(start, bool) or not isinstance(start, int):
            raise ConfigError(
                f"tasks.stages[{i}].start = {start!r} should be the step at which it begins."
            )
    labels = [table.get("label") for table in config.eval.sets]
    for i, label in enumerate(labels):
        if not isinstance(label, str) or not re.fullmatch("[A-Za-z0-9-]+", label):
            raise ConfigError(
                f"eval.sets[{i}].label = {label!r} should be a name of letters, digits and hyphens."
            )
        if label in labels[:i]:
            raise ConfigError(f"eval.sets[{i}].label = {label!r} is another set's already.")
    for holds, sentence in _rules(config, starts):
        if not holds:
            raise ConfigError(sentence)


def check_bounds(section: Any, where: str = "") -> None:
    """Raise a ConfigError at the first value of a dataclass that is outside the bounds of its
    annotation.
    """
    hints = get_type_hints(type(section), include_extras=True)
    for field in dataclasses.fields(section):
        key = join(where, field.name)
        value = getattr(section, field.name)
        bounds = bounds_of(hints[field.name])
        if dataclasses.is_dataclass(value):
            check_bounds(value, key)
        elif not all(_holds(bound, value) for bound in bounds):
            said = next((bound.sentence for bound in bounds if isinstance(bound, Otherwise)), "")
            raise ConfigError(
                f"{key} = {value!r}: {said}"
                if said
                else f"{key} = {value} should be {in_words(bounds)}."
            )


def bounds_of(hint: Any) -> tuple[Any, ...]:
    """Return what is annotated to a field's type."""
    return tuple(get_args(hint)[1:]) if get_origin(hint) is Annotated else ()


def in_words(bounds: Iterable[Any]) -> str:
    """Return numeric bounds in words, for messages and `uptrend explain`; empty where there are
    none.
    """
    limits = [bound for bound in bounds if type(bound) in BOUNDS]
    if limits == [Ge(0)]:
        return "0 or more"
    return " and ".join(f"{BOUNDS[type(limit)][0]} {_limit(limit)}" for limit in limits)


def _limit(bound: Any) -> Any:
    return dataclasses.astuple(bound)[0]  # each of them has one field, under another name


def _holds(bound: Any, value: Any) -> bool:
    if isinstance(bound, Predicate):
        return bool(bound.func(value))
    return type(bound) not in BOUNDS or BOUNDS[type(bound)][1](value, _limit(bound))


def _rules(config: Config, starts: list[Any]) -> list[tuple[bool, str]]:
    """Return rules across keys: True where one holds, and the sentence to say where it does not."""
    s = config.sampling
    w = config.learning
    e = config.eval
    clips_low = w.loss == "cispo" or w.clip_low < 1  # cispo has no lower clip
    return [
        (
            not starts or (starts[0] == 1 and starts == sorted(set(starts))),
            (
                f"tasks.stages start at {starts}: the first should start at 1, and each later than"
                " the one before."
            ),
        ),
        (
            s.context > s.max_tokens,
            (
                f"sampling.context = {s.context} should exceed sampling.max_tokens ="
                f" {s.max_tokens}: it holds the prompt too."
            ),
        ),
        (
            (e.context or s.context) > (e.max_tokens or s.max_tokens),
            (
                f"eval.context = {e.context or s.context} should exceed eval.max_tokens ="
                f" {e.max_tokens or s.max_tokens}: it holds the prompt too."
            ),
        ),
        (
            w.warmup <= w.steps,
            f"learning.warmup = {w.warmup} should be between 0 and learning.steps = {w.steps}.",
        ),
        (
            s.groups % w.minibatches == 0,
            f"learning.minibatches = {w.minibatches} should divide sampling.groups = {s.groups}.",
        ),
        (
            w.loss != "cispo" or w.clip_high >= 1,
            (
                f"learning.clip_high = {w.clip_high}: cispo clips the ratio itself at clip_high."
                " Use 1 or more, for example 5."
            ),
        ),
        (clips_low, f"learning.clip_low = {w.clip_low} should be below 1."),
        (
            w.clip_max == 0 or (w.loss != "cispo" and w.clip_max > 1 + w.clip_high),
            (
                f"learning.clip_max = {w.clip_max} should be above 1 + clip_high ="
                f" {1 + w.clip_high:g}; cispo has none."
            ),
        ),
        (
            w.correction_floor < w.correction_cap,
            (
                f"learning.correction_floor = {w.correction_floor} should be below"
                f" learning.correction_cap = {w.correction_cap}."
            ),
        ),
        (
            s.overlong <= s.max_tokens * s.max_turns,
            (
                f"sampling.overlong = {s.overlong} should be at most the"
                f" {s.max_tokens * s.max_turns} tokens of a rollout (sampling.max_tokens x"
                " max_turns)."
            ),
        ),
        (
            s.ahead == 0 or w.correction != "none",
            (
                f"sampling.ahead = {s.ahead} learns from rollouts of older weights, which"
                " learning.correction = 'none' takes for new ones. Set learning.correction ="
                " 'token': tokens then count by learner/sampler probability."
            ),
        ),
        (
            s.engine != "vllm"
            or (s.top_p, s.top_k, s.min_p, s.repetition_penalty) == (1.0, 0, 0.0, 1.0),
            (
                "sampling.engine = 'vllm' needs sampling.top_p = 1, top_k = 0, min_p = 0 and"
                " repetition_penalty = 1: otherwise the learner has to know the tokens that each"
                " was drawn from, which vLLM does not tell."
            ),
        ),
        (
            s.engine != "vllm" or bool(s.servers),
            (
                "sampling.servers is empty: sampling.engine = 'vllm' needs an address, for example"
                " http://127.0.0.1:8000."
            ),
        ),
        (
            w.kl.reset_every == 0 or w.kl.beta > 0,
            (
                f"learning.kl.reset_every = {w.kl.reset_every} needs learning.kl.beta above 0:"
                " without a penalty there is no reference to reset."
            ),
        ),
        (
            not w.skip_dead or (w.kl.beta == 0 and w.entropy == 0),
            (
                "learning.skip_dead = true needs learning.kl.beta = 0 and learning.entropy = 0:"
                " with either of them dead groups teach too."
            ),
        ),
    ]
