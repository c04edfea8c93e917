"""Other libraries' environments as tasksets; the registry names each behind a prefix and loads it
when one is named.

Here is what they share: options that a recipe can set, made from another library's config.
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

SCALARS = (int, float, str, bool)


@dataclass(frozen=True)
class ForeignField:
    """A field of a library's config."""

    name: str
    hint: Any
    default: Any = MISSING


def options_from(
    base: type[Any], found: Iterable[ForeignField], namespace: dict[str, Any]
) -> type[Any]:
    """Make a frozen dataclass of our options and a library's, without those that recipes can't
    write or we set.
    """
    taken = {f.name for section in (Tasks, Eval, base) for f in fields(section)}
    members: list[Any] = []
    for each in found:
        kind = _kind(each.hint, each.default)
        if each.name in taken or kind is None:
            continue
        value = tuple(each.default) if isinstance(each.default, list) else each.default
        default = field() if value is MISSING else field(default_factory=partial(deepcopy, value))
        members.append((each.name, kind, default))
    return make_dataclass(
        "ForeignOptions", members, bases=(base,), namespace=namespace, frozen=True, kw_only=True
    )


def _kind(hint: Any, default: Any) -> Any:
    """Return the type of an option, as recipes have it; None where they can't write it."""
    origin = get_origin(hint)
    inner = get_args(hint)
    if hint in SCALARS or origin is Literal:
        return hint
    if (
        origin in (typing.Union, types.UnionType)
        and len(inner) == 2
        and set(inner) - {*SCALARS} == {type(None)}
    ):
        return hint
    if origin in (list, tuple) and inner[0] in SCALARS and set(inner[1:]) <= {inner[0], ...}:
        return tuple.__class_getitem__((inner[0], ...))
    try:
        json.dumps(None if default is MISSING else default)
    except TypeError:
        return None
    values = default if isinstance(default, list | tuple) else [default]
    return None if any(isinstance(value, Enum) for value in values) else Any
