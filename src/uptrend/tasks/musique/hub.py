"""Datasets of a hub, named as `path,config,split[:N]`, several joined by `;`."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from uptrend.records import ConfigError, MissingExtra, TasksetError


@dataclass(frozen=True)
class HubSource:
    """One dataset."""

    path: str
    """Its id on the hub, or a folder."""
    config: str
    """Which of its configurations; empty for the only one."""
    split: str
    """Which split, with a slice where one was given, as in train[:256]."""


def read_sources(text: str) -> list[HubSource]:
    """The datasets that a string names."""
    return [_source(part.strip()) for part in text.split(";") if part.strip()]


def read_hub(text: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every row of the datasets that a string names, with where it stands."""
    sources = read_sources(text)
    try:
        import datasets
    except ImportError:
        raise MissingExtra("datasets", "hub") from None
    for source in sources:
        name = f"{source.path},{source.config},{source.split}"
        try:
            rows = datasets.load_dataset(source.path, source.config or None, split=source.split)
        except Exception as error:  # the library raises whatever its back ends do
            reason = str(error).strip().split("\n")[0]
            raise TasksetError(f"The dataset {name} can't be loaded: {reason or type(error).__name__}.") from error
        for number, row in enumerate(rows):
            yield f"{name}, row {number}", row


def _source(text: str) -> HubSource:
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != 3 or not parts[0] or not re.fullmatch(r"[\w.+-]+(\[[^\[\]]*\])?", parts[2]):
        raise ConfigError(
            f"datasets = {text!r} should be path,config,split, for example bdsaglam/musique,answerable,train[:256]; "
            "several are joined by a semicolon."
        )
    return HubSource(*parts)
