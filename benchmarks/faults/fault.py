"""What a planted fault is: one cause of the catalogue, put where the real bug would be."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

PlantedFault = Callable[[], AbstractContextManager[Any]]
Settings = Mapping[str, Any]
"""Config values by dotted key, as the fault sets them."""


@dataclass(frozen=True)
class Strength:
    """One way in which a fault is planted."""

    name: str
    """A word for it."""
    plant: PlantedFault = nullcontext
    """Plants it for as long as the context is entered."""
    settings: Settings = field(default_factory=dict)
    """The config values that are wrong, or without which it can't show."""
    two_turns: bool = False
    """Whether it needs a task of several turns."""


@dataclass(frozen=True)
class Fault:
    """One cause, at one or more strengths."""

    id: str
    """Its id in the catalogue."""
    strengths: tuple[Strength, ...]
    """From the plainest on; the first is planted on the fitting half, all of them on the reported half."""
    steps: int = 5
    """How long it is trained; invariants and probes need 5 at most."""
    also: tuple[str, ...] = ()
    """Other ids that name the same cause rightly, fixed before anything was run."""
    fix: tuple[str, ...] = ()
    """The config keys of which a right fix changes one; empty where code is wrong, and the cause must be right."""
    two_turns: bool = False
    """Whether all of its strengths do."""
    wordy: bool = False
    """Whether it shows on a model of words alone."""
    seeds: int = 1
    """Seeds on the reported half: curves' faults have more than one."""

    @property
    def right(self) -> frozenset[str]:
        """Every id that counts as right."""
        return frozenset((self.id, *self.also))


def of_plant(id: str, plant: PlantedFault = nullcontext, settings: Settings | None = None, **rest: Any) -> Fault:
    """A fault with one strength."""
    return Fault(id, (Strength("planted", plant, settings or {}),), **rest)


def of_settings(id: str, *settings: Settings, **rest: Any) -> Fault:
    """A fault of the config alone, a strength for each table; its fix changes what the table sets."""
    strengths = tuple(Strength(_words(table), settings=table) for table in settings)
    return Fault(id, strengths, fix=rest.pop("fix", tuple(settings[0])), **rest)


def _words(table: Settings) -> str:
    return ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in table.items())
