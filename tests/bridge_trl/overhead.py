"""What watching costs: the same TRL run with and without it, in turn, in one process; a script, not a test.

`wall` is what a person waits; `cpu` is what the process worked, all its threads included (on a machine with other
work it is the steadier figure). The processes that record and diagnose are counted by themselves, their start included.

python tests/bridge_trl/overhead.py --model FOLDER --steps 20 --rounds 4
"""

import argparse
import itertools
import resource
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from small_sums import make_trainer
from transformers import TrainerCallback

from uptrend.bridge.trl import watch
from uptrend.records import Run


@dataclass
class Spent:
    """What steps after the first took, all kinds of seconds."""

    wall: list[float]
    cpu: list[float]
    waited: list[float]
    """The share of a step that the trainer waited for the watch."""
    first: float = 0.0
    """The same share of the first step."""
    beside: float = 0.0
    """Processor seconds of the processes beside it, a step."""


def spent_by(model: str, steps: int, is_watched: bool, folder: Path) -> Spent:
    """One short run."""
    trainer = make_trainer(model, folder, steps=steps, lr=5e-6)
    clock = _Clock()
    trainer.add_callback(clock)
    watching = watch(trainer) if is_watched else None
    before = _children()
    trainer.train()
    beside = (_children() - before) / steps
    wall, cpu = ([b - a for a, b in itertools.pairwise(moments)] for moments in (clock.wall, clock.cpu))
    if watching is None:
        return Spent(wall, cpu, [])
    lines = Run(watching.path).metric_lines
    waited = [line["seconds/watch"] / line["seconds/step"] for line in lines[1:]]
    return Spent(wall, cpu, waited, lines[0]["seconds/watch"] / lines[0]["seconds/step"], beside)


def main() -> None:
    """Print the median step of both kinds, round by round and over all, and their ratio."""
    options = argparse.ArgumentParser()
    options.add_argument("--model", required=True)
    options.add_argument("--steps", type=int, default=10)
    options.add_argument("--rounds", type=int, default=8)
    options.add_argument("--threads", type=int, default=1)
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    found: dict[bool, list[Spent]] = {False: [], True: []}
    for number in range(given.rounds):
        for kind in [False, True] if number % 2 == 0 else [True, False]:
            with tempfile.TemporaryDirectory() as folder:
                found[kind].append(spent_by(given.model, given.steps, kind, Path(folder)))
        line = [f"{name} {_ratio(found, name, -1):.3f}" for name in ("wall", "cpu")]
        print(f"round {number}: watched over unwatched, {', '.join(line)}", flush=True)
    for name in ("wall", "cpu"):
        plain, seen = (statistics.median(_all(found[kind], name)) for kind in (False, True))
        ratios = sorted(_ratio(found, name, number) for number in range(given.rounds))
        low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
        print(f"{name}: median step {plain:.4f} s, watched {seen:.4f}, ratio {seen / plain:.3f}; by round "
              f"{ratios[0]:.3f} to {ratios[-1]:.3f}, quartiles {low:.3f} {middle:.3f} {high:.3f}")  # fmt: skip
    waited = _all(found[True], "waited")
    print(f"the trainer waited {statistics.median(waited):.2%} of a step (mean {statistics.mean(waited):.2%})")
    print(f"and {statistics.median(spent.first for spent in found[True]):.1%} of the first")
    print(f"processes beside it worked {1e3 * statistics.median(spent.beside for spent in found[True]):.1f} ms a step")


def _all(found: list[Spent], name: str) -> list[float]:
    return [value for spent in found for value in getattr(spent, name)]


def _ratio(found: dict[bool, list[Spent]], name: str, number: int) -> float:
    seen, plain = (statistics.median(getattr(found[kind][number], name)) for kind in (True, False))
    return float(seen / plain)


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class _Clock(TrainerCallback):
    def __init__(self) -> None:
        self.wall: list[float] = []
        self.cpu: list[float] = []

    def on_step_end(self, *_: object, **__: object) -> None:
        self.wall.append(time.perf_counter())
        self.cpu.append(time.process_time())


if __name__ == "__main__":
    main()
