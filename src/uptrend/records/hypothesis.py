"""A claim with its criteria fixed beforehand, and the arms whose comparison decides it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from uptrend.records.finding import Confidence


class Status(StrEnum):
    """Where a hypothesis stands."""

    PENDING = "pending"
    """Nothing was run yet."""
    TESTING = "testing"
    """Its experiment has begun."""
    VALIDATED = "validated"
    """Its validation criterion is met."""
    INVALIDATED = "invalidated"
    """Its invalidation criterion is met: an effect that matters is excluded."""
    INCONCLUSIVE = "inconclusive"
    """Neither criterion is met, or the experiment does not count."""


class Priority(StrEnum):
    """What to test first."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class Direction(StrEnum):
    """Where the claim says that an arm goes, against the control."""

    UP = "up"
    DOWN = "down"
    EITHER = "either"
    """That it makes a difference, whichever way."""


class Method(StrEnum):
    """How an arm is made."""

    TRAIN = "train"
    """A run of its own."""
    REPLAY = "replay"
    """The recorded rollouts of another run, updated from again; nothing is sampled."""


VALIDATED_IF = "low > 0"
INVALIDATED_IF = "high < smallest"


@dataclass(frozen=True)
class Arm:
    """One side of a comparison."""

    name: str
    """What it is called; short, no slash."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """Config values by dotted key, on top of the base recipe."""
    is_control: bool = False
    """Whether the others are compared with it."""


@dataclass(frozen=True)
class Source:
    """Where a replay takes its rollouts from."""

    run: str
    """A run directory, relative to the lab's folder."""
    step: int = 0
    """The step whose weights it begins with; 0 is the model before training."""


@dataclass(frozen=True)
class Hypothesis:
    """One claim; what decides of it (criteria, arms, recipe, seeds) is hashed before the first step."""

    id: str
    """h01, h02, …"""
    title: str
    """The claim in a few words."""
    recipe: str
    """The base recipe, relative to the lab's folder."""
    arms: tuple[Arm, ...]
    """The sides that are compared; one of them is the control."""
    priority: Priority = Priority.MEDIUM
    """What to test first."""
    status: Status = Status.PENDING
    """Where it stands; the machine writes it."""
    confidence: Confidence | None = None
    """How much the evidence bears; the machine writes it."""
    cause: str = ""
    """The catalogue id that it is about; empty for none."""
    explains: str = ""
    """What it would explain, in a sentence."""
    metric: str = "eval/accuracy"
    """What is compared: eval/accuracy, eval/reward, eval/part/NAME, eval/pass@K, or a metric of the steps."""
    direction: Direction = Direction.UP
    """Where the claim says that the arms go."""
    smallest: float = 0.05
    """The smallest effect that matters, in the metric's unit."""
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    """The same in every arm."""
    alpha: float = 0.05
    """The chance of a wrong verdict that is accepted."""
    steps: int = 0
    """Steps a run; 0 for the recipe's."""
    method: Method = Method.TRAIN
    """How arms are made."""
    source: Source | None = None
    """What a replay replays."""
    stops_early: bool = True
    """Whether to end when the confidence sequence over seeds is clear or hopeless."""
    validated_if: str = VALIDATED_IF
    """In effect, low, high, smallest, control and arm; effects count in the claimed direction."""
    invalidated_if: str = INVALIDATED_IF
    """Likewise; where both are met, it is invalidated: an effect, but smaller than matters."""
    prerequisites: tuple[str, ...] = ()
    """Ids of hypotheses to decide first."""
    allows: tuple[str, ...] = ()
    """Catalogue ids that may be found in an arm besides the cause itself."""

    @property
    def control(self) -> Arm:
        """The arm that the others are compared with."""
        return next(arm for arm in self.arms if arm.is_control)

    @property
    def treated(self) -> tuple[Arm, ...]:
        """The others."""
        return tuple(arm for arm in self.arms if not arm.is_control)
