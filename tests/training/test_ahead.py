"""Sampling ahead: which weights sample which step, what a checkpoint keeps of it, and how it
ends.
"""

import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from models import make_policy
from uptrend import diagnose
from uptrend.config import Model, load_config
from uptrend.policy.policy import Policy, load_policy
from uptrend.records import ConfigError, ModelError, Run
from uptrend.rollout.inprocess import CopySampler
from uptrend.rollout.sampler import Extension, Limits
from uptrend.runner.prepare import prepare
from uptrend.runner.runs import resume_run, start
from uptrend.training.gather import read_queue
from uptrend.training.observer import StepRecord, Stop

Start = Callable[..., Run]
TABLE: dict[str, Any] = {
    "tasks": {"name": "letters:Letters", "train": 30},
    "eval": {"name": "letters:Letters", "tasks": 6, "every": 2},
    "sampling": {"groups": 4, "size": 4, "max_tokens": 6, "ahead": 1},
    "learning": {"steps": 5, "lr": 1e-3, "correction": "token"},
    "compute": {"threads": 1},
}


@pytest.fixture
def run_ahead(llama_folder: Path, tmp_path: Path) -> Start:
    def go(*overrides: str, name: str = "run", observers: Any = (), **parts: Any) -> Run:
        prepared = prepare(load_config({**TABLE, "model": {"name": str(llama_folder)}}, overrides))
        prepared = replace(prepared, components=replace(prepared.components, **parts))
        return start(prepared, tmp_path / "runs" / name, observers)

    return go


def versions(run: Run, step: int, *, kept: bool = True) -> set[int]:
    rows = [row for row in run.rollouts(step).to_pylist() if row["kept"] is kept]
    return {version for row in rows for version in row["versions"] if version is not None}


@pytest.mark.parametrize("ahead", [1, 2])
def test_a_step_is_sampled_by_weights_at_most_so_old(run_ahead: Start, ahead: int) -> None:
    run = run_ahead(f"sampling.ahead={ahead}")
    assert run.status == "finished"
    for step in range(1, 6):
        found = versions(run, step)
        assert found <= set(range(max(0, step - 1 - ahead), step)), (step, found)
    assert versions(run, 2) == {0}  # sampled while the first step was learned
    lags = [line["sampling/lag/max"] for line in run.metric_lines]
    assert lags[0] == 0
    assert max(lags) <= ahead
    assert max(lags) > 0
    assert {line["sampling/old/groups"] for line in run.metric_lines} == {0}
    assert not [
        finding.id for finding in diagnose(run.path).findings if finding.id.startswith("sync.")
    ]


@pytest.mark.parametrize("lora", [False, True])
def test_tokens_are_of_the_version_that_they_say(
    run_ahead: Start, llama_folder: Path, lora: bool
) -> None:
    """Over two turns, recomputed with each version's checkpoint."""
    sets = [
        "sampling.max_turns=2",
        "tasks.turns=2",
        "eval.turns=2",
        "checkpoints.every=1",
        "checkpoints.keep=9",
    ]
    run = run_ahead(*sets, *["model.lora={r = 4}", "learning.lr=0.05"] * lora)
    policies: dict[int, Policy] = {}
    for step in range(1, 6):
        for row in run.rollouts(step).to_pylist()[:4]:
            of = np.array([-1 if v is None else v for v in row["versions"]])
            for version in {*of.tolist()} - {-1}:
                if version not in policies:
                    policies[version] = make_policy(llama_folder)
                    if version:
                        place = (
                            run.path
                            / "checkpoints"
                            / f"step-{version:06d}"
                            / ("adapter" if lora else "model")
                        )
                        policies[version] = load_policy(
                            str(place), Model(), torch.device("cpu"), seed=0, keep_reference=False
                        )
                ids = torch.tensor(row["ids"])
                with torch.no_grad():
                    logits_tv = policies[version].core(ids[None]).logits[0].float()
                expected = (
                    torch.log_softmax(logits_tv, -1)[:-1].gather(1, ids[1:, None])[:, 0].numpy()
                )
                at = np.flatnonzero(of == version)
                np.testing.assert_allclose(
                    np.array(row["sampler"])[at].astype(float), expected[at - 1], atol=2e-4
                )
    assert len(policies) >= 4  # different weights have sampled


