"""Blind cases: each is a function that trains as a user's script would, with a fault planted or
without it.

@fault("reward.strict-parser", "reward.gold-rejected")
def ignores_negative_numbers(job: Job) -> None:
    '''The pattern has no minus sign.'''
    pattern = r"\\d+" if job.planted else r"-?\\d+"
    job.train(model="tiny", data=ROWS, reward=..., steps=30, overrides={...})

@healthy
def small_groups(job: Job) -> None: ...
"""

import importlib
import json
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Write = Callable[["Job"], None]
# Defaults of recipes, and of data in Python, when the cases were written and their findings
# measured. Cases are never edited, and a default that moves moves none of their figures.
RECIPE_DEFAULTS: dict[str, dict[str, Any]] = {
    "sampling": {"max_tokens": 8},
    "learning": {"lr": 1e-5, "loss": "grpo", "warmup": 0},
    "checkpoints": {"every": 0},
}
DATA_DEFAULTS = {
    "sampling.groups": 8,
    "sampling.size": 8,
    "sampling.max_tokens": 128,
    "learning.lr": 1e-5,
    "learning.loss": "grpo",
    "learning.warmup": 0,
    "learning.skip_dead": True,
    "checkpoints.every": 50,
}


@dataclass(frozen=True)
class Blind:
    """One case."""

    name: str
    """Name of the function."""
    write: Write
    """Trains."""
    cause: str | None = None
    """Id in the catalogue; None where nothing is wrong."""
    also: tuple[str, ...] = ()
    """Ids that name the same thing as rightly."""
    seeds: tuple[int, ...] = (0, 1)
    """Seeds under which it runs."""

    @property
    def right(self) -> frozenset[str]:
        """Every id that counts as right."""
        return frozenset(filter(None, (self.cause, *self.also)))


@dataclass
class Job:
    """One run to be made: what a case is given."""

    seed: int
    """Seed of the run."""
    planted: bool
    """True for the fault, False for the same run without it; always False in a healthy case."""
    folder: Path
    """Empty folder for whatever the case writes."""
    asks: bool = True
    """True where preflight and watch take part; authors work without them."""
    through: str = ""
    """uptrend or trl, once it has trained."""

    @property
    def model(self) -> str:
        """Folder of the model `tiny`, for transformers."""
        from uptrend.policy.known import find_model

        return str(find_model("tiny"))

    def train(self, config: Any = None, **given: Any) -> Any:
        """`uptrend.train` with these arguments, all probes first, into `folder`; return the run."""
        import uptrend
        from uptrend.doctor.catalogue import CATALOGUE

        self.through = "uptrend"
        changes = given.pop("overrides", {})
        changes = list(changes) if not isinstance(changes, dict) else [
            f"{key}={json.dumps(value)}" for key, value in changes.items()
        ]  # fmt: skip
        if config is None:
            defaults = [f"{key}={json.dumps(value)}" for key, value in DATA_DEFAULTS.items()]
            changes = [*defaults, *changes]
        else:
            sections = {
                name: {**values, **config.get(name, {})} for name, values in RECIPE_DEFAULTS.items()
            }
            config = {**config, **sections}
        if not any(str(change).startswith("seed=") for change in changes):
            changes.append(f"seed={self.seed}")
        given = {"progress": False, "preflight": self.asks, "allows": list(CATALOGUE), **given}
        return uptrend.train(config, overrides=changes, runs=self.folder, name="run", **given)

    def watch(self, trainer: Any) -> None:
        """`watch(trainer)` and `trainer.train()`; its own log goes to `folder`, too."""
        self.through, kept = "trl", None
        if self.asks:
            from uptrend.bridge.trl import watch

            kept = watch(trainer)
        try:
            trainer.train()
        finally:
            if kept is not None and kept.path.exists() and kept.path != self.folder / "run":
                kept.path.rename(self.folder / "run")
            state = {"log_history": trainer.state.log_history, "max_steps": trainer.state.max_steps}
            (self.folder / "trainer_state.json").write_text(json.dumps(state))


def fault(cause: str, *also: str, seeds: tuple[int, ...] = (0, 1)) -> Callable[[Write], Blind]:
    """Make a case of a function that plants this cause where `job.planted`."""
    return lambda write: Blind(write.__name__.replace("_", "-"), write, cause, also, seeds)


def healthy(write: Write) -> Blind:
    """Make a healthy case of a function."""
    return Blind(write.__name__.replace("_", "-"), write)


def blind_cases(split: str) -> list[Blind]:
    """List the cases of a split: of all modules in its folder, in order."""
    package = importlib.import_module(f"benchmarks.faults.blind.{split}")
    names = sorted(m.name for m in pkgutil.iter_modules(package.__path__))
    modules = [importlib.import_module(f"{package.__name__}.{name}") for name in names]
    return list(_of(modules))


def _of(modules: list[Any]) -> Iterator[Blind]:
    for module in modules:
        yield from (found for found in vars(module).values() if isinstance(found, Blind))
