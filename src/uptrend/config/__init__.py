"""Load, validate, resolve, override and diff a run's config."""

from uptrend.config.load import build, load_config, to_table
from uptrend.config.schema import (
    Checkpoints,
    Compute,
    Config,
    Doctor,
    Eval,
    Kl,
    Learning,
    Lora,
    Model,
    Sampling,
    Tasks,
    Track,
)
from uptrend.config.tables import difference

__all__ = [
    "Checkpoints",
    "Compute",
    "Config",
    "Doctor",
    "Eval",
    "Kl",
    "Learning",
    "Lora",
    "Model",
    "Sampling",
    "Tasks",
    "Track",
    "build",
    "difference",
    "load_config",
    "to_table",
]