def test_the_same_tasks_in_the_same_order_and_the_first_step_is_the_same(run_ahead: Start) -> None:
    ahead, waits = run_ahead(), run_ahead("sampling.ahead=0", name="waits")
    for step in range(1, 6):
        tasks = [[row["task"] for row in run.rollouts(step).to_pylist()] for run in (ahead, waits)]
        assert tasks[0] == tasks[1]
    first = [run.rollouts(1).to_pylist() for run in (ahead, waits)]
    assert [row["ids"] for row in first[0]] == [row["ids"] for row in first[1]]
    learners = [
        np.array([x for r in rows for x in r["learner"] if x is not None]) for rows in first
    ]
    np.testing.assert_allclose(*learners, atol=1e-5)
    # What is learned from older weights is weighted by learner over sampler.
    line = ahead.metric_lines[-1]
    assert 0 < line["sampler/ess/share"] <= 1


def test_a_checkpoint_keeps_what_is_sampled_and_a_resumed_run_learns_from_it(
    run_ahead: Start,
) -> None:
    queued = threading.Event()

    class StopAt:
        """Stops after step 2, once the next steps are sampled."""

        def before(self, run: Run) -> None: ...
        def after(self, run: Run) -> None: ...
        def step(self, record: StepRecord) -> Stop | None:
            if record.step < 2:
                return None
            assert queued.wait(30)
            return Stop("user", "enough")

    class Counting(CopySampler):
        async def extend(self, stream: int, ids: Any, limits: Limits, seed: int) -> Extension:
            said = await super().extend(stream, ids, limits, seed)
            counts.append(stream)
            if (
                len(counts) >= 4 * 16 + 2 * 6
            ):  # four steps and two evaluations: all of step 4 is there
                queued.set()
            return said

    counts = list[int]()
    run = run_ahead("sampling.ahead=2", observers=[StopAt()], sampler=Counting)
    assert run.status == "stopped"
    queue = read_queue(run.checkpoints[-1])
    assert 1 <= len(queue) <= 3  # the last of them may not be whole
    kept = [r.sequences[0].ids.tolist() for r in queue[3].rollouts]
    assert all(
        r.step == step and r.sequences[0].sampled.any()
        for step in queue
        for r in queue[step].rollouts
    )
    run = resume_run(run.path)
    assert (run.status, run.last_step) == ("finished", 5)
    assert [row["ids"] for row in run.rollouts(3).to_pylist()] == kept
    tasks = [row["task"] for step in range(1, 6) for row in run.rollouts(step).to_pylist()[::4]]
    whole = run_ahead("sampling.ahead=2", name="whole")
    assert tasks == [
        row["task"] for step in range(1, 6) for row in whole.rollouts(step).to_pylist()[::4]
    ]


class Deaf(CopySampler):
    """Ignores some versions of the weights."""

    ignored: range

    async def load(self, weights: Iterable[tuple[str, Tensor]] | Path, version: int) -> None:
        if version not in self.ignored:
            await super().load(weights, version)


class LateOnce(Deaf):
    ignored = range(2, 3)


class Gone(Deaf):
    ignored = range(2, 100)


def test_what_is_too_old_is_recorded_and_left_out(run_ahead: Start) -> None:
    run = run_ahead(sampler=LateOnce)
    lines = {line["step"]: line for line in run.metric_lines}
    assert [step for step, line in lines.items() if line["sampling/old/groups"]] == [4]
    assert (lines[4]["sampling/old/groups"], lines[4]["sampling/resampled/groups"]) == (4, 0)
    assert len([row for row in run.rollouts(4).to_pylist() if not row["kept"]]) == 16
    assert (versions(run, 4, kept=False), versions(run, 4)) == ({1}, {3})


def test_a_sampler_that_takes_no_weights_ends_the_run(run_ahead: Start, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="weights of version 1, although version 3 was loaded"):
        run_ahead(sampler=Gone)
    assert Run(tmp_path / "runs" / "run").last_step == 3


class Failing(CopySampler):
    async def extend(self, stream: int, ids: Any, limits: Limits, seed: int) -> Extension:
        if self._version == 1:
            raise ModelError("The sampler is gone.")
        return await super().extend(stream, ids, limits, seed)


def test_an_error_of_the_sampler_ends_the_run_and_leaves_no_thread(
    run_ahead: Start, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match="is gone"):
        run_ahead(sampler=Failing)
    assert Run(tmp_path / "runs" / "run").status == "failed"
    assert "ahead" not in [thread.name for thread in threading.enumerate()]


def test_older_rollouts_need_a_correction() -> None:
    with pytest.raises(
        ConfigError, match=r"sampling.ahead = 1 .* Set learning.correction = 'token'"
    ):
        load_config(TABLE, ["learning.correction=none"])
