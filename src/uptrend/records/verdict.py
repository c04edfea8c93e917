"""What an experiment's runs say of a hypothesis: figures, verdict, and how much they bear."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from uptrend.records.finding import Confidence
from uptrend.records.hypothesis import Status


@dataclass(frozen=True)
class Measured:
    """One finished run of an arm, as a verdict sees it."""

    arm: str
    """Which arm."""
    seed: int
    """Which seed."""
    value: float
    """The hypothesis's metric at the end."""
    before: float | None = None
    """The same before the first step, where it is known."""
    tasks: Mapping[str, float] = field(default_factory=dict)
    """The same by held-out task; empty for a metric that has none."""
    families: Mapping[str, str] = field(default_factory=dict)
    """Which taskset each of those tasks is of."""
    run: str = ""
    """The run directory, relative to the lab's folder."""
    reached: bool = True
    """False where the metric is a first step that never came: the value is then later than every step that was run."""


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
    """The arm."""
    seeds: tuple[int, ...]
    """Seeds that both have."""
    differences: tuple[float, ...]
    """Arm less control by seed, in the claimed direction."""
    control_mean: float
    """The control's mean over these seeds, as measured."""
    arm_mean: float
    """The arm's."""
    interval: Interval
    """Over seeds: Student's paired interval at `level`, or the confidence sequence's where it stopped early."""
    level: float
    """The interval's level: 1 − alpha, shared among the arms."""
    p: float
    """Of the paired t test, two-sided; the confidence sequence's where that is the interval."""
    p_adjusted: float | None
    """After Benjamini and Hochberg, where several hypotheses are judged together."""
    sign_flip: float
    """The exact sign-flip test's p, one-sided in the claimed direction."""
    sign_flip_both: float
    """The same, two-sided."""
    sign_flip_least: float
    """The least one-sided p that this many seeds can give."""
    improvement: Interval
    """The chance that a run of the arm beats one of the control."""
    tasks_too: Interval | None
    """The effect with its interval over seeds and tasks both: about other tasks of the kind too."""
    iqm: Interval | None
    """The difference of interquartile means across tasksets, where there are several."""
    power: float
    """The chance that these seeds, deviating as they did, would validate the smallest effect that matters."""
    seeds_needed: int | None
    """How many seeds would decide, where these did not; none where they did or it can't be told."""
    status: Status
    """What it says by itself."""
    sentence: str
    """The same with its figures."""


@dataclass(frozen=True)
class Verdict:
    """The verdict on one hypothesis."""

    hypothesis: str
    """Its id."""
    status: Status
    """validated, invalidated or inconclusive."""
    confidence: Confidence
    """How much the evidence bears."""
    because: str
    """Which rule gave that confidence."""
    sentence: str
    """The verdict in a sentence with its figures."""
    comparisons: tuple[Comparison, ...]
    """Every arm against the control."""
    stopped_early: bool = False
    """Whether it was judged by the confidence sequence before all seeds were run."""
    void: str = ""
    """Why it does not count, where it does not."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Arms that were refused, and why."""
    specification: str = ""
    """The hash that was written before the first step."""
