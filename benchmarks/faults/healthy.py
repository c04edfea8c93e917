"""Runs with nothing wrong: other tasks, losses, scales, rates, adapters; slow ones, saturating
ones, noisy ones.
"""

from dataclasses import dataclass, field

from benchmarks.faults.fault import Settings


@dataclass(frozen=True)
class Healthy:
    """One healthy run."""

    name: str
    """Name of the run."""
    settings: Settings = field(default_factory=dict)
    """Changes to its recipe, by dotted key."""
    recipe: str = "products"
    """Name of the recipe."""
    steps: int = 45
    """Number of steps."""
    seed: int = 0
    """Seed of the run."""
    two_turns: bool = False
    """True where it plays two-turn tasks."""
    half: str = "reported"
    """Half of the benchmark: fitting or reported."""


def _fit(name: str, settings: Settings | None = None, **rest: object) -> Healthy:
    return Healthy(name, {"learning.lr": 4e-5, **(settings or {})}, "sums", half="fitting", **rest)  # type: ignore[arg-type]


LORA = {"model.lora": {"r": 8, "alpha": 16}, "learning.lr": 3e-4}
ROOMY = {"sampling.groups": 32, "sampling.size": 16, "sampling.temperature": 0.5, "learning.lr": 2e-4,
         "learning.warmup": 10, "learning.skip_dead": True}  # fmt: skip
"""As recipes/tiny.toml, which learns."""
EASY = {"tasks.high": 9, "tasks.train": 60, "eval.high": 9, "eval.tasks": 20}
SKIPS, RESAMPLES = {"learning.skip_dead": True}, {"sampling.resample": 1}


def _solved(recipe: str, name: str, settings: Settings, seed: int = 0) -> Healthy:
    """A run that goes on long after it is solved: most groups are all right, and many steps have no
    live group.
    """
    high = 2 if recipe == "sums" else 3
    words = {"name": "counting", "kinds": ["words"], "high": high, "reward": "rich"}
    easy = {"tasks": {**words, "train": 16 * high}, "eval": {**words, "tasks": 5 * high, "every": 20},
            "sampling.max_tokens": 3, "learning.steps": 200, "learning.lr": 3e-4}  # fmt: skip
    half = "fitting" if recipe == "sums" else "reported"
    return Healthy(name, {**easy, **settings}, recipe, steps=160, seed=seed, half=half)


HEALTHY = (
    _fit("plain"),
    _fit("seed 1", seed=1),
    _fit("exact", {"tasks.reward": "exact"}),
    _fit("slow", {"learning.lr": 1e-5}),
    _fit("roomy", ROOMY, steps=50),
    _fit("lora", LORA),
    _fit("kl", {"learning.kl.beta": 0.05}),
    _fit("small groups", {"sampling.groups": 16, "sampling.size": 4, "tasks.reward": "rich"}),
    _fit("easy, saturating", {**EASY, "tasks.operations": ["+"], "eval.operations": ["+"], "learning.lr": 8e-5}),
    _fit("two-turn", two_turns=True),
    Healthy("plain"),
    Healthy("seed 1", seed=1),
    Healthy("exact", {"tasks.reward": "exact", "sampling.groups": 16}),
    Healthy("grpo", {"learning.loss": "grpo"}),
    Healthy("dr_grpo", {"learning.loss": "dr_grpo", "learning.scale": "none"}),
    Healthy("bnpo", {"learning.loss": "bnpo", "learning.scale": "batch"}),
    Healthy("gspo", {"learning.loss": "gspo"}),
    Healthy("cispo", {"learning.loss": "cispo", "learning.clip_high": 5.0}),
    Healthy("leave one out", {"learning.baseline": "leave_one_out", "learning.scale": "none"}),
    Healthy("lora", LORA),
    Healthy("kl k2", {"learning.kl": {"beta": 0.02, "estimator": "k2"}}),
    Healthy("kl k1", {"learning.kl": {"beta": 0.02, "estimator": "k1"}}),
    Healthy("slow", {"learning.lr": 1e-5}),
    Healthy("noisy", {"sampling.groups": 4, "sampling.size": 6, "learning.lr": 3e-5}),
    Healthy("two updates", {"learning.updates": 2, "learning.lr": 3e-5}),
    Healthy("minibatches", {"learning.minibatches": 2, "learning.lr": 3e-5}),
    Healthy("entropy bonus", {"learning.entropy": 0.01}),
    Healthy("skips dead groups", {"learning.skip_dead": True, "tasks.reward": "exact"}),
    Healthy("resamples", {"sampling.resample": 1, "tasks.reward": "exact"}),
    Healthy("cosine", {"learning.schedule": "cosine", "learning.warmup": 5, "learning.lr": 1e-4,
                       "learning.steps": 45}),
    # With its default shares a quarter are comparisons, which tiny never gets right: rightly told
    # as a dead component.
    Healthy("mixed families", {"tasks.name": "mixed", "eval.name": "mixed", "tasks.reward": "rich",
                               "tasks.shares": {"arithmetic": 0.6, "counting": 0.4},
                               "eval.shares": {"arithmetic": 0.6, "counting": 0.4}}),
    Healthy("easy, saturating", {**EASY, "tasks.operations": ["-"], "eval.operations": ["-"], "learning.lr": 8e-5},
            steps=60),
    Healthy("roomy", ROOMY, steps=50),
    Healthy("two-turn", two_turns=True),
    Healthy("two-turn, kl", {"learning.kl.beta": 0.02}, two_turns=True, seed=1),
    _solved("sums", "solved, skips dead groups", SKIPS),
    _solved("sums", "solved, resamples", RESAMPLES),
    _solved("sums", "solved, skips and resamples", {**SKIPS, **RESAMPLES}),
    _solved("products", "solved, skips dead groups", SKIPS),
    _solved("products", "solved, resamples", RESAMPLES),
    _solved("products", "solved, skips and resamples", {**SKIPS, **RESAMPLES}),
    # As recipes/h200.toml: its three measured runs warned of numbers that were never there.
    _solved("products", "solved, as h200", {**SKIPS, **RESAMPLES, "learning.loss": "grpo",
                                            "learning.schedule": "cosine"}, seed=1),
)  # fmt: skip
