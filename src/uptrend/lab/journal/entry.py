"""What the journal is told of an experiment beside its verdict: how it was made, and the runs behind it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ArmRun:
    """One run of an experiment, finished or not."""

    arm: str
    """Which arm."""
    seed: int
    """Which seed."""
    status: str
    """finished, stopped, failed, killed, running, refused, or skipped where an early stop made it needless."""
    folder: str = ""
    """Its run directory, relative to the lab's folder; empty where none was made."""
    value: float | None = None
    """The hypothesis's metric at the end."""
    before: float | None = None
    """The same before the first step, where it is known."""
    seconds: float | None = None
    """How long it took."""
    reason: str = ""
    """Why it failed or was refused."""


@dataclass(frozen=True)
class Entry:
    """One experiment, as its dated entry in the log tells it."""

    date: str
    """When it was judged: ISO 8601, to the second."""
    command: str
    """The command line that made it."""
    recipe: str
    """The base recipe, relative to the lab's folder."""
    differences: Mapping[str, Mapping[str, tuple[Any, Any]]] = field(default_factory=dict)
    """By arm, the control left out: the config keys that differ from the control, with its value and the arm's."""
    runs: tuple[ArmRun, ...] = ()
    """Every run, in the order of arms and seeds."""
    seconds: float | None = None
    """From the first run's start to the verdict."""
    machine: str = ""
    """What it ran on, in words."""
    version: str = ""
    """Uptrend's."""
    notes: tuple[str, ...] = ()
    """What else should be known: files that changed, seeds that lack an arm."""
