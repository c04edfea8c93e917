"""The recipes that faults are planted into: one for fitting, others for what is reported.

Chosen before anything was run. Thresholds may be looked at on `sums` (sums and differences, partial
credit) alone; `products` (all three operations, graded by distance, another temperature and shape
of step) and `words` (smollm2-135m) are what the scoreboard reports. They state what has a default
that could move, so that the measured confidence of findings stays that of these recipes.
"""

from collections.abc import Mapping
from typing import Any

from uptrend.config import Config, load_config

FITTING, REPORTED = "sums", "products"

Table = dict[str, Any]
SUMS: Table = {
    "name": "sums",
    "model": {"name": "tiny"},
    "tasks": {"name": "arithmetic", "operations": ["+", "-"], "train": 700, "reward": "partial"},
    "eval": {"name": "arithmetic", "operations": ["+", "-"], "tasks": 60, "every": 20},
    "sampling": {"groups": 8, "size": 8, "temperature": 0.7, "max_tokens": 5},
    "learning": {"steps": 60, "lr": 1e-4, "beta2": 0.99, "loss": "grpo", "warmup": 0},
    "checkpoints": {"every": 0},
    "compute": {"threads": 1, "device": "cpu"},
}
PRODUCTS: Table = {
    **SUMS,
    "name": "products",
    "tasks": {"name": "arithmetic", "train": 900, "reward": "rich", "seed": 1},
    "eval": {"name": "arithmetic", "tasks": 80, "every": 20},
    "sampling": {"groups": 12, "size": 6, "temperature": 0.9, "max_tokens": 6},
    "learning": {"steps": 60, "lr": 5e-5, "beta2": 0.99, "loss": "dapo", "warmup": 0},
}
WORDS: Table = {
    **SUMS,
    "name": "words",
    "model": {"name": "smollm2-135m"},
    "tasks": {
        "name": "arithmetic",
        "operations": ["+", "-"],
        "high": 9,
        "train": 120,
        "reward": "rich",
    },
    "eval": {"name": "arithmetic", "operations": ["+", "-"], "high": 9, "tasks": 16, "every": 0},
    "sampling": {"groups": 4, "size": 6, "temperature": 1.0, "max_tokens": 5},
    "learning": {"steps": 40, "lr": 2e-5, "loss": "grpo", "warmup": 0},
}
TWO_TURNS: Table = {
    "tasks": {"name": "benchmarks.faults.two_turns:TwoTurns", "train": 300},
    "eval": {"name": "benchmarks.faults.two_turns:TwoTurns", "tasks": 40, "every": 20},
    "sampling": {"max_turns": 3},
}
RECIPES: Mapping[str, Table] = {"sums": SUMS, "products": PRODUCTS, "words": WORDS}


def make_config(
    recipe: str, settings: Mapping[str, Any], *, two_turns: bool = False, seed: int = 0
) -> Config:
    """A recipe with values set by dotted key."""
    table: Table = {
        key: dict(value) if isinstance(value, dict) else value
        for key, value in RECIPES[recipe].items()
    }
    if two_turns:
        table |= {"tasks": dict(TWO_TURNS["tasks"]), "eval": dict(TWO_TURNS["eval"])}
        table["sampling"] |= TWO_TURNS["sampling"]
    for key, value in {"seed": seed, **settings}.items():
        *sections, last = key.split(".")
        place = table
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value
    return load_config(table, checked=False)  # a fault may be a value that is refused
