"""Nested configs as dotted keys, and the differences between two of them."""

from collections.abc import Mapping
from typing import Any

from uptrend.config.load import plain


def difference(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the dotted keys whose values differ between two plain configs, with both values (None where absent)."""
    flat_a, flat_b = flatten(a), flatten(b)
    keys = dict.fromkeys([*flat_a, *flat_b])
    pairs = {key: (flat_a.get(key), flat_b.get(key)) for key in keys}
    return {key: (one, other) for key, (one, other) in pairs.items() if one != other}


def flatten(table: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Flatten a nested table to dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        name = f"{where}.{key}" if where else key
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, name)
        else:
            flat[name] = plain(value)
    return flat


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
