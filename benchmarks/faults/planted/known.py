"""Plants that the doctor's own tests use too, as strengths: one place for each."""

import tomllib
from typing import Any

from benchmarks.faults.fault import Strength
from tests.doctor.planted_faults import PLANTED_FAULTS


def known(name: str, **settings: Any) -> Strength:
    """A plant by its name, with the config values that it needs and perhaps more (`__` for a dot)."""
    plant = PLANTED_FAULTS[name]
    needs = {key: _value(text) for key, _, text in (need.partition("=") for need in plant.needs)}
    return Strength(name, plant.plant, needs | {key.replace("__", "."): value for key, value in settings.items()})


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        return text
