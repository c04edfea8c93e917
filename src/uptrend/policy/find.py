"""From a model's name to a folder or hub id that transformers can load."""

from pathlib import Path

from uptrend.policy.known import KNOWN, TINY
from uptrend.records import ModelError

FOLDERS = ("models/", ".", "/", "~")
"""Prefixes of names that can only be folders; warm starts write to `models/`."""


def find_model(name: str) -> str:
    """Return a known model's folder (pulled if missing), a folder that exists, or a hub id as it is."""
    if name == "smollm2-135m":
        from uptrend.policy.pull import smollm2

        return str(smollm2())
    if name == "tiny":
        return str(TINY)
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / "config.json").exists() and not (path / "adapter_config.json").exists():
            raise ModelError(f"{name} is a folder without a config.json: not a model that transformers can load.")
        return str(path)
    if name.startswith(FOLDERS) or ("/" in name and Path(name.partition("/")[0]).is_dir()):
        raise ModelError(
            f"There is no model {name!r}: there is no such folder. "
            f"A warm start makes one: uptrend warmstart RECIPE --out {name}"
        )
    if name.count("/") != 1:
        raise ModelError(
            f"There is no model {name!r}: not one of {', '.join(KNOWN)}, not a folder, not a hub id (owner/name)."
        )
    return name
