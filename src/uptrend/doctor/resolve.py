"""Relative values of a fix or an experiment, made concrete with the config that the run had."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from uptrend.records import Experiment, Fix, RunView, Times


def resolve_fix(fix: Fix, view: RunView) -> Fix:
    """The fix with every `Times` of Uptrend's keys multiplied out where the run's value is known."""
    ours = {"uptrend": _concrete(fix.changes["uptrend"], view)} if "uptrend" in fix.changes else {}
    return replace(fix, changes={**fix.changes, **ours})


def resolve_experiment(experiment: Experiment, view: RunView) -> Experiment:
    """The experiment with its arms' values made concrete likewise."""
    return replace(experiment, arms={name: _concrete(keys, view) for name, keys in experiment.arms.items()})


def _concrete(keys: Mapping[str, Any], view: RunView) -> dict[str, Any]:
    return {key: _value(key, value, view) for key, value in keys.items()}


def _value(key: str, value: Any, view: RunView) -> Any:
    if not isinstance(value, Times):
        return value
    now = view.value(key)
    if not isinstance(now, int | float):
        return value
    scaled = now * value.factor
    return round(scaled) if isinstance(now, int) else float(f"{scaled:.3g}")
