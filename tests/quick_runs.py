"""A program that makes a run directory at once, for tests of whoever starts runs; and a launcher
for it.

As a command: python quick_runs.py FOLDER CONFIG.json. The config's model says how it goes: finish,
fail, fail-once, slow, refuse or collapse; its learning rate how well. Everything is written by the
real writer, and Ctrl-C is heard as `uptrend train` hears it: after the step, with a checkpoint.
"""

import dataclasses
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from synthetic import evaluation_of, info_of, line_of, metrics_of, rollout_of
from uptrend.config import load_config, to_table
from uptrend.lab.plan import Launcher, PlannedRun, Resolved, is_finished
from uptrend.lab.workers import Outcome, Progress, Workers, read_outcome, set_aside_unfinished
from uptrend.records import Run, RunDirectory, Stop, rollouts_table

TASKS = 40


class QuickLauncher:
    """Starts this file. `tasks.name` says nothing here; `model.name` is how a run goes."""

    def __init__(self, held_out: Mapping[str, str] | None = None) -> None:
        self.held_out = held_out or {}

    def resolve(self, recipe: Path, overrides: Mapping[str, Any]) -> Resolved:
        """Resolve the recipe for one thread; the learning rate decides how many tasks it gets
        right.
        """
        config = load_config(recipe, overrides)
        compute = dataclasses.replace(config.compute, threads=1, device="cpu")
        table = to_table(dataclasses.replace(config, compute=compute))
        return Resolved(table, "aa", self.held_out.get(config.name, "bb"))

    def command(self, planned: PlannedRun) -> list[str]:
        config = planned.folder.with_name(f"{planned.folder.name}.json")
        config.write_text(json.dumps(planned.config))
        return [sys.executable, __file__, str(planned.folder), str(config)]


def right_of(seed: int, lr: float) -> int:
    """Return the number of 40 tasks that a run of this seed gets right: more with a greater
    learning rate.
    """
    return 12 + random.Random(f"{seed} {lr}").randint(0, 3) + round(1000 * lr)


class QuickWorkers(Workers):
    """Makes runs one after the other in this very process."""

    def run(
        self,
        planned_runs: Sequence[PlannedRun],
        launcher: Launcher,
        wanted: Callable[..., bool],
        watch: Progress,
    ) -> Generator[Outcome, None, None]:
        for planned in planned_runs:
            if not wanted(planned):
                continue
            if is_finished(planned):
                yield Outcome(planned, "finished", was_there=True)
                continue
            set_aside_unfinished(planned)
            planned.folder.parent.mkdir(exist_ok=True)
            watch.began(planned)
            script = launcher.command(planned)[1]
            code = 1 if script == UNLUCKY else main(planned.folder, dict(planned.config), [])
            yield read_outcome(planned, 0.0, code)


UNLUCKY = "/unlucky.py"  # a command that can't be started, as far as QuickWorkers are concerned


def main(folder: Path, config: dict[str, Any], asked: list[int]) -> int:
    """Make the run, or go on with it; `asked` grows when somebody wants it to stop."""
    seed, how, (steps, lr) = (
        config["seed"],
        config["model"]["name"],
        map(config["learning"].get, ("steps", "lr")),
    )
    resumes = (folder / "run.json").exists()
    info = info_of(folder.name) | {"config": config}
    directory = RunDirectory.reopen(folder) if resumes else RunDirectory.create(folder, info)
    with directory:
        first = Run(folder).last_step + 1 if resumes else 0
        directory.event("resumed" if resumes else "started", pid=os.getpid())
        for step in range(first, steps + 1):
            _step(directory, step, steps, seed, lr, how)
            if asked and step < steps:
                (folder / "checkpoints" / f"step-{step:06d}").mkdir(parents=True)
                directory.event(
                    "stopped", step=step, stopped_by="user", reason="interrupted by the user"
                )
                return 0
            if step == 1 and (how == "fail" or (how == "fail-once" and not _was_here(folder))):
                directory.event("failed", error="RuntimeError: out of luck")
                return 1
            if how == "refuse" and step == 0:
                refusal = Stop("nothing to learn", by="preflight", finding="reward.constant")
                directory.event("stopped", step=0, **refusal.to_event())
                return 1
        directory.event("finished", step=steps)
    return 0


def _step(directory: RunDirectory, step: int, steps: int, seed: int, lr: float, how: str) -> None:
    if step:
        line = metrics_of(step, steps, random.Random(f"{seed} {step}"))
        if how == "collapse":  # and nothing else is wrong with it
            line |= {
                "loss/total": 0.0,
                "reward/mean": line["reward/mean"] - 0.5 * (step > steps // 2),
            }
        directory.step(line | {"time": 0.0, "memory/peak/gib": 0.25})
    if step in (0, steps):
        right = right_of(seed, lr if step else 0.0)
        rows = [rollout_of(step, f"e{i}", 0, i < right, f"task-{i}") for i in range(TASKS)]
        line = line_of(evaluation_of(step, right, TASKS)) | {"time": 0.0}
        directory.evaluation(line, rollouts_table(directory.path.name, rows))
    if how == "slow":
        time.sleep(0.25)


def _was_here(folder: Path) -> bool:
    mark = folder.with_name(f"{folder.name}.tried")
    before = mark.exists()
    mark.touch()
    return before


if __name__ == "__main__":
    interrupts: list[int] = []

    def interrupt(*_: object) -> None:
        if interrupts:
            raise KeyboardInterrupt
        interrupts.append(1)

    signal.signal(signal.SIGINT, interrupt)
    sys.exit(main(Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text()), interrupts))
