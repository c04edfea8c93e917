"""Names and records of earlier versions, read as today's: renamed.toml has the names, this module
applies them.

Two kinds of readers need it. A run directory of schema 1 is upgraded as it is read, without a note.
A name that a person writes (a flag, a recipe, a hypothesis file) goes through `current`, which
notes today's name once.
"""

import copy
import re
import tomllib
import warnings
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

# Prefixes of metrics that every step has, and of those that every update has.
_STEP_PREFIXES = ("loss/", "gradient/", "sampler/", "weights/")
_UPDATE_PREFIXES = ("learner/", "clip/", "kl/")
# Prefixes of the reasons in schema 1, by origin of the stop.
_REASON_PREFIXES = {
    "preflight": "preflight: ",
    "doctor": "the doctor found ",
    "user": "interrupted by the user",
}


class RenamedWarning(FutureWarning):
    """Note on the use of a name of an earlier version; the command line prints it as one line."""


@cache
def names(*sections: str) -> Mapping[str, str]:
    """Return today's name by old name, of these sections of renamed.toml."""
    tables = tomllib.loads(Path(__file__).with_name("renamed.toml").read_text(encoding="utf-8"))
    new_by_old: dict[str, str] = {}
    for section in sections:
        new_by_old |= tables[section]
    return new_by_old


def current(name: str) -> str:
    """Return today's name of a metric, cause, probe, taskset, command or config key; an old one is
    noted once.
    """
    new = names("metrics", "causes", "probes", "tasksets", "commands", "config").get(name, name)
    if new != name:
        _note(name, new)
    return new


def _note(old: str, new: str) -> None:
    # Reported at this line, not at the caller's: Python then shows each name once per process.
    warnings.warn(
        f"{old} is called {new} now; the old name still works.", RenamedWarning, stacklevel=1
    )


def upgrade_keys(
    table: Mapping[str, Any], *, noted: bool = True, renamed: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return a nested config with today's keys; `renamed` maps dotted keys, those of renamed.toml
    by default.
    """
    upgraded = copy.deepcopy(dict(table))
    for old, new in (names("config") if renamed is None else renamed).items():
        old_table, old_key = _find_parent(upgraded, old, make=False)
        if old_table is None or old_key not in old_table:
            continue
        value = old_table.pop(old_key)
        new_table, new_key = _find_parent(upgraded, new, make=True)
        if new_table is not None:
            new_table.setdefault(new_key, value)
        if noted:
            _note(old, new)
    return upgraded


def _find_parent(
    table: dict[str, Any], key: str, *, make: bool
) -> tuple[dict[str, Any] | None, str]:
    """Return the table that a dotted key is in, and the key's last part; None without such a
    table.
    """
    *parents, last = key.split(".")
    parent: Any = table
    for name in parents:
        parent = parent.setdefault(name, {}) if make else parent.get(name)
        if not isinstance(parent, dict):
            return None, last
    return parent, last


def upgrade(value: Any, *sections: str) -> Any:
    """Return a value of an old record with today's names, as keys, as texts and in paths; prose
    stays as it was.
    """
    if isinstance(value, Mapping):
        return {upgrade(key, *sections): upgrade(item, *sections) for key, item in value.items()}
    if isinstance(value, list):
        return [upgrade(item, *sections) for item in value]
    if not isinstance(value, str) or " " in value:
        return value
    known = names(*sections)
    return _pattern(*sections).sub(lambda match: known[match[0]], value)


@cache
def _pattern(*sections: str) -> re.Pattern[str]:
    patterns = [rf"(?<![\w.-]){re.escape(old)}(?![\w-])" for old in names(*sections)]
    return re.compile("|".join(patterns))


def upgrade_metrics(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return a metrics line of schema 1 as schema 2 has it."""
    # Schema 1 wrote null for a number that is not finite and for one that does not exist, such as
    # the entropy of a step whose groups were all dead. If loss and gradient are finite, a null
    # beside them is of the second kind, which schema 2 leaves out.
    is_broken = any(
        value is None for key, value in line.items() if key.startswith(("loss/", "gradient/"))
    )
    nullable = _STEP_PREFIXES + (_UPDATE_PREFIXES if is_broken else ())
    new_names = names("metrics")
    upgraded: dict[str, Any] = {}
    for key, value in line.items():
        if value is not None or key.startswith(nullable):
            upgraded[new_names.get(key, key)] = value
    return upgraded


def upgrade_event(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return an event of schema 1 with today's names; the origin of a stop was in its reason."""
    upgraded: dict[str, Any] = upgrade(event, "metrics", "causes", "probes")
    if event.get("event") != "stopped" or "stopped_by" in event:
        return upgraded
    reason = str(event.get("reason", ""))
    upgraded["stopped_by"] = "observer"
    for origin, prefix in _REASON_PREFIXES.items():
        if reason.startswith(prefix):
            upgraded["stopped_by"] = origin
            if origin in ("preflight", "doctor"):
                finding, _, rest = reason.removeprefix(prefix).partition(": ")
                upgraded["finding"] = names("causes").get(finding, finding)
                upgraded["reason"] = rest
            break
    return upgraded
