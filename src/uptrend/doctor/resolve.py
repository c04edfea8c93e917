"""Fixes and experiments for one run: relative values made concrete, and fixes translated for every trainer."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from uptrend.records import Experiment, Fix, RunView, Times
from uptrend.records.dialects import TRAINERS, Find, to_ours, to_theirs


def resolve_fix(fix: Fix, view: RunView) -> Fix:
    """Return the fix for all trainers, with every `Times` of ours and of the run's own trainer made concrete."""
    return complete_fix(fix, view.trainer, view.value)


def complete_fix(fix: Fix, trainer: str = "", known: Find = lambda _: None) -> Fix:
    """Return the fix with the changes of every trainer: ours translated, and those that are the trainer's alone.

    `known` gives values of a run of `trainer` by our keys.
    """
    ours = fix.changes.get("uptrend", {})
    concrete = _concrete(ours, "uptrend", known)
    changes, notes = {"uptrend": concrete}, dict[str, tuple[str, ...]]()
    for who in TRAINERS:
        is_own = who == trainer
        changes[who], notes[who] = _translated(concrete if is_own else ours, who, fix, known if is_own else None)
        alone = fix.changes.get(who, {})
        changes[who] |= _concrete(alone, who, known) if is_own else alone
    given = {who: keys for who, keys in changes.items() if keys}
    return replace(fix, changes=given, notes={who: notes[who] for who in given if notes.get(who)})


def resolve_experiment(experiment: Experiment, view: RunView) -> Experiment:
    """Return the experiment with its arms' values made concrete."""
    arms = {name: _concrete(keys, "uptrend", view.value) for name, keys in experiment.arms.items()}
    return replace(experiment, arms=arms)


def _translated(
    ours: Mapping[str, Any], trainer: str, fix: Fix, known: Find | None
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """A trainer's settings for changes of ours, and the notes on them."""
    settings, notes = dict[str, Any](), []
    for key, value in ours.items():
        found = to_theirs(key, value, trainer, known or (lambda _: None)) if key not in fix.untranslated else None
        if found is not None and found.settings:
            settings |= found.settings
            notes += [f"{next(iter(found.settings))}: {found.note}"] if found.note else []
    return settings, tuple(notes)


def _concrete(keys: Mapping[str, Any], trainer: str, known: Find) -> dict[str, Any]:
    return {
        key: _value(key if trainer == "uptrend" else to_ours(trainer, key) or key, value, known)
        for key, value in keys.items()
    }


def _value(key: str, value: Any, known: Find) -> Any:
    if not isinstance(value, Times):
        return value
    now = known(key)
    if isinstance(now, bool) or not isinstance(now, int | float):
        return value
    scaled = now * value.factor
    return round(scaled) if isinstance(now, int) else float(f"{scaled:.3g}")
