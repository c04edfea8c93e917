"""Names and records of earlier versions, read as today's: renamed.toml has the names, this module
applies them.

Two kinds of readers need it. A run directory of schema 1 is upgraded as it is read, without a word.
A name that a person writes (a flag, a recipe, a hypothesis file) goes through `current`, which says
once what it is called now.
"""

import copy
import re
import tomllib
import warnings
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

_ALWAYS_EXIST = ("loss/", "gradient/", "sampler/", "weights/")
_OF_THE_UPDATE = ("learner/", "clip/", "kl/")
# Openings of schema 1's reasons.
_STOPPED_BY = {
    "preflight": "preflight: ",
    "doctor": "the doctor found ",
    "user": "interrupted by the user",
}


class RenamedWarning(FutureWarning):
    """Note that a name of an earlier version was given; the command line prints it as one line."""


@cache
def names(*sections: str) -> Mapping[str, str]:
    """Return today's name by old name, of these sections of renamed.toml."""
    tables = tomllib.loads(Path(__file__).with_name("renamed.toml").read_text(encoding="utf-8"))
    return {old: new for section in sections for old, new in tables[section].items()}


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
        holder, last = _holder(upgraded, old, make=False)
        if holder is None or last not in holder:
            continue
        value = holder.pop(last)
        holder, last = _holder(upgraded, new, make=True)
        if holder is not None:
            holder.setdefault(last, value)
        if noted:
            _note(old, new)
    return upgraded


def _holder(table: dict[str, Any], key: str, *, make: bool) -> tuple[dict[str, Any] | None, str]:
    """Return the table that holds a dotted key, and the key's last part; None where there is no
    such table.
    """
    *path, last = key.split(".")
    place: Any = table
    for part in path:
        place = place.setdefault(part, {}) if make else place.get(part)
        if not isinstance(place, dict):
            return None, last
    return place, last


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
    return re.compile(
        "|".join(rf"(?<![\w.-]){re.escape(old)}(?![\w-])" for old in names(*sections))
    )


def upgrade_metrics(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return a metrics line of schema 1 as schema 2 has it."""
    # Schema 1 wrote null for a number that is not finite and for one that does not exist, such as
    # the entropy of a step whose groups were all dead. Where loss and gradient are finite, a null
    # beside them is of the second kind.
    broken = any(
        value is None for key, value in line.items() if key.startswith(("loss/", "gradient/"))
    )
    kept = _ALWAYS_EXIST + (_OF_THE_UPDATE if broken else ())
    known = names("metrics")
    return {
        known.get(key, key): value
        for key, value in line.items()
        if value is not None or key.startswith(kept)
    }


def upgrade_event(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return an event of schema 1 with today's names; who stopped a run stood in its reason."""
    new: dict[str, Any] = upgrade(event, "metrics", "causes", "probes")
    reason = str(event.get("reason", ""))
    if event.get("event") == "stopped" and "stopped_by" not in event:
        by = next(
            (by for by, opening in _STOPPED_BY.items() if reason.startswith(opening)), "observer"
        )
        reason = reason.removeprefix(_STOPPED_BY.get(by, ""))
        new["stopped_by"] = by
        if by in ("preflight", "doctor"):
            finding, _, new["reason"] = reason.partition(": ")
            new["finding"] = names("causes").get(finding, finding)
    return new
