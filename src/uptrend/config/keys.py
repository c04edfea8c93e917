"""Every key of a recipe with its type, bounds, default and meaning, read from the schema: for
people.
"""

import ast
import dataclasses
import inspect
import json
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from uptrend.config.load import bounds_of, choices_in_words, in_words
from uptrend.config.schema import Config

TYPES = {int: "whole number", float: "number", str: "text", bool: "true, false"}
LISTS = {str: "texts", dict[str, Any]: "tables"}


@dataclass(frozen=True)
class Key:
    """One key of a recipe."""

    name: str
    """Its dotted path."""
    type: str
    """Type with its bounds, in words."""
    default: str
    """Default as JSON; empty for a table."""
    meaning: str


@cache
def keys() -> tuple[Key, ...]:
    """Return every key, in the schema's order."""
    return tuple(_keys(Config, ""))


def field_docs(cls: type) -> dict[str, str]:
    """Return the docstring under each field of a dataclass, by the field's name."""
    (node,) = ast.parse(inspect.getsource(cls)).body
    return {
        ast.unparse(field.target): " ".join(ast.literal_eval(doc.value).split())
        for field, doc in zip(node.body, node.body[1:], strict=False)  # type: ignore[attr-defined]
        if isinstance(field, ast.AnnAssign) and isinstance(doc, ast.Expr)
    }


def _keys(cls: type, where: str) -> Iterator[Key]:
    meanings = field_docs(cls)
    hints = typing.get_type_hints(cls)
    annotated = typing.get_type_hints(cls, include_extras=True)
    for field in dataclasses.fields(cls):
        kind = hints[field.name]
        default = getattr(cls(), field.name)
        if isinstance(kind, types.UnionType):
            kind = next(option for option in typing.get_args(kind) if option is not type(None))
        # a taskset declares its options; notes are not written by people
        if field.name in ("options", "notes"):
            continue
        is_table = dataclasses.is_dataclass(kind)
        if where or not is_table:
            plain = (
                ""
                if is_table
                else json.dumps(list(default) if isinstance(default, tuple) else default)
            )
            yield Key(
                f"{where}{field.name}",
                _type(kind, annotated[field.name]),
                plain,
                meanings[field.name],
            )
        if is_table:
            yield from _keys(typing.cast(type, kind), f"{where}{field.name}.")


def _type(kind: Any, hint: Any) -> str:
    if dataclasses.is_dataclass(kind):
        return "table"
    if typing.get_origin(kind) is typing.Literal:
        return ", ".join(choices_in_words(kind))
    if typing.get_origin(kind) is tuple:
        item = typing.get_args(kind)[0]
        return f"list of {LISTS.get(item) or _type(item, item)}"
    bounds = in_words(bounds_of(hint))
    return f"{TYPES[kind]}, {bounds}" if bounds else TYPES[kind]
