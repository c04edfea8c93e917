"""Relative values of a fix or an experiment, made concrete with the config that the run had."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from uptrend.records import Experiment, Fix, RunView, Times

OURS = {
    "learning_rate": "learning.lr",
    "trainer.optim.lr": "learning.lr",
    "max_steps": "learning.steps",
    "num_generations": "sampling.size",
    "rollouts_per_example": "sampling.size",
    "orchestrator.group_size": "sampling.size",
    "max_completion_length": "sampling.max_tokens",
    "max_tokens": "sampling.max_tokens",
    "orchestrator.train.sampling.max_completion_tokens": "sampling.max_tokens",
}
"""Keys of other trainers that mean what one of Uptrend's does."""


def resolve_fix(fix: Fix, view: RunView) -> Fix:
    """The fix with every `Times` of Uptrend's and the run's own trainer's keys multiplied out where it is known."""
    whose = {"uptrend", view.trainer} & {*fix.changes}
    return replace(fix, changes={**fix.changes, **{who: _concrete(fix.changes[who], view) for who in whose}})


def resolve_experiment(experiment: Experiment, view: RunView) -> Experiment:
    """The experiment with its arms' values made concrete likewise."""
    return replace(experiment, arms={name: _concrete(keys, view) for name, keys in experiment.arms.items()})


def _concrete(keys: Mapping[str, Any], view: RunView) -> dict[str, Any]:
    return {key: _value(key, value, view) for key, value in keys.items()}


def _value(key: str, value: Any, view: RunView) -> Any:
    if not isinstance(value, Times):
        return value
    now = view.value(OURS.get(key, key))
    if isinstance(now, bool) or not isinstance(now, int | float):
        return value
    scaled = now * value.factor
    return round(scaled) if isinstance(now, int) else float(f"{scaled:.3g}")
