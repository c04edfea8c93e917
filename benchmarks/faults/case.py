"""The runs of the benchmark: every fault at its strengths on both halves, a few on a model of
words, healthy ones.
"""

from dataclasses import dataclass

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
NOTHING = Strength("nothing")


@dataclass(frozen=True)
class Case:
    """One run to be made."""

    name: str
    """Name of its folder."""
    recipe: str
    """Name of its recipe."""
    seed: int
    """Seed of the run."""
    steps: int
    """Steps after which it is stopped."""
    settings: Settings
    """Config values by dotted key."""
    fault: Fault | None = None
    """Planted cause; None where the run is healthy."""
    strength: Strength = NOTHING
    """Parts that are replaced."""
    two_turns: bool = False
    """True where it plays two-turn tasks."""
    half: str = REPORTED
    """fitting or reported."""


def cases_of(fault: Fault) -> list[Case]:
    """List a fault's runs: the first strength on the fitting half, every strength and seed on the
    reported one.
    """
    if fault.wordy:
        return [_planted(fault, fault.strengths[0], "words", 0)]
    fitting = [_planted(fault, fault.strengths[0], FITTING, 0)]
    reported = [
        _planted(fault, s, REPORTED, 1 + n) for s in fault.strengths for n in range(fault.seeds)
    ]
    words = [_planted(fault, fault.strengths[0], "words", 0)] if fault.id in ON_WORDS else []
    return [*fitting, *reported, *words]


def all_cases() -> list[Case]:
    """List every run, healthy ones first, short ones before long ones."""
    planted = [case for fault in FAULTS.values() for case in cases_of(fault)]
    return [
        *healthy_cases(),
        *sorted(planted, key=lambda case: (case.recipe == "words", case.steps)),
    ]


def sampled_cases() -> list[Case]:
    """List a sample for everyday use: one run of some faults on the reported half, and six healthy
    ones.
    """
    chosen = [next(c for c in cases_of(FAULTS[id]) if c.recipe == REPORTED) for id in SAMPLED]
    return [*healthy_cases()[::5], *chosen]


def healthy_cases() -> list[Case]:
    """List runs with nothing planted."""
    return [
        Case(f"healthy~{h.recipe}~{h.name}", h.recipe, h.seed, h.steps, h.settings, two_turns=h.two_turns, half=h.half)
        for h in HEALTHY
    ]  # fmt: skip


def _planted(fault: Fault, strength: Strength, recipe: str, seed: int) -> Case:
    word = "".join(c if c.isalnum() else "-" for c in strength.name)
    return Case(
        f"{fault.id}~{recipe}~{word}~{seed}", recipe, seed, fault.steps, strength.settings, fault, strength,
        two_turns=fault.two_turns or strength.two_turns, half="fitting" if recipe == FITTING else "reported",
    )  # fmt: skip
