"""Settings in a small JSON file beside a log: a summary or a config that a script saved."""

import json
from pathlib import Path
from typing import Any

from uptrend.bridge.importers.log import flatten

# Names that only a training's settings have; a model's own config has none of them.
_TELLING = frozenset({
    "num_generations", "learning_rate", "beta", "max_completion_length", "max_steps", "group_size", "kl_coeff",
    "kl_coef", "max_new_tokens", "num_train_epochs", "rollouts_per_example", "lora_r", "lora_rank",
    "per_device_train_batch_size",
})  # fmt: skip
_LARGEST = 200_000


def settings_in(path: Path) -> dict[str, Any]:
    """The settings that a JSON file holds, if it is one of settings and not a log."""
    if path.suffix != ".json" or path.stat().st_size > _LARGEST:
        return {}
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    if not isinstance(found, dict) or any(isinstance(v, list) and len(v) > 5 for v in found.values()):
        return {}
    names = {key.rpartition(".")[2] for key in flatten(found, ".")}
    return found if len(names & _TELLING) >= 2 else {}


def settings_beside(path: Path) -> tuple[dict[str, Any], str]:
    """The settings in the one such file beside a log, and its name; none where several could be meant."""
    found = {other.name: settings for other in path.parent.glob("*.json") if (settings := settings_in(other))}
    if len(found) != 1 or path.name in found:
        return {}, ""
    name, settings = next(iter(found.items()))
    return settings, name
