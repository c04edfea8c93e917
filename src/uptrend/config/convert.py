"""Turn plain tables (TOML, JSON) into dataclasses, with errors that name the key and what would be right."""

import dataclasses
import difflib
import sys
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import MISSING
from typing import Any, TypeVar, get_args, get_origin

from uptrend.records import ConfigError

T = TypeVar("T")

LARGEST = {int: 2**63 - 1, float: sys.float_info.max}
"""Largest values that seeds, steps and tensors can hold; NaN and infinity are beyond them."""


def build(cls: type[T], values: Mapping[str, Any], where: str = "") -> T:
    """Build a dataclass from a table; unknown keys go to its `options` field if it has one, or are errors."""
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    hints = typing.get_type_hints(cls)
    known = [name for name in fields if name != "options"]
    given: dict[str, Any] = {}
    options: dict[str, Any] = {}
    for key, value in values.items():
        if key in known:
            given[key] = convert(hints[key], value, join(where, key))
        elif "options" not in fields:
            raise ConfigError(unknown(join(where, key), key, known, where))
        else:
            options |= _options(value, known, where) if key == "options" else {key: value}
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


def _options(value: Any, known: list[str], where: str) -> dict[str, Any]:
    """Read a table of options under its own name, as a dataclass turned into plain values has it."""
    full = join(where, "options")
    if not isinstance(value, Mapping):
        raise ConfigError(f"{full} = {value!r} should be a table; write options in [{where}] itself.")
    for key in value:
        if key in known:
            raise ConfigError(f"{full}.{key} is a key of [{where}] itself: write {join(where, key)}.")
    return dict(value)


def convert(kind: Any, value: Any, where: str) -> Any:
    """Convert a plain value to the type that a field declares, or raise an error that says what it takes."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin is typing.Literal:
        return _literal(inner, value, where)
    if origin in (types.UnionType, typing.Union):
        return _optional(next(option for option in inner if option is not type(None)), value, where)
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


def _literal(choices: tuple[Any, ...], value: Any, where: str) -> Any:
    if value in choices:
        return value
    words = [str(choice) for choice in choices]
    raise ConfigError(f"{where} = {value!r} is not one of {', '.join(words)}.{nearest(str(value), words)}")


def _optional(kind: Any, value: Any, where: str) -> Any:
    """None stays None; TOML has no word for it, so `false` stands for the absence of a table."""
    if value is None or (value is False and dataclasses.is_dataclass(kind)):
        return None
    return convert(kind, value, where)


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
    """Write the message about a key that nobody knows."""
    known = list(known)
    hint = nearest(key, known)
    rest = "" if hint else f" {where or 'The top level'} takes {', '.join(known)}."
    return f"{full} is not a known key.{hint}{rest}"


def nearest(word: str, known: Iterable[str]) -> str:
    """Write « Did you mean …? » where something is near."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" Did you mean {close[0]}?" if close else ""


def join(where: str, key: str) -> str:
    """Join a dotted path."""
    return f"{where}.{key}" if where else key
