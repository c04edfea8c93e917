"""Plain nested tables: flat and nested keys, differences, and TOML text."""

import json
import re
from collections.abc import Mapping
from typing import Any


def difference(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the dotted keys whose values differ between two plain configs, with both values (None
    where absent).
    """
    flat_a = flatten(_by_label(a))
    flat_b = flatten(_by_label(b))
    differences: dict[str, tuple[Any, Any]] = {}
    for key in flat_a | flat_b:
        value_a = flat_a.get(key)
        value_b = flat_b.get(key)
        if value_a != value_b:
            differences[key] = (value_a, value_b)
    return differences


def _by_label(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a config with the tables of `[[tasks]]` by their labels, as overrides name them."""
    sources = config.get("tasks")
    if not isinstance(sources, list | tuple):
        return config
    by_label: dict[str, Any] = {}
    for index, source in enumerate(sources):
        is_labeled = isinstance(source, Mapping) and "label" in source
        by_label[str(source["label"] if is_labeled else index)] = source
    return {**config, "tasks": by_label}


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
    """Return a value with lists for all sequences. Anything else stays, such as an infinite number
    or a date: errors about it come with the reading of a config.
    """
    if isinstance(value, Mapping):
        return {key: _with_lists(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_with_lists(item) for item in value]
    return value


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return dotted keys as a nested table, the inverse of `flatten`."""
    tree = dict[str, Any]()
    for key, value in flat.items():
        *parents, last = key.split(".")
        table = tree
        for parent in parents:
            if not isinstance(table.get(parent), dict):
                table[parent] = {}
            table = table[parent]
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
        items = [
            f"{to_key(key)} = {to_toml(item)}" for key, item in value.items() if item is not None
        ]
        return f"{{ {', '.join(items)} }}" if items else "{}"
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
    values = ""
    sections = ""
    for key, value in table.items():
        if isinstance(value, Mapping):
            name = join(where, to_key(key))
            sections += f"\n[{name}]\n{to_recipe(value, name)}"
        elif value is not None:
            values += f"{to_key(key)} = {to_toml(value)}\n"
    # A section ends where the next one begins: values come first.
    return values + sections
