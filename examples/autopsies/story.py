"""What the autopsies share: their options, and `uptrend` called in this process, where a fault can be planted."""

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from uptrend.cli.main import main

sys.path.append(str(Path(__file__).parents[2]))  # recipes name tasksets as examples.autopsies.MODULE:CLASS

COMPUTE = """
[compute]
device = "cpu"
threads = 1
compile = "never"
"""


def options(about: str, name: str, steps: int) -> argparse.Namespace:
    """How many steps, and where to; the folder has to be new."""
    parser = argparse.ArgumentParser(description=about.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=steps, help=f"steps of each run ({steps})")
    parser.add_argument("--seed", type=int, default=0, help="of the runs (0)")
    parser.add_argument("--out", type=Path, default=Path("runs/autopsies") / name, help="a new folder for the runs")
    given = parser.parse_args()
    if given.out.exists():
        parser.error(f"{given.out} is there already: remove it, or give another --out")
    given.out.mkdir(parents=True)
    return given


def write_recipe(given: argparse.Namespace, text: str, evaluations: int, warmup: int, **more: Any) -> Path:
    """The recipe at the length that was asked for; `more` is what else its text leaves open."""
    steps, path = given.steps, given.out / "recipe.toml"
    length = {"steps": steps, "every": max(1, steps // evaluations), "warmup": min(warmup, steps - 1)}
    path.write_text(text.format(seed=given.seed, **length, **more) + COMPUTE)
    return path


def say(words: str) -> None:
    """A line of the story."""
    print(f"\n# {words}", flush=True)


def uptrend(*words: Any) -> int:
    """One command line; what it exits with."""
    arguments = [str(word) for word in words]
    print(f"\n$ uptrend {' '.join(arguments)}", flush=True)
    try:
        main(arguments)
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def attempt(recipe: Path, name: str, *sets: str) -> Path:
    """Train; where the probes stop it before its first step, train all the same. The run that went on."""
    out = recipe.parent
    words = ("train", recipe, "--runs", out, *(word for value in sets for word in ("--set", value)))
    if uptrend(*words, "--name", name) == 0:
        return out / name
    say("It did not begin. The same again, to see what those steps would have brought:")
    uptrend(*words, "--name", f"{name}-anyway", "--no-preflight")
    return out / f"{name}-anyway"


@contextmanager
def replaced(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """An attribute replaced by what `make` makes of it: how a fault is planted."""
    before = getattr(owner, name)
    setattr(owner, name, make(before))
    try:
        yield
    finally:
        setattr(owner, name, before)
