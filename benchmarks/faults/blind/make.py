"""Make the runs of a split: every fault under its seeds, its healthy twin under the first, every
healthy case.

python -m benchmarks.faults.blind.make a --to DIR            all runs, two at a time python -m
benchmarks.faults.blind.make a --to DIR --only strict --author     without preflight and watch
"""

import argparse
import json
import multiprocessing
import os
import shutil
import signal
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.faults.blind.case import Blind, Job, blind_cases

from uptrend.records.directory import set_aside

LIMIT = 300
"""Seconds that a run may take."""


def jobs_of(case: Blind) -> list[tuple[int, bool]]:
    """List a case's runs as (seed, planted): the twin of a fault under its first seed."""
    if case.cause is None:
        return [(seed, False) for seed in case.seeds]
    return [*((seed, True) for seed in case.seeds), (case.seeds[0], False)]


def make_all(split: str, to: Path, only: str, asks: bool, workers: int) -> None:
    """Make what is not there yet. Each run has a process of its own, since user code may change
    anything.
    """
    import torch
    import transformers  # noqa: F401
    import trl.trainer.grpo_trainer  # noqa: F401  a fork has what its parent imported

    torch.set_num_threads(1)
    cases = [case for case in blind_cases(split) if only in case.name]
    todo = [(case, seed, planted) for case in cases for seed, planted in jobs_of(case)]
    began, fork = time.perf_counter(), multiprocessing.get_context("fork")

    def one(job: tuple[Blind, int, bool]) -> None:
        case, seed, planted = job
        kind = "healthy" if case.cause is None else "planted" if planted else "twin"
        folder = to / f"{case.name}~{kind}~{seed}"
        if (folder / "case.json").exists():
            return
        if folder.exists():  # an attempt that did not come to its end
            set_aside(folder)
        folder.mkdir(parents=True)
        child = fork.Process(target=_make, args=(split, case, seed, planted, folder, asks))
        child.start()
        child.join(LIMIT)
        if child.is_alive():
            os.killpg(child.pid or 0, signal.SIGKILL)
            child.join()
        failed = not (folder / "case.json").exists()
        error = "" if not failed else f"ended with {child.exitcode}"
        if not failed:
            error = (
                json.loads((folder / "case.json").read_text())["error"].strip().rpartition("\n")[2]
            )
        print(f"{time.perf_counter() - began:5.0f} s {folder.name:60} {error or 'ok'}", flush=True)

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(one, todo))


def _make(split: str, case: Blind, seed: int, planted: bool, folder: Path, asks: bool) -> None:
    os.setsid()
    output = os.open(folder / "output.txt", os.O_CREAT | os.O_WRONLY)
    os.dup2(output, 1)
    os.dup2(output, 2)
    _run(split, case, seed, planted, folder, asks)
    os._exit(0)  # threads of the parent that were forked may never end


def _run(split: str, case: Blind, seed: int, planted: bool, folder: Path, asks: bool) -> None:
    began, error = time.perf_counter(), ""
    job = Job(seed, planted, folder, asks)
    before = Path.cwd()
    try:
        case.write(job)
    except BaseException:  # a fault may end its run: what it left is judged
        error = traceback.format_exc()
    os.chdir(before)
    shutil.rmtree(folder / "run" / "checkpoints", ignore_errors=True)
    told: dict[str, Any] = {
        "split": split, "case": case.name, "cause": case.cause, "also": list(case.also), "seed": seed,
        "planted": planted, "through": job.through, "seconds": round(time.perf_counter() - began, 1), "error": error,
    }  # fmt: skip
    (folder / "case.json").write_text(json.dumps(told, indent=1))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.faults.blind.make", description=__doc__
    )
    parser.add_argument("split")
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--author", action="store_true", help="without preflight and watch")
    parser.add_argument("--workers", type=int, default=2)
    asked = parser.parse_args()
    make_all(asked.split, asked.to, asked.only, not asked.author, asked.workers)
