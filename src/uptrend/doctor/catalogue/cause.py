"""What is known of one cause before any run is looked at."""

from dataclasses import dataclass
from enum import StrEnum

from uptrend.records import Experiment, Fix, Rival


class Kind(StrEnum):
    """How a cause can be shown."""

    INVARIANT = "I"
    """Something that must hold exactly, or to rounding, on one batch."""
    PROBE = "P"
    """A question to the model, before training."""
    CURVE = "C"
    """A check on recorded curves."""


@dataclass(frozen=True)
class Cause:
    """One way in which a run does not learn."""

    id: str
    """package.name, fixed for ever."""
    kind: Kind
    """How it can be shown."""
    what: str
    """What it is, in one sentence."""
    fix: Fix
    """What to do about it."""
    experiment: Experiment
    """What decides."""
    rivals: tuple[Rival, ...] = ()
    """What looks the same."""
    explains: tuple[str, ...] = ()
    """Ids of causes whose signal it also produces: where both are found, those are its symptoms."""
    in_scalars: bool = False
    """Whether a metrics log alone shows it for certain, though it is an invariant or needs a probe elsewhere."""
