"""Load, validate, resolve, override and diff a run's config."""

# ruff: noqa: I001 (one section per line would be as long as the list below)

from uptrend.config.load import build, load_config, to_table
from uptrend.config.schema import (
    Checkpoints, Compute, Config, Doctor, Eval, Kl, Learning, Lora, Model, Sampling, Tasks, Track,
)  # fmt: skip
from uptrend.config.tables import difference

__all__ = [
    "Checkpoints", "Compute", "Config", "Doctor", "Eval", "Kl", "Learning", "Lora", "Model", "Sampling", "Tasks",
    "Track", "build", "difference", "load_config", "to_table",
]  # fmt: skip
