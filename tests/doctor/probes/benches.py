"""Benches for tests: a recipe's parts, some of them replaced, and the probes' results on them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.faults.fault import Alter, unaltered

from uptrend.config import load_config
from uptrend.doctor.probes import PROBES, run_probes
from uptrend.doctor.probes.bench import Bench
from uptrend.doctor.probes.probe import Result
from uptrend.runner.prepare import prepare

TINY = Path(__file__).parents[3] / "recipes" / "tiny.toml"
SMALL = ("sampling.groups=4", "sampling.size=8", "compute.threads=1", "compute.device=cpu")
CHEAP = tuple(name for name, probe in PROBES.items() if probe.cheap)
ALL = tuple(name for name, probe in PROBES.items() if not probe.full)


def bench_of(
    recipe: Path | dict[str, Any] = TINY,
    *overrides: str,
    groups: int = 4,
    settings: Mapping[str, Any] | None = None,
    alter: Alter = unaltered,
) -> Bench:
    """Make a small bench of a recipe; `alter` replaces its parts."""
    given = [f"{key}={json.dumps(value)}" for key, value in (settings or {}).items()]
    p = alter(prepare(load_config(recipe, [*SMALL, *overrides, *given])))
    return Bench(p.config, p.policy, p.pool, p.held_out, groups, p.components)


def ask(bench: Bench, names: Sequence[str] = ALL) -> list[Result]:
    """Ask probes; return every result."""
    return list(run_probes(bench, names))
