"""A claim with criteria fixed in advance, the arms whose comparison decides it, and the verdict."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from uptrend.records.finding import Confidence


class Status(StrEnum):
    """State of a hypothesis."""

    PENDING = "pending"
    TESTING = "testing"
    VALIDATED = "validated"
    INVALIDATED = "invalidated"
    """The invalidation criterion is met: an effect that matters is excluded."""
    INCONCLUSIVE = "inconclusive"
    """Neither criterion is met, or the experiment does not count."""


class Priority(StrEnum):
    """Order in which to test."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class Direction(StrEnum):
    """Direction of the claimed effect, arm against control."""

    UP = "up"
    DOWN = "down"
    EITHER = "either"


class Method(StrEnum):
    """Way to make an arm."""

    TRAIN = "train"
    REPLAY = "replay"
    """Updates from the recorded rollouts of another run; nothing is sampled."""


# Outcome of an inconclusive verdict on a cure whose control does not have the cause.
NOTHING_TO_CURE = "nothing to cure"

VALIDATED_IF = "low > 0"
INVALIDATED_IF = "high < smallest"


@dataclass(frozen=True)
class Arm:
    """One side of a comparison."""

    name: str
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """Config values by dotted key, on top of the base recipe."""
    is_control: bool = False


@dataclass(frozen=True)
class Source:
    """Rollouts that a replay takes."""

    run: str
    step: int = 0
    """Step whose weights it begins with; 0 is the model before training."""


@dataclass(frozen=True)
class Hypothesis:
    """One claim; its criteria, arms, recipe and seeds are hashed before the first step."""

    id: str
    title: str
    recipe: str
    """Base recipe, relative to the lab's folder."""
    arms: tuple[Arm, ...]
    priority: Priority = Priority.MEDIUM
    status: Status = Status.PENDING
    confidence: Confidence | None = None
    cause: str = ""
    explains: str = ""
    metric: str = "eval/accuracy"
    """Compared quantity: eval/accuracy, eval/reward, eval/part/NAME, eval/pass@K, or a metric of
    the steps.
    """
    direction: Direction = Direction.UP
    smallest: float = 0.05
    """Smallest effect that matters, in the metric's unit."""
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    alpha: float = 0.05
    """Accepted probability of a wrong verdict."""
    steps: int = 0
    """Steps per run; 0 for the recipe's."""
    method: Method = Method.TRAIN
    source: Source | None = None
    stops_early: bool = True
    """End when the confidence sequence over seeds is clear or hopeless."""
    validated_if: str = VALIDATED_IF
    """Criterion, the same for every claim; low and high are those of the interval, in the claimed
    direction.
    """
    invalidated_if: str = INVALIDATED_IF
    """Criterion; if both are met, the claim is invalidated: the effect is smaller than matters."""
    prerequisites: tuple[str, ...] = ()
    allows: tuple[str, ...] = ()
    """Catalogue ids of findings that an arm may have besides the cause itself."""

    @property
    def control(self) -> Arm:
        return next(arm for arm in self.arms if arm.is_control)

    @property
    def treated(self) -> tuple[Arm, ...]:
        return tuple(arm for arm in self.arms if not arm.is_control)


@dataclass(frozen=True)
class Measured:
    """One finished run of an arm, as a verdict sees it."""

    arm: str
    seed: int
    value: float
    before: float | None = None
    """Value before the first step; None if it is unknown."""
    tasks: Mapping[str, float] = field(default_factory=dict)
    """Values by held-out task; empty for a metric of the steps."""
    families: Mapping[str, str] = field(default_factory=dict)
    run: str = ""
    """Run directory, relative to the lab's folder."""
    reached: bool = True
    """False if the metric is a first step that was never reached: the value is then later than
    every step of the run.
    """


@dataclass(frozen=True)
class Interval:
    """An estimate with its interval."""

    effect: float
    low: float
    high: float


@dataclass(frozen=True)
class Comparison:
    """One arm against the control; effects count in the claimed direction."""

    arm: str
    seeds: tuple[int, ...]
    differences: tuple[float, ...]
    control_mean: float
    arm_mean: float
    interval: Interval
    """Interval over seeds: Student's paired interval at `level`, or the confidence sequence's if it
    stopped early.
    """
    level: float
    """1 − alpha, shared among the arms."""
    p: float
    """Two-sided p of the paired t test; the confidence sequence's if that is the interval."""
    p_adjusted: float | None
    """p after Benjamini and Hochberg, if several hypotheses are judged together."""
    sign_flip: float
    """One-sided p of the exact sign-flip test, in the claimed direction."""
    sign_flip_both: float
    """Two-sided p of the exact sign-flip test."""
    sign_flip_least: float
    """Smallest one-sided p that this many seeds can have."""
    improvement: Interval
    tasks_too: Interval | None
    """Effect with its interval over seeds and tasks, which covers other tasks of the kind too."""
    iqm: Interval | None
    """Difference of interquartile means across tasksets, if there are several."""
    power: float
    """Probability that these seeds, with their deviation, would validate the smallest effect that
    matters.
    """
    seeds_needed: int | None
    """Number of seeds that would decide, if these did not; None if they did or it is unknown."""
    status: Status
    sentence: str


@dataclass(frozen=True)
class Verdict:
    """Verdict on one hypothesis."""

    hypothesis: str
    status: Status
    confidence: Confidence
    because: str
    sentence: str
    comparisons: tuple[Comparison, ...]
    stopped_early: bool = False
    """True if the confidence sequence decided before all seeds were run."""
    void: str = ""
    """Reason why it does not count; empty if it does."""
    refused: Mapping[str, str] = field(default_factory=dict)
    specification: str = ""
    nothing_to_cure: str = ""
    """Reason why no arm could cure the control of the cause; empty if the control has the cause, or
    if none is named.
    """

    @property
    def outcome(self) -> str:
        """Status in the words that every surface shows."""
        if self.void:
            return "does not count"
        return NOTHING_TO_CURE if self.nothing_to_cure else str(self.status)
