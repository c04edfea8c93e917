"""Versions and combinations that are known to be bad: `known_bad.toml`, and runs that have them."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from uptrend.doctor.catalogue import settings_in_force
from uptrend.records import RunView

TABLE_FILE = Path(__file__).with_name("known_bad.toml")


@dataclass(frozen=True)
class Combination:
    """Versions and settings of which a public thread established that they cause a fault."""

    id: str
    """The cause."""
    packages: Mapping[str, str]
    """Version specifiers by package; all must hold."""
    symptom: str
    change: str
    """What repairs it."""
    source: str
    """Address of the thread."""
    trainer: str = ""
    """Trainer that it concerns; empty for any."""
    settings: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Values of the trainer's own settings, one of which each must have."""
    unless: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Settings that are not affected with one of these values, or if they are not known."""
    adapters: bool = False
    """True if only adapters are affected."""

    def matches(self, view: RunView) -> bool:
        """Return True if a run has these versions and settings."""
        if self.trainer and view.trainer != self.trainer:
            return False
        known = settings_in_force(view)
        if self.adapters and not (known("model.lora.r") or known("model.lora")):
            return False
        for name, values in self.settings.items():
            if known(name) not in values:
                return False
        for name, values in self.unless.items():
            if known(name) is None or known(name) in values:
                return False
        versions = recorded_versions(view)
        return all(
            package in versions and versions[package] in SpecifierSet(specifier, prereleases=True)
            for package, specifier in self.packages.items()
        )


@cache
def known_combinations() -> tuple[Combination, ...]:
    """Return the table."""
    table = tomllib.loads(TABLE_FILE.read_text(encoding="utf-8"))
    return tuple(Combination(**entry) for entry in table["combination"])


def recorded_versions(view: RunView) -> dict[str, Version]:
    """Return the versions of the packages that a run recorded; those that are none are left out."""
    packages = view.info.get("packages")
    versions: dict[str, Version] = {}
    for name, text in packages.items() if isinstance(packages, Mapping) else ():
        try:
            versions[str(name).lower()] = Version(str(text))
        except InvalidVersion:
            continue
    return versions
