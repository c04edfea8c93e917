"""Settings under other trainers' names, as the nested table of a recipe."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from uptrend.bridge.importers.log import flatten, number
from uptrend.config.tables import nest
from uptrend.records.dialects import TRAINERS, logged_settings, names_of, read_setting

_TEXTS = ("learning.loss", "learning.scale", "model.name")
_KL_SWITCHES = ("use_kl_loss", "use_kl_in_reward")


@cache
def setting_words() -> frozenset[str]:
    """Return the last words of all names that mean a setting."""
    names = {name for key in logged_settings() for trainer in TRAINERS for name in names_of(key, trainer)}
    return frozenset(name.rpartition(".")[2] for name in (*names, *_KL_SWITCHES))


def config_of(facts: Mapping[str, Any], trainer: str) -> dict[str, Any]:
    """Return what the facts say, nested as a recipe is; names that mean nothing here are left out."""
    flat = {key.replace("/", ".").lower(): _bare(value) for key, value in flatten(_unwrapped(facts), ".", 8).items()}
    found = {key: read_setting(key, trainer, lambda name: _find(flat, name)) for key in logged_settings()}
    if trainer == "verl" and _find(flat, "use_kl_loss") is False and _find(flat, "use_kl_in_reward") is not True:
        found["learning.kl.beta"] = 0.0  # its weight is always there, whether or not it is used
    values = {
        key: value if key in _TEXTS else _whole(value)
        for key, value in found.items()
        if value is not None and (key in _TEXTS or _is_number(value))
    }
    if values.get("model.lora.r") == 0:  # no adapter
        values = {key: value for key, value in values.items() if not key.startswith("model.lora.")}
    if values.get("learning.steps", 1) <= 0:  # until the data ends
        del values["learning.steps"]
    return nest(values)


def _unwrapped(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Take values out of W&B's config files, which keep each as `{"value": …, "desc": …}`."""
    return {
        key: value["value"] if isinstance(value, Mapping) and "value" in value and len(value) <= 2 else value
        for key, value in facts.items()
    }


def _bare(value: Any) -> Any:
    return value.get("value") if isinstance(value, Mapping) else value


def _find(flat: Mapping[str, Any], name: str) -> Any:
    for key, value in flat.items():
        if value is not None and (key == name or key.endswith("." + name)):
            return value
    return None


def _is_number(value: Any) -> bool:
    return not isinstance(value, bool) and number(value) is not None


def _whole(value: Any) -> int | float:
    found = number(value)
    assert found is not None
    return int(found) if found == int(found) and not isinstance(value, float) else found
