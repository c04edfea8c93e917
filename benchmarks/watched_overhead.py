"""Cost of watching: the same TRL run with and without it, in turn, in one process; a script, not a
test.

`wall` is what a person waits; `cpu` is the work of the process, all its threads included (on a busy
machine it is the steadier figure). `waited` is the share of a step that the trainer waited for the
watch, by the watch's own clock, with its quartiles and in milliseconds; `first` that of the first
step. The processes that record and diagnose are counted by themselves, their start included.

python -m benchmarks.watched_overhead --model FOLDER --steps 20 --rounds 4
torchrun --nproc-per-node 2 -m benchmarks.watched_overhead --model FOLDER --to EMPTY_FOLDER
"""

import argparse
import os
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from tests.bridge_trl.small_sums import make_trainer
from transformers import TrainerCallback

from uptrend.bridge.trl import watch
from uptrend.records import Run

IS_FIRST = os.environ.get("RANK", "0") == "0"  # of the processes that train together


class Clock(TrainerCallback):
    """Wall and processor time at the end of each step."""

    def __init__(self) -> None:
        self.times: list[tuple[float, float]] = []

    def on_step_end(self, *_: object, **__: object) -> None:
        self.times.append((time.perf_counter(), time.process_time()))


def measure(model: str, folder: Path, steps: int, is_watched: bool) -> dict[str, float]:
    """Train once; return the medians of steps after the first, and the quartiles of the share of a
    step that the trainer waited for the watch.
    """
    backend = {"ddp_backend": "gloo"} if "RANK" in os.environ else {}
    trainer = make_trainer(model, folder, steps=steps, lr=5e-6, **backend)
    clock = Clock()
    trainer.add_callback(clock)
    watching = watch(trainer) if is_watched else None
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    trainer.train()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    wall, cpu = np.median(np.diff(clock.times, axis=0), axis=0)
    beside = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    figures = {"wall": wall, "cpu": cpu, "beside": beside / steps}
    if watching is not None and IS_FIRST:
        lines = Run(watching.path).metric_lines
        waited = [line["seconds/watch"] / line["seconds/step"] for line in lines]
        low, median, high = np.quantile(waited[1:], (0.25, 0.5, 0.75))
        figures |= {"first": waited[0], "waited": median, "low": low, "high": high}
        figures["waited_ms"] = 1e3 * float(np.median([line["seconds/watch"] for line in lines[1:]]))
    return figures


def main() -> None:
    """Print both kinds of run, round by round, and the median over rounds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--to", type=Path, help="empty folder for the runs; one for all processes")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.to or Path(temporary)
        ratios: list[list[float]] = []
        for number in range(options.rounds):
            kinds = [False, True] if number % 2 == 0 else [True, False]
            figures: dict[bool, dict[str, float]] = {}
            for is_watched in kinds:
                run = folder / f"{number}-{is_watched}"
                figures[is_watched] = measure(options.model, run, options.steps, is_watched)
            watched = figures[True]
            ratios.append([watched[name] / figures[False][name] for name in ("wall", "cpu")])
            wall, cpu = ratios[-1]
            shown = ", ".join(f"{name} {value:.4f}" for name, value in watched.items())
            if IS_FIRST:
                print(
                    f"round {number}: watched / unwatched: wall {wall:.3f}, cpu {cpu:.3f}; {shown}",
                    flush=True,
                )
    if IS_FIRST:
        wall, cpu = np.median(ratios, axis=0)
        print(f"median of {options.rounds} rounds: wall {wall:.3f}, cpu {cpu:.3f}")


if __name__ == "__main__":
    main()
