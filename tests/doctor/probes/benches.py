"""Benches for tests: a recipe's parts, and what all probes say of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from uptrend.config import load_config
from uptrend.doctor.probes import PROBES
from uptrend.doctor.probes.bench import Bench
from uptrend.doctor.probes.result import Result
from uptrend.doctor.probes.run import run_probes
from uptrend.runner.prepare import prepare

RECIPES = Path(__file__).parents[3] / "recipes"
SMALL = ("sampling.groups=4", "sampling.size=8", "compute.threads=1", "compute.device=cpu")
CHEAP = tuple(name for name, probe in PROBES.items() if probe.cheap)
ALL = tuple(name for name, probe in PROBES.items() if not probe.full)


def bench_of(recipe: str | dict[str, Any], *overrides: str, groups: int = 4) -> Bench:
    """A recipe of the repository, or a table, small."""
    source = RECIPES / recipe if isinstance(recipe, str) else recipe
    prepared = prepare(load_config(source, [*SMALL, *overrides]))
    return Bench(prepared.config, prepared.policy, prepared.pool, prepared.held_out, groups)


def ask(bench: Bench, names: Sequence[str] = ALL) -> list[Result]:
    """Every result."""
    return list(run_probes(bench, names))
