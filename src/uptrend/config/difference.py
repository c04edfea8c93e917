"""What differs between two configs, key by key."""

from collections.abc import Mapping
from typing import Any


def difference(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The dotted keys whose values differ between two plain configs, with both values (None where absent)."""
    flat_a, flat_b = flatten(a), flatten(b)
    keys = dict.fromkeys([*flat_a, *flat_b])
    return {k: (flat_a.get(k), flat_b.get(k)) for k in keys if flat_a.get(k) != flat_b.get(k)}


def flatten(table: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """A nested table as dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        name = f"{where}.{key}" if where else key
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, name)
        else:
            flat[name] = value
    return flat
