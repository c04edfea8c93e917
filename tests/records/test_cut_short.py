"""A recorder that is killed, interrupted or out of disk at any moment leaves whole steps and whole
evaluations.
"""

import multiprocessing
import os
import random
import resource
import signal
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from synthetic import evaluation_of, info_of, line_of, metrics_of, rollout_of
from uptrend.records import RecordError, Run, RunDirectory
from uptrend.training.ranks import OneRank
from uptrend.training.recorder import Recorder

FORKS = multiprocessing.get_context("forkserver")


@pytest.fixture(scope="module", autouse=True)
def preloaded() -> None:
    """Every child is a fork of a process that has imported what takes its time."""
    FORKS.set_forkserver_preload(
        [
            "pytest",
            "pyarrow.parquet",
            "uptrend.training.ranks",
            "uptrend.training.recorder",
            "uptrend.stats.intervals",
        ]
    )


def record(path: Path, begun: Connection, largest: int, seed: int) -> None:
    """Record steps as fast as it goes; no file may be larger than `largest` bytes."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    chance = random.Random(seed)
    with (
        suppress(KeyboardInterrupt, RecordError),
        RunDirectory.create(path, info_of("run")) as directory,
    ):
        recorder = Recorder(directory, OneRank())
        try:
            for step in range(1, 10_000):
                if step == 2:  # the first takes its time
                    recorder.drain()
                    begun.send(True)
                    if largest:
                        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
                rollouts = [rollout_of(step, f"g{i}") for i in range(chance.randint(1, 30))]
                line = metrics_of(step, 100, chance) | {"padding": "x" * chance.randint(0, 4000)}
                recorder.step(line, rollouts)
                if chance.random() < 0.5:
                    recorder.evaluation(
                        line_of(evaluation_of(step, 1, 2)) | {"padding": "x" * 2000}, rollouts[:2]
                    )
        finally:
            recorder.close()


def steps_of(path: Path) -> dict[str, Any]:
    """Return the steps with a line and those with rollouts, as they are read."""
    run = Run(path)
    lines = [line["step"] for line in run.metric_lines]
    assert lines == list(range(1, len(lines) + 1))
    assert all(run.rollouts(step).num_rows for step in lines)
    evals = [line["step"] for line in run.eval_lines]
    assert all(run.eval_rollouts(step).num_rows for step in evals)
    assert run.rollout_steps == lines
    assert sorted(set(run.rollouts()["step"].to_pylist())) == lines
    return {"rollouts": lines, "evals": evals}


@pytest.mark.slow
@pytest.mark.parametrize(("how", "times"), [("killed", 20), ("interrupted", 10), ("disk full", 20)])
def test_a_step_is_whole_or_not_there(tmp_path: Path, how: str, times: int) -> None:
    chance, most = random.Random(how), 0
    for attempt in range(times):
        path, (begun, theirs) = tmp_path / str(attempt), FORKS.Pipe()
        largest = chance.randint(6_000, 60_000) if how == "disk full" else 0
        child = FORKS.Process(target=record, args=(path, theirs, largest, attempt))
        child.start()
        theirs.close()  # else a child that failed would be waited for forever
        assert begun.recv()
        if not largest:
            time.sleep(chance.uniform(0, 0.15))
            if how == "killed":
                child.kill()
            else:
                assert child.pid
                os.kill(child.pid, signal.SIGINT)
        child.join(120)
        assert child.exitcode == (-signal.SIGKILL if how == "killed" else 0)
        before = steps_of(path)
        most = max(most, len(before["rollouts"]))
        last = max(before["rollouts"] + before["evals"])
        with RunDirectory.reopen(path) as directory:
            directory.rewind(last)
        assert steps_of(path) == before
        for folder, steps in before.items():
            files = {int(file.name[:6]) for file in (path / folder).glob("[!.]*")}
            # An evaluation after the last step may have a file and no line: it was cut off between
            # the two.
            assert files - set(steps) <= {last}
            assert files >= set(steps)
    assert most > 2
