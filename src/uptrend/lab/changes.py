"""Differences between a specification as it was written and as the files give it now, each by its name.

A specification is compared on the keys that it has: a key that a later version of Uptrend added, at its default, is no
change, nor is a name that was changed (records/renamed.toml).
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from uptrend.config import Config, difference, to_table
from uptrend.config.tables import flatten
from uptrend.lab.plan import what_matters
from uptrend.records.renamed import upgrade, upgrade_keys
from uptrend.stats.formatting import setting

if TYPE_CHECKING:
    from uptrend.lab.specification import Specification

HASHES = {
    "tasks": "hash of its training tasks",
    "held_out": "hash of its held-out tasks",
    "model": "hash of its model's folder",
}


def changed(then: "Specification", now: "Specification") -> list[str]:
    """Name each difference between what was written and what stands now: `smallest 0.05 → 0.02`."""
    criteria = upgrade(then.criteria, "metrics", "causes")
    found = [
        f"{key} {setting(criteria[key], quote=False)} → {setting(value, quote=False)}"
        for key, value in now.criteria.items()
        if key in criteria and criteria[key] != value
    ]
    found += [f"arm {name} is gone" for name in then.arms if name not in now.arms]
    found += [f"arm {name} is new" for name in now.arms if name not in then.arms]
    shared = [name for name in now.arms if name in then.arms]
    found += [
        f"{'' if len(where) == len(shared) else ' and '.join(where) + ': '}{change}"
        for change, where in _changes(then, now, shared).items()
    ]
    return found


def _changes(then: "Specification", now: "Specification", arms: Sequence[str]) -> dict[str, list[str]]:
    """Return the arms by what changed in them."""
    found, defaults = dict[str, list[str]](), flatten(to_table(Config()))
    for name in arms:
        a, b = then.arms[name], now.arms[name]
        before = upgrade_keys(a["config"], noted=False)
        keys = difference(what_matters(before), what_matters(b["config"]))
        said = [
            f"{key} {setting(x, quote=False)} → {setting(y, quote=False)}"
            for key, (x, y) in keys.items()
            if not key.startswith("compute.device") and (_had(before, key) or y != defaults.get(key, y))
        ]
        # A model's folder that is not on this machine is no change: whoever judges needs only the runs.
        pairs = {words: (a.get(key), b.get(key, a.get(key))) for key, words in HASHES.items()}
        said += [f"{words} {x} → {y}" for words, (x, y) in pairs.items() if x != y]
        said += ["it is the control now"] if b["control"] and not a["control"] else []
        for change in said:
            found.setdefault(change, []).append(name)
    return found


def _had(table: Mapping[str, Any], key: str) -> bool:
    """Tell whether a config had a place for a dotted key: `model.lora.r` too, where `model.lora` was null."""
    place: Any = table
    for part in key.split("."):
        if not isinstance(place, Mapping):
            return True
        if part not in place:
            return False
        place = place[part]
    return True


def void(changes: Sequence[str]) -> str:
    """Return the reason why a verdict does not count; empty where nothing changed."""
    return f"the specification changed after the first step: {'; '.join(changes)}" if changes else ""
