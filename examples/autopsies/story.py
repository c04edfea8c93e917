"""Options of the autopsies, and `uptrend` called in this process, where a fault can be planted."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from uptrend.cli.main import main
from uptrend.config import load_config
from uptrend.records import RunRefused
from uptrend.runner.prepare import prepare
from uptrend.runner.runs import start
from uptrend.runner.view import choose_view, print_preflight
from uptrend.training.components import RunContext

Alter = Callable[[RunContext], RunContext]
sys.path.append(
    str(Path(__file__).parents[2])
)  # recipes name tasksets as examples.autopsies.MODULE:CLASS

COMPUTE = """
[compute]
device = "{device}"
threads = 1
compile = "never"
"""


def options(about: str, name: str, steps: int, **more: str) -> argparse.Namespace:
    """Read the number of steps and the folder, which has to be new; `more` are further options with
    their defaults.
    """
    parser = argparse.ArgumentParser(description=about.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=steps, help=f"steps of each run ({steps})")
    parser.add_argument("--seed", type=int, default=0, help="of the runs (0)")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/autopsies") / name, help="a new folder for the runs"
    )
    parser.add_argument("--device", default="cpu", help="cpu or cuda (cpu)")
    for option, default in more.items():
        parser.add_argument(f"--{option}", default=default, help=f"({default})")
    given = parser.parse_args()
    if given.out.exists():
        parser.error(f"{given.out} is there already: remove it, or give another --out")
    given.out.mkdir(parents=True)
    return given


def write_recipe(
    given: argparse.Namespace, text: str, evaluations: int, warmup: int, **more: Any
) -> Path:
    """Write the recipe at the length that was asked for; `more` fills what else its text leaves
    open.
    """
    steps, path = given.steps, given.out / "recipe.toml"
    length = {
        "steps": steps,
        "every": max(1, steps // evaluations),
        "warmup": min(warmup, steps // 2),
    }
    path.write_text((text + COMPUTE).format(seed=given.seed, device=given.device, **length, **more))
    return path


def say(words: str) -> None:
    """Print a line of the story."""
    print(f"\n# {words}", flush=True)


def uptrend(*words: Any) -> int:
    """Run one command line; return its exit code."""
    arguments = [str(word) for word in words]
    print(f"\n$ uptrend {' '.join(arguments)}", flush=True)
    try:
        main(arguments)
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def attempt(
    recipe: Path, name: str, *sets: str, alter: Alter | None = None, preflight: bool = True
) -> Path:
    """Train; where the probes stop it before its first step, train all the same. Return the run
    that went on.

    `alter` plants a fault of code, which no command line can name: it replaces parts of the
    prepared run.
    """
    if _train(recipe, name, sets, alter, preflight=preflight) or not preflight:
        return recipe.parent / name
    say("It did not begin. The same again, to see what those steps would have brought:")
    _train(recipe, f"{name}-anyway", sets, alter, preflight=False)
    return recipe.parent / f"{name}-anyway"


def _train(
    recipe: Path, name: str, sets: Sequence[str], alter: Alter | None, *, preflight: bool
) -> bool:
    out = recipe.parent
    if alter is None:
        words = (
            "train",
            recipe,
            "--runs",
            out,
            *(word for value in sets for word in ("--set", value)),
        )
        return (
            uptrend(*words, "--name", name, "--keep-refused" if preflight else "--no-preflight")
            == 0
        )
    view = choose_view(quiet=False, is_terminal=sys.stdout.isatty())
    context = alter(prepare(load_config(recipe, sets)))
    try:
        run = start(
            context,
            out / name,
            [view],
            preflight=preflight,
            on_preflight=print_preflight,
            keeps_refused=True,
        )
    except RunRefused as refusal:
        print(refusal, file=sys.stderr)
        return False
    return run.status == "finished"
