"""Cost of watching: the same TRL run with and without it, in turn, in one process; a script, not a
test.

`wall` is what a person waits; `cpu` is the work of the process, all its threads included (on a busy
machine it is the steadier figure). The processes that record and diagnose are counted by
themselves, their start included.

python -m benchmarks.watched_overhead --model FOLDER --steps 20 --rounds 4
"""

import argparse
import resource
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from tests.bridge_trl.small_sums import make_trainer
from transformers import TrainerCallback

from uptrend.bridge.trl import watch
from uptrend.records import Run


class Clock(TrainerCallback):
    """Wall and processor time at the end of each step."""

    def __init__(self) -> None:
        self.times: list[tuple[float, float]] = []

    def on_step_end(self, *_: object, **__: object) -> None:
        self.times.append((time.perf_counter(), time.process_time()))


def measure(model: str, steps: int, is_watched: bool) -> dict[str, float]:
    """Train once; return the medians of steps after the first, and the share of a step that the
    trainer waited.
    """
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(model, Path(folder), steps=steps, lr=5e-6)
        clock = Clock()
        trainer.add_callback(clock)
        watching = watch(trainer) if is_watched else None
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        trainer.train()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        wall, cpu = np.median(np.diff(clock.times, axis=0), axis=0)
        beside = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        lines = [] if watching is None else Run(watching.path).metric_lines
        waited = [line["seconds/watch"] / line["seconds/step"] for line in lines] or [0.0, 0.0]
        return {"wall": wall, "cpu": cpu, "beside": beside / steps, "first": waited[0],
                "waited": statistics.median(waited[1:])}  # fmt: skip


def main() -> None:
    """Print both kinds of run, round by round, and the median over rounds."""
    options = argparse.ArgumentParser()
    options.add_argument("--model", required=True)
    options.add_argument("--steps", type=int, default=10)
    options.add_argument("--rounds", type=int, default=8)
    options.add_argument("--threads", type=int, default=1)
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    ratios = []
    for number in range(given.rounds):
        kinds = [False, True] if number % 2 == 0 else [True, False]
        found = {kind: measure(given.model, given.steps, kind) for kind in kinds}
        ratios.append([found[True][name] / found[False][name] for name in ("wall", "cpu")])
        shown = ", ".join(f"{name} {value:.4f}" for name, value in found[True].items())
        print(
            f"round {number}: watched / unwatched: wall {ratios[-1][0]:.3f}, cpu {ratios[-1][1]:.3f}; {shown}"
        )
    wall, cpu = np.median(ratios, axis=0)
    print(f"median of {given.rounds} rounds: wall {wall:.3f}, cpu {cpu:.3f}")


if __name__ == "__main__":
    main()
