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
    """Its invalidation criterion is met: an effect that matters is excluded."""
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
    """The recorded rollouts of another run, updated from again; nothing is sampled."""


# Words for an inconclusive verdict on a cure whose control is not ill.
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
    """The step whose weights it begins with; 0 is the model before training."""


@dataclass(frozen=True)
class Hypothesis:
    """One claim; its criteria, arms, recipe and seeds are hashed before the first step."""

    id: str
    title: str
    recipe: str
    """The base recipe, relative to the lab's folder."""
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
    """The smallest effect that matters, in the metric's unit."""
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    alpha: float = 0.05
    """The chance of a wrong verdict that is accepted."""
    steps: int = 0
    """Steps per run; 0 for the recipe's."""
    method: Method = Method.TRAIN
    source: Source | None = None
    stops_early: bool = True
    """End when the confidence sequence over seeds is clear or hopeless."""
    validated_if: str = VALIDATED_IF
    """The same for every claim; low and high are those of the interval, in the claimed
    direction.
    """
    invalidated_if: str = INVALIDATED_IF
    """Likewise; where both are met, it is invalidated: an effect, but smaller than matters."""
    prerequisites: tuple[str, ...] = ()
    allows: tuple[str, ...] = ()
    """Catalogue ids that may be found in an arm besides the cause itself."""

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
    """The same before the first step, where it is known."""
    tasks: Mapping[str, float] = field(default_factory=dict)
    """The same by held-out task; empty for a metric that has none."""
    families: Mapping[str, str] = field(default_factory=dict)
    run: str = ""
    """The run directory, relative to the lab's folder."""
    reached: bool = True
    """False where the metric is a first step that never came: the value is then later than every
    step that was run.
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
    """Over seeds: Student's paired interval at `level`, or the confidence sequence's where it
    stopped early.
    """
    level: float
    """1 − alpha, shared among the arms."""
    p: float
    """Of the paired t test, two-sided; the confidence sequence's where that is the interval."""
    p_adjusted: float | None
    """After Benjamini and Hochberg, where several hypotheses are judged together."""
    sign_flip: float
    """The exact sign-flip test's p, one-sided in the claimed direction."""
    sign_flip_both: float
    sign_flip_least: float
    """The least one-sided p that this many seeds can give."""
    improvement: Interval
    tasks_too: Interval | None
    """The effect with its interval over seeds and tasks both: about other tasks of the kind too."""
    iqm: Interval | None
    """The difference of interquartile means across tasksets, where there are several."""
    power: float
    """The chance that these seeds, deviating as they did, would validate the smallest effect that
    matters.
    """
    seeds_needed: int | None
    """Number of seeds that would decide, where these did not; None where they did or it can't be
    told.
    """
    status: Status
    sentence: str


@dataclass(frozen=True)
class Verdict:
    """The verdict on one hypothesis."""

    hypothesis: str
    status: Status
    confidence: Confidence
    because: str
    sentence: str
    comparisons: tuple[Comparison, ...]
    stopped_early: bool = False
    """True where the confidence sequence decided before all seeds were run."""
    void: str = ""
    """Reason why it does not count; empty where it does."""
    refused: Mapping[str, str] = field(default_factory=dict)
    specification: str = ""
    nothing_to_cure: str = ""
    """Reason why no arm could cure the control of the cause; empty where it has it, or where no
    cause is named.
    """

    @property
    def outcome(self) -> str:
        """Status in the words that every surface shows."""
        if self.void:
            return "does not count"
        return NOTHING_TO_CURE if self.nothing_to_cure else str(self.status)
