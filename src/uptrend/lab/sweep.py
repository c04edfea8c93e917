"""A grid or a list of config values over seeds: to look where something is, not to decide whether it is there.

Whoever takes the best of many has chosen by chance too. A sweep has no verdict; what it points to is tested as a
hypothesis, on seeds that it has not used.
"""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uptrend.config.load import parse_value, read_toml, unknown
from uptrend.config.tables import flatten, to_toml
from uptrend.lab.arms import THE_LABS
from uptrend.lab.measure import is_known, unknown_metric
from uptrend.records import Arm, LabError
from uptrend.records.renamed import current

KEYS = ("title", "recipe", "metric", "seeds", "steps", "grid", "arms")
"""What a list's file may say."""


@dataclass(frozen=True)
class Sweep:
    """What is to be run."""

    title: str
    """What it is about."""
    recipe: Path
    """The base recipe."""
    arms: tuple[Arm, ...]
    """Its points; the others are compared with the first."""
    seeds: tuple[int, ...]
    """The same at every point."""
    metric: str = "eval/accuracy"
    """What is compared."""
    steps: int = 0
    """Steps a run; 0 for the recipe's."""


def grid(sets: Sequence[str]) -> dict[str, list[Any]]:
    """Values by key from `learning.lr=1e-6,5e-6`; commas within brackets, braces and quotes belong to a value."""
    found = dict[str, list[Any]]()
    for each in sets:
        key, equals, text = each.partition("=")
        if not equals or not key.strip() or not text.strip():
            raise LabError(f"--set {each}: write key=value,value,…, for example --set learning.lr=1e-6,1e-5.")
        found[key.strip()] = [parse_value(part) for part in split(text)]
    return found


def split(text: str) -> list[str]:
    """A text at its outer commas."""
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        else:
            depth += (letter in "[{") - (letter in "]}")
        if letter == "," and depth == 0 and not quote:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def points(values: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Every combination, the last key's values changing fastest."""
    return [dict(zip(values, each, strict=True)) for each in itertools.product(*values.values())]


def name_of(overrides: Mapping[str, Any]) -> str:
    """A point in few words: lr=1e-06 beta=0.04."""
    said = {key: value if isinstance(value, str) else to_toml(value) for key, value in overrides.items()}
    return " ".join(f"{key.rpartition('.')[2]}={value}" for key, value in said.items()) or "as it is"


def read(path: Path) -> dict[str, Any]:
    """A list's file as a table; what nobody knows is an error with the nearest word."""
    table = read_toml(path)
    for key in table:
        if key not in KEYS:
            raise LabError(f"{path}: {unknown(key, key, KEYS, 'A sweep')}")
    return table


def make(recipe: Path | None, sets: Sequence[str], listed: Path | None, seeds: str, metric: str, steps: int) -> Sweep:
    """The sweep that a command line and a list's file describe; the command line has the last word."""
    table = read(listed) if listed else {}
    if recipe is None and "recipe" not in table:
        raise LabError("A sweep needs a recipe: uptrend lab sweep RECIPE --set …, or recipe = … in the list's file.")
    base = recipe or (listed or Path()).parent / table["recipe"]
    values = {**{key: _listed(key, value) for key, value in flatten(table.get("grid", {})).items()}, **grid(sets)}
    arms = [Arm(name, flatten(each)) for name, each in table.get("arms", {}).items()]
    arms = [
        Arm(f"{arm.name} {name_of(point)}" if values else arm.name, {**arm.overrides, **point})
        for arm in arms or [Arm("", {})]
        for point in points(values)
    ]
    for key, why in THE_LABS.items():
        if any(key in arm.overrides for arm in arms):
            raise LabError(f"A sweep can't set {key}: {why}. Seeds are given with --seeds.")
    if len(arms) < 2:
        raise LabError(
            "A sweep compares at least two points: --set learning.lr=1e-6,1e-5, or [arms.NAME] tables in --list FILE."
        )
    metric = current(metric or table.get("metric", "eval/accuracy"))
    if not is_known(metric):
        raise LabError(f"{metric} {unknown_metric(metric)}")
    title = table.get("title") or f"{base.stem}: {', '.join(values)}"
    chosen = parse_seeds(seeds or str(table.get("seeds", "0-4")))
    return Sweep(title, base, tuple(_named(arms)), chosen, metric, steps or int(table.get("steps", 0)))


def _listed(key: str, value: Any) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise LabError(f"grid.{key} = {value!r} should be a list of values to try.")
    return value


def _named(arms: Sequence[Arm]) -> list[Arm]:
    """With names that are told apart, the first as what the others are compared with."""
    names = [arm.name.strip() for arm in arms]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise LabError(f"The sweep has {twice} more than once.")
    return [Arm(name, arm.overrides, place == 0) for place, (name, arm) in enumerate(zip(names, arms, strict=True))]


def parse_seeds(text: str) -> tuple[int, ...]:
    """Seeds from `0-4`, `0,2,5` or both."""
    seeds = list[int]()
    for part in text.replace(" ", "").strip("[]").split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if match is None or (match[2] and int(match[2]) < int(match[1])):
            raise LabError(f"--seeds {text}: write 0-4, or 0,2,5.")
        seeds += range(int(match[1]), int(match[2] or match[1]) + 1)
    if len(set(seeds)) < len(seeds):
        raise LabError(f"--seeds {text} has a seed more than once: a repeated run is no new evidence.")
    return tuple(seeds)
