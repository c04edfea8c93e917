"""Checks of a config before anything starts: the bounds beside its fields, and rules across them."""

import dataclasses
from collections.abc import Iterable
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt, Predicate

from uptrend.config.convert import join
from uptrend.config.schema import Config, Otherwise
from uptrend.records import ConfigError


def check(config: Config) -> None:
    """Raise a ConfigError at the first value that can't work, naming its key and what would be right."""
    check_bounds(config)
    _check_stages(config)
    _check_sampling(config)
    _check_learning(config)


def check_bounds(section: Any, where: str = "") -> None:
    """Raise a ConfigError at the first value of a dataclass that is outside the bounds of its annotation."""
    hints = get_type_hints(type(section), include_extras=True)
    for field in dataclasses.fields(section):
        key, value, bounds = join(where, field.name), getattr(section, field.name), bounds_of(hints[field.name])
        if dataclasses.is_dataclass(value):
            check_bounds(value, key)
        elif not all(_holds(bound, value) for bound in bounds):
            said = next((bound.sentence for bound in bounds if isinstance(bound, Otherwise)), "")
            raise ConfigError(
                f"{key} = {value!r}: {said}" if said else f"{key} = {value} should be {in_words(bounds)}."
            )


def bounds_of(hint: Any) -> tuple[Any, ...]:
    """Return what is annotated to a field's type."""
    return tuple(get_args(hint)[1:]) if get_origin(hint) is Annotated else ()


def in_words(bounds: Iterable[Any]) -> str:
    """Return numeric bounds in words, for messages and for docs/config.md; empty where there are none."""
    words = {Ge: "at least {}", Gt: "above {}", Le: "at most {}", Lt: "below {}"}
    limits = [bound for bound in bounds if type(bound) in words]
    if len(limits) == 1 and limits[0] == Ge(0):
        return "0 or more"
    return " and ".join(words[type(limit)].format(getattr(limit, type(limit).__name__.lower())) for limit in limits)


def _holds(bound: Any, value: Any) -> bool:
    match bound:
        case Ge(least):
            return bool(value >= least)
        case Gt(low):
            return bool(value > low)
        case Le(most):
            return bool(value <= most)
        case Lt(high):
            return bool(value < high)
        case Predicate(holds):
            return bool(holds(value))
    return True


def _check_stages(config: Config) -> None:
    starts: list[int] = []
    for i, stage in enumerate(config.tasks.stages):
        start = stage.get("start")
        if isinstance(start, bool) or not isinstance(start, int):
            raise ConfigError(f"tasks.stages[{i}].start = {start!r} should be the step at which it begins.")
        starts.append(start)
    in_order = not starts or (starts[0] == 1 and starts == sorted(set(starts)))
    _need(
        in_order,
        f"tasks.stages start at {starts}: the first should start at 1, and each later than the one before.",
    )


def _check_sampling(config: Config) -> None:
    s = config.sampling
    _need(
        s.context > s.max_tokens,
        f"sampling.context = {s.context} should exceed sampling.max_tokens = {s.max_tokens}: it holds the prompt too.",
    )


def _check_learning(config: Config) -> None:
    w, groups = config.learning, config.sampling.groups
    _need(w.warmup <= w.steps, f"learning.warmup = {w.warmup} should be between 0 and learning.steps = {w.steps}.")
    _need(
        groups % w.minibatches == 0,
        f"learning.minibatches = {w.minibatches} should divide sampling.groups = {groups}.",
    )
    if w.loss == "cispo":
        _need(
            w.clip_high >= 1,
            f"learning.clip_high = {w.clip_high}: cispo clips the ratio itself at clip_high. "
            "Use 1 or more, for example 5.",
        )
    else:
        _need(w.clip_low < 1, f"learning.clip_low = {w.clip_low} should be below 1.")
    _need(
        not w.skip_dead or (w.kl.beta == 0 and w.entropy == 0),
        "learning.skip_dead = true needs learning.kl.beta = 0 and learning.entropy = 0: "
        "with either of them dead groups teach too.",
    )


def _need(holds: object, otherwise: str) -> None:
    if not holds:
        raise ConfigError(otherwise)
