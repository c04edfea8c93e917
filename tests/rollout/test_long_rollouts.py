"""Rollouts that wait for tools: side by side, within a time, and played again where the sandbox
failed.
"""

import asyncio
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models import make_policy
from shells import Options, Shells
from uptrend.policy.policy import Policy
from uptrend.records import Ending, Rollout
from uptrend.rollout.inprocess import InProcessSampler
from uptrend.rollout.play import RolloutRequest, Timeouts, play_all
from uptrend.rollout.render import Renderer
from uptrend.rollout.sampler import Extension, Limits
from uptrend.runner.runs import train_recipe
from uptrend.tasks import event_loop


@pytest.fixture(scope="module")
def policy(llama_folder: Path) -> Policy:
    return make_policy(llama_folder)


def play(
    policy: Policy, taskset: Shells, count: int = 32, sampler: Any = None, **wishes: Any
) -> list[Rollout]:
    requests = [
        RolloutRequest(taskset._task(i), taskset, 1, f"g{i}", 0, i, 7) for i in range(count)
    ]
    renderers, limits = (
        {False: Renderer(policy.tokenizer, policy.stop_ids, chat=False)},
        Limits(6, 400),
    )
    sampler = sampler or InProcessSampler(policy)
    return event_loop.run(play_all(requests, sampler, renderers, limits, 3, **wishes))


def said(rollouts: list[Rollout]) -> list[Any]:
    return [
        (r.messages, r.reward, r.ended, r.commands, r.sequences[0].ids.tolist()) for r in rollouts
    ]


def test_tools_that_sleep_do_not_block_others(policy: Policy) -> None:
    taskset, began = Shells(Options(seconds=1.0), 0), time.perf_counter()
    together = play(policy, taskset)
    took = time.perf_counter() - began
    slowest = max(r.seconds for r in together)
    # Tools alone sleep 3 × 1.0 s for the slowest, and 3 × 0.5 × 32 s = 48 s in all.
    assert 3.0 <= slowest <= took < 40
    assert together[0].seconds < 0.8 * slowest
    alone = play(policy, Shells(Options(), 0), rows=1)
    assert said(together) == said(alone)
    for one, other in zip(together, alone, strict=True):
        np.testing.assert_allclose(one.sequences[0].sampler, other.sequences[0].sampler, atol=1e-4)
    assert [len(r.commands) for r in together] == [3] * 32


class Mute(InProcessSampler):
    """Never ends what the first of the streams begins to say in the turn after so many."""

    turns = 0

    async def extend(self, stream: int, *given: Any) -> Extension:
        self.turns -= stream == 0
        if stream == 0 and self.turns < 0:
            await asyncio.sleep(60)
        return await super().extend(stream, *given)


@pytest.mark.parametrize(
    ("number", "turns", "seconds", "commands"), [(31, 9, 60.0, 0), (0, 0, 0.0, 0), (0, 2, 0.0, 2)]
)
def test_a_rollout_ends_in_time_wherever_it_is(
    policy: Policy, number: int, turns: int, seconds: float, commands: int
) -> None:
    """In a tool that hangs, in the model's first turn and in its third; it is scored, and the
    others go on.
    """
    sampler = Mute(policy)
    sampler.turns = turns
    began = time.perf_counter()
    rollouts = play(
        policy, Shells(Options(seconds=seconds), 0), sampler=sampler, timeouts=Timeouts(600, 3.0)
    )
    assert time.perf_counter() - began < 50
    late = rollouts[number]
    assert (late.ended, late.error, len(late.commands)) == (Ending.TIME_LIMIT, None, commands)
    assert late.reward is not None
    assert set(late.sequences[0].turns.tolist()) == set(range(commands or turns == 9))
    in_time = [r for r in rollouts if r.ended != Ending.TIME_LIMIT]
    assert len(in_time) == (1 if seconds else 31)
    assert {r.reward is None for r in in_time} == {False}
    assert not sampler._streams


@pytest.mark.parametrize(
    ("fails", "retries", "failures"), [(0, 2, 0), (1, 2, 1), (2, 2, 2), (3, 2, 3), (1, 0, 1)]
)
def test_a_sandbox_that_fails_is_opened_again(
    policy: Policy, fails: int, retries: int, failures: int
) -> None:
    taskset = Shells(Options(sandbox_fails=fails, raises=3), 0)
    sampler = InProcessSampler(policy)
    rollouts = play(policy, taskset, 16, sampler, retries=retries)
    plain = said(play(policy, Shells(Options(raises=3), 0), 16))
    for number, rollout in enumerate(rollouts):
        is_ours = number % 5 == 0
        assert rollout.sandbox_failures == failures * is_ours
        assert taskset.opened[number] == 1 + is_ours * min(fails, retries)
        if failures > retries and is_ours:
            assert (rollout.reward, rollout.ended) == (None, Ending.TOOL_ERROR)
            assert rollout.error == "respond: SandboxFailed('The sandbox has died.')"
        else:
            assert said([rollout]) == [plain[number]]
        if number in (3, 6, 9):  # an error of the task itself
            assert rollout.error == "respond: KeyError('no file')"
    assert not sampler._streams


def test_a_step_in_which_nothing_was_said_in_time_is_no_error(
    llama_folder: Path, tmp_path: Path
) -> None:
    shells = {"name": "shells:Shells"}
    recipe = {
        "model": {"name": str(llama_folder)}, "tasks": shells, "eval": {**shells, "tasks": 2},
        "sampling": {"groups": 2, "size": 2, "max_turns": 3, "rollout_timeout": 1e-5}, "learning": {"steps": 1},
    }  # fmt: skip
    (line,) = train_recipe(recipe, runs=tmp_path).metric_lines
    assert (
        line["sampling/ended/time-limit/share"],
        line["tokens/model/count"],
        line["sampling/failed/count"],
    ) == (1, 0, 0)
