"""Other libraries' environments as tasksets; the registry names each behind a prefix and loads it
when one is named.

Shared by them: options that a recipe can set, made from another library's config.
"""

import json
import types
import typing
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import MISSING, dataclass, field, fields, make_dataclass
from enum import Enum
from functools import partial
from typing import Any, Literal, get_args, get_origin

from uptrend.config import Eval, Tasks

SCALAR_TYPES = (int, float, str, bool)


@dataclass(frozen=True)
class ForeignField:
    """A field of a library's config."""

    name: str
    hint: Any
    default: Any = MISSING


def options_from(
    base: type[Any], foreign_fields: Iterable[ForeignField], namespace: dict[str, Any]
) -> type[Any]:
    """Make a frozen dataclass of our options and a library's, without those that recipes can't
    write or we set.
    """
    own_names: set[str] = set()
    for section in (Tasks, Eval, base):
        own_names |= {own.name for own in fields(section)}
    members: list[Any] = []
    for foreign in foreign_fields:
        kind = _option_type(foreign.hint, foreign.default)
        if foreign.name in own_names or kind is None:
            continue
        default = foreign.default
        if isinstance(default, list):
            default = tuple(default)
        if default is MISSING:
            member_field = field()
        else:
            member_field = field(default_factory=partial(deepcopy, default))
        members.append((foreign.name, kind, member_field))
    return make_dataclass(
        "ForeignOptions", members, bases=(base,), namespace=namespace, frozen=True, kw_only=True
    )


def _option_type(hint: Any, default: Any) -> Any:
    """Return the type of an option, as recipes have it; None where they can't write it."""
    origin = get_origin(hint)
    inner = get_args(hint)
    if hint in SCALAR_TYPES or origin is Literal:
        return hint
    is_union = origin in (typing.Union, types.UnionType)
    if is_union and len(inner) == 2 and set(inner) - {*SCALAR_TYPES} == {type(None)}:
        return hint
    if origin in (list, tuple) and inner[0] in SCALAR_TYPES and set(inner[1:]) <= {inner[0], ...}:
        return tuple.__class_getitem__((inner[0], ...))

    # Any other type, if its default can be written and is no enumeration's.
    try:
        json.dumps(None if default is MISSING else default)
    except TypeError:
        return None
    values = default if isinstance(default, list | tuple) else [default]
    return None if any(isinstance(value, Enum) for value in values) else Any
