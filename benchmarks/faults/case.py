"""Which runs there are: every fault at its strengths on both halves, a few on a model of words, and healthy ones."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from benchmarks.faults.fault import Fault, Settings, Strength
from benchmarks.faults.healthy import HEALTHY
from benchmarks.faults.planted import FAULTS
from benchmarks.faults.recipes import FITTING, REPORTED

ON_WORDS = (
    "mask.attention-blind", "mask.stop-untrained", "sync.stale-weights", "sync.partial", "reward.gold-rejected",
    "reward.misaligned", "advantage.sign", "advantage.wrong-groups", "precision.update-underflow",
    "sampling.truncated-distribution", "tokens.padding", "reward.strict-parser",
)  # fmt: skip
"""Faults that are planted into smollm2-135m too."""
SAMPLED = (
    "reward.gold-rejected", "reward.misaligned", "reward.nondeterministic", "advantage.wrong-groups",
    "advantage.sign", "advantage.dead-groups-low", "sampling.truncated-distribution", "mask.attention-blind",
    "mask.tool-trained", "tokens.padding", "kl.reference", "optimizer.lr-small", "optimizer.frozen",
    "precision.update-underflow", "sync.stale-weights", "data.leak", "data.order", "task.state-leaks",
    "run.nonfinite", "sampling.entropy-explosion",
)  # fmt: skip
"""Faults of the sample."""


@dataclass(frozen=True)
class Case:
    """One run to be made."""

    name: str
    """What its folder is called."""
    recipe: str
    """Which recipe it is a run of."""
    seed: int
    """The run's seed."""
    steps: int
    """After how many steps it is stopped."""
    settings: Settings
    """Config values by dotted key."""
    fault: Fault | None = None
    """What is planted; None where the run is healthy."""
    plant: Callable[[], AbstractContextManager[Any]] = nullcontext
    """Plants it."""
    two_turns: bool = False
    """Whether it plays two-turn tasks."""
    half: str = REPORTED
    """fitting or reported."""
    facts: Settings = field(default_factory=dict)
    """What the scoreboard needs to know of it, as plain values."""


def cases_of(fault: Fault) -> list[Case]:
    """A fault's runs: the first strength on the fitting half, every strength and seed on the reported one."""
    if fault.wordy:
        return [_planted(fault, fault.strengths[0], "words", 0)]
    fitting = [_planted(fault, fault.strengths[0], FITTING, 0)]
    reported = [_planted(fault, s, REPORTED, 1 + n) for s in fault.strengths for n in range(fault.seeds)]
    words = [_planted(fault, fault.strengths[0], "words", 0)] if fault.id in ON_WORDS else []
    return [*fitting, *reported, *words]


def all_cases() -> list[Case]:
    """Everything, healthy runs first, short ones before long ones."""
    planted = [case for fault in FAULTS.values() for case in cases_of(fault)]
    return [*healthy_cases(), *sorted(planted, key=lambda case: (case.recipe == "words", case.steps))]


def sampled_cases() -> list[Case]:
    """A sample for everyday use: one run of some faults on the reported half, and six healthy ones."""
    chosen = [next(c for c in cases_of(FAULTS[id]) if c.recipe == REPORTED) for id in SAMPLED]
    return [*healthy_cases()[::5], *chosen]


def healthy_cases() -> list[Case]:
    """Runs with nothing planted."""
    return [
        Case(f"healthy~{h.recipe}~{h.name}", h.recipe, h.seed, h.steps, h.settings, two_turns=h.two_turns, half=h.half)
        for h in HEALTHY
    ]  # fmt: skip


def _planted(fault: Fault, strength: Strength, recipe: str, seed: int) -> Case:
    word = "".join(c if c.isalnum() else "-" for c in strength.name)
    return Case(
        f"{fault.id}~{recipe}~{word}~{seed}", recipe, seed, fault.steps, strength.settings, fault, strength.plant,
        two_turns=fault.two_turns or strength.two_turns, half="fitting" if recipe == FITTING else "reported",
    )  # fmt: skip
