"""What differs between a specification as it was written and as the files give it now, each change by its name."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from uptrend.config import difference
from uptrend.lab.plan import what_matters
from uptrend.stats.formatting import setting

if TYPE_CHECKING:
    from uptrend.lab.specification import Specification

HASHES = {
    "tasks": "hash of its training tasks",
    "held_out": "hash of its held-out tasks",
    "model": "hash of its model's folder",
}


def changed(then: "Specification", now: "Specification") -> list[str]:
    """What differs between what was written and what stands now, each by its name: `smallest 0.05 → 0.02`."""
    found = [
        f"{key} {setting(then.criteria.get(key), quote=False)} → {setting(value, quote=False)}"
        for key, value in now.criteria.items()
        if then.criteria.get(key) != value
    ]
    found += [f"arm {name} is gone" for name in then.arms if name not in now.arms]
    found += [f"arm {name} is new" for name in now.arms if name not in then.arms]
    shared = [name for name in now.arms if name in then.arms]
    found += [
        f"{'' if len(where) == len(shared) else ' and '.join(where) + ': '}{change}"
        for change, where in _changes(then, now, shared).items()
    ]
    if then.uptrend != now.uptrend:
        found.append(f"uptrend {then.uptrend} → {now.uptrend}")
    return found


def _changes(then: "Specification", now: "Specification", arms: Sequence[str]) -> dict[str, list[str]]:
    """What changed within arms, and in which of them."""
    found = dict[str, list[str]]()
    for name in arms:
        a, b = then.arms[name], now.arms[name]
        keys = difference(what_matters(a["config"]), what_matters(b["config"]))
        said = [
            f"{key} {setting(x, quote=False)} → {setting(y, quote=False)}"
            for key, (x, y) in keys.items()
            if not key.startswith("compute.device")
        ]
        # A model's folder that is not on this machine is no change: whoever judges needs only the runs.
        pairs = {words: (a.get(key), b.get(key, a.get(key))) for key, words in HASHES.items()}
        said += [f"{words} {x} → {y}" for words, (x, y) in pairs.items() if x != y]
        said += ["it is the control now"] if b["control"] and not a["control"] else []
        for change in said:
            found.setdefault(change, []).append(name)
    return found


def void(changes: Sequence[str]) -> str:
    """Why a verdict does not count; empty where nothing changed."""
    return f"the specification changed after the first step: {'; '.join(changes)}" if changes else ""
