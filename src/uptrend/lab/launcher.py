"""How the lab has runs made: it names them, and `runner` says how one is started."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from uptrend.records.hypothesis import Method, Source


@dataclass(frozen=True)
class Resolved:
    """A recipe with an arm's overrides and a seed, every value filled in."""

    config: Mapping[str, Any]
    """The whole config."""
    tasks: str
    """The hash of the tasks that it trains on."""
    held_out: str
    """The hash of the tasks that it is evaluated on."""


@dataclass(frozen=True)
class PlannedRun:
    """One run of an experiment."""

    arm: str
    """Which arm."""
    seed: int
    """Which seed."""
    hash: str
    """Of everything that could change its result."""
    config: Mapping[str, Any]
    """The whole config."""
    folder: Path
    """Where its run directory is, or will be."""
    allows: tuple[str, ...] = ()
    """Catalogue ids that must not stop it."""
    method: Method = Method.TRAIN
    """How it is made."""
    source: Source | None = None
    """What a replay replays; its run is a path that can be opened."""
    asks: bool = True
    """Whether the cheap probes are asked first; those of one seed an arm are enough."""


class Launcher(Protocol):
    """What the lab needs of packages that it may not import."""

    def resolve(self, recipe: Path, overrides: Mapping[str, Any]) -> Resolved:
        """Load a recipe with overrides (the seed among them), make its tasks, and hash them."""

    def command(self, planned: PlannedRun) -> list[str]:
        """The command line that makes a planned run's run in a process of its own, or goes on with it."""
