"""Plain nested tables: flat and nested keys, differences, and TOML text."""

import json
import re
from collections.abc import Mapping
from typing import Any


def difference(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the dotted keys whose values differ between two plain configs, with both values (None
    where absent).
    """
    flat_a = flatten(a)
    flat_b = flatten(b)
    pairs = {key: (flat_a.get(key), flat_b.get(key)) for key in flat_a | flat_b}
    return {key: (one, other) for key, (one, other) in pairs.items() if one != other}


def join(where: str, key: str) -> str:
    """Join a dotted path."""
    return f"{where}.{key}" if where else key


def flatten(table: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Flatten a nested table to dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        name = join(where, key)
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, name)
        else:
            flat[name] = _with_lists(value)
    return flat


def _with_lists(value: Any) -> Any:
    # Only the kind of sequence changes: an infinite number or a date is what the reader of a config
    # complains about.
    if isinstance(value, Mapping):
        return {key: _with_lists(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_with_lists(item) for item in value]
    return value


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return dotted keys as a nested table, the inverse of `flatten`."""
    tree = dict[str, Any]()
    for key, value in flat.items():
        *way, last = key.split(".")
        table = tree
        for part in way:
            inner = table.get(part)
            table[part] = table = inner if isinstance(inner, dict) else {}
        table[last] = value
    return tree


# Values are written by hand: tomlkit, which edits files, turns a list of tables inside a value into
# sections.


def to_toml(value: Any) -> str:
    """Return one value on one line: text, number, true or false, a list, or an inline table."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # JSON's escapes are TOML's, but for DEL, which TOML wants escaped too
        return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Mapping):
        inner = ", ".join(
            f"{to_key(key)} = {to_toml(item)}" for key, item in value.items() if item is not None
        )
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(to_toml(item) for item in value)}]"
    raise TypeError(f"{value!r} has no form in TOML")


def to_key(key: str) -> str:
    """Return a key, in quotes where it needs them."""
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else to_toml(key)


def to_recipe(table: Mapping[str, Any], where: str = "") -> str:
    """Return a nested table as a TOML file with sections; None is left out, since TOML has no
    null.
    """
    given = {key: value for key, value in table.items() if value is not None}
    lines = [
        f"{to_key(key)} = {to_toml(value)}"
        for key, value in given.items()
        if not isinstance(value, Mapping)
    ]
    text = "".join(f"{line}\n" for line in lines)
    for key, value in given.items():
        if isinstance(value, Mapping):
            name = join(where, to_key(key))
            text += f"\n[{name}]\n{to_recipe(value, name)}"
    return text
