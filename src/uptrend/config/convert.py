"""From plain tables (TOML, JSON) to dataclasses, with errors that name the key and what would be right."""

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, get_args, get_origin

from uptrend.records import ConfigError

T = TypeVar("T")


def build(cls: type[T], values: Mapping[str, Any], where: str = "") -> T:
    """A dataclass from a table; unknown keys go to its `options` field if it has one, else they are errors."""
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    hints = typing.get_type_hints(cls)
    open_ended = "options" in fields
    known = [name for name in fields if name != "options"]
    given: dict[str, Any] = {}
    extra: dict[str, Any] = dict(values.get("options", {})) if open_ended else {}
    for key, value in values.items():
        if key in known:
            given[key] = convert(hints[key], value, join(where, key))
        elif open_ended and key != "options":
            extra[key] = value
        elif not open_ended:
            raise ConfigError(unknown(join(where, key), key, known, where))
    if open_ended:
        given["options"] = extra
    required = [n for n, f in fields.items() if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING]
    for name in required:
        if name not in given:
            raise ConfigError(f"{join(where, name)} is missing.")
    return cls(**given)


def convert(kind: Any, value: Any, where: str) -> Any:
    """A plain value as the type that a field declares, or an error that says what it takes."""
    origin = get_origin(kind)
    if kind is Any:
        return value
    if origin is typing.Literal:
        if value in get_args(kind):
            return value
        raise ConfigError(f"{where} = {value!r} is not one of {', '.join(map(str, get_args(kind)))}.{nearest(str(value), map(str, get_args(kind)))}")
    if origin in (types.UnionType, typing.Union):
        options = [option for option in get_args(kind) if option is not type(None)]
        return None if value is None else convert(options[0], value, where)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{where} = {value!r} should be a list, for example [{value!r}].")
        return tuple(convert(get_args(kind)[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if origin is dict:
        if not isinstance(value, Mapping):
            raise ConfigError(f"{where} = {value!r} should be a table.")
        return {str(k): convert(get_args(kind)[1], v, join(where, str(k))) for k, v in value.items()}
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        if not isinstance(value, Mapping):
            raise ConfigError(f"{where} = {value!r} should be a table with {', '.join(f.name for f in dataclasses.fields(kind))}.")
        return build(kind, value, where)
    return _scalar(kind, value, where)


def _scalar(kind: type, value: Any, where: str) -> Any:
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        if not math.isfinite(value):
            raise ConfigError(f"{where} = {value} should be a finite number.")
        return float(value)
    if kind is int and isinstance(value, int) and not isinstance(value, bool):
        return value
    if kind in (str, bool) and isinstance(value, kind):
        return value
    names = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
    raise ConfigError(f"{where} = {value!r} should be {names.get(kind, kind.__name__)}.")


def unknown(full: str, key: str, known: Iterable[str], where: str = "") -> str:
    """What to say of a key that nobody knows."""
    known = list(known)
    hint = nearest(key, known)
    rest = "" if hint else f" {where or 'The top level'} takes {', '.join(known)}."
    return f"{full} is not a known key.{hint}{rest}"


def nearest(word: str, known: Iterable[str]) -> str:
    """« Did you mean …? » where something is near."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" Did you mean {close[0]}?" if close else ""


def join(where: str, key: str) -> str:
    """A dotted path."""
    return f"{where}.{key}" if where else key
