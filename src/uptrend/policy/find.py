"""From a model's name to a folder or hub id that transformers can load."""

from collections.abc import Callable, Sequence
from pathlib import Path

from uptrend.policy.known import KNOWN
from uptrend.records import ModelError

Demonstrations = Callable[[], Sequence[tuple[str, str]]]
"""Gives (prompt, answer) pairs to teach `tiny` with; joined in where the tasks are known."""

FOLDERS = ("models/", ".", "/", "~")
"""How names begin that can only be folders; `models/` is where warm starts put theirs."""


def find_model(name: str, demonstrations: Demonstrations | None = None) -> str:
    """A known model's folder (made if missing), a folder that is there, or a hub id as it is."""
    if name == "smollm2-135m":
        from uptrend.policy.pull import smollm2

        return str(smollm2())
    if name == "tiny":
        from uptrend.policy.tiny import tiny

        if demonstrations is None:
            raise ModelError(
                "tiny needs demonstrations to be taught with; start it through a recipe or `uptrend models pull tiny`."
            )
        return str(tiny(demonstrations()))
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
