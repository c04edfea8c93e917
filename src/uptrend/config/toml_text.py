"""Plain values as TOML: Python reads it and does not write it."""

import json
import re
from collections.abc import Mapping
from typing import Any

BARE = re.compile(r"[A-Za-z0-9_-]+")


def to_toml(value: Any) -> str:
    """One value on one line: text, number, true or false, a list, or an inline table."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # JSON's escapes are TOML's, but for DEL, which TOML wants escaped too
        return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Mapping):
        inner = ", ".join(f"{to_key(key)} = {to_toml(item)}" for key, item in value.items() if item is not None)
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(to_toml(item) for item in value)}]"
    raise TypeError(f"{value!r} has no form in TOML")


def to_key(key: str) -> str:
    """A key, in quotes where it needs them."""
    return key if BARE.fullmatch(key) else to_toml(key)


def to_recipe(table: Mapping[str, Any], where: str = "") -> str:
    """A nested table as a TOML file with sections; what is None is left out, since TOML has no word for it."""
    given = {key: value for key, value in table.items() if value is not None}
    lines = [f"{to_key(key)} = {to_toml(value)}" for key, value in given.items() if not isinstance(value, Mapping)]
    text = "".join(f"{line}\n" for line in lines)
    for key, value in given.items():
        if isinstance(value, Mapping):
            name = f"{where}.{to_key(key)}" if where else to_key(key)
            text += f"\n[{name}]\n{to_recipe(value, name)}"
    return text
