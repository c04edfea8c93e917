"""Playing groups and held-out tasks: the loop that tools live on, limits, seeds, and tasks drawn again."""

# ruff: noqa: ARG002

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from letters import Letter, Letters
from models import make_policy
from uptrend.config import Config, load_config
from uptrend.policy.policy import Policy
from uptrend.records import Message, Run, Task
from uptrend.rollout.inprocess import InProcessSampler
from uptrend.rollout.play import RolloutRequest
from uptrend.runner.runs import train
from uptrend.training.gather import RolloutPlayer


@pytest.fixture(scope="module")
def policy(llama_folder: Path) -> Policy:
    return make_policy(llama_folder)


def config_of(folder: Path, taskset: str = "letters:Letters", **changes: Any) -> Config:
    table = {
        "model": {"name": str(folder)},
        "tasks": {"name": taskset, "train": 30},
        "eval": {"name": taskset, "tasks": 6, "every": 2},
        "sampling": {"groups": 4, "size": 4, "max_tokens": 4, "max_turns": 3},
        "learning": {"steps": 2, "lr": 1e-3},
        "compute": {"threads": 1},
    }
    return load_config(table, changes)


class Client:
    """Like a client of HTTP: it belongs to the loop of its first request."""

    loop: asyncio.AbstractEventLoop | None = None

    async def get(self) -> int:
        self.loop = self.loop or asyncio.get_running_loop()
        answer: asyncio.Future[int] = self.loop.create_future()
        self.loop.call_soon(answer.set_result, 200)
        return await answer


class Connected(Letters):
    """Shares one lock and one client among all its plays."""

    lock: ClassVar = asyncio.Lock()
    client: ClassVar = Client()

    def open(self, task: Task, seed: int) -> "Letter":
        return Connection(task, self.options)


class Connection(Letter):
    async def respond(self, message: Message) -> Sequence[Message] | None:
        async with Connected.lock:
            assert await Connected.client.get() == 200
        return await super().respond(message)


def test_what_a_taskset_keeps_works_in_every_step_and_evaluation(llama_folder: Path, tmp_path: Path) -> None:
    config = config_of(llama_folder, "test_gather:Connected")
    run = train(config, runs=tmp_path, name="run")
    rows = [*run.rollouts().to_pylist(), *(row for step in (0, 2) for row in run.eval_rollouts(step).to_pylist())]
    assert {row["error"] for row in rows} == {None}
    assert len(rows) == 2 * 16 + 2 * 6


class Slow(InProcessSampler):
    def _run(self, *given: Any) -> Any:
        time.sleep(0.4)
        return super()._run(*given)


class Timed(Letter):
    late: ClassVar[list[float]] = []

    async def respond(self, message: Message) -> Sequence[Message] | None:
        if self._number == 4 and not self._said:
            began = time.perf_counter()
            await asyncio.sleep(0.05)
            Timed.late.append(time.perf_counter() - began - 0.05)
        return await super().respond(message)


def test_timers_go_on_while_the_model_speaks(policy: Policy, llama_folder: Path) -> None:
    taskset = Letters(Letters.Options(turns=2), 0)
    taskset.open = lambda task, seed: Timed(task, taskset.options)  # type: ignore[method-assign, misc]
    requests = [RolloutRequest(task, taskset, 1, task.answer, 0, 0) for task in taskset.heldout(2)]
    rollouts = RolloutPlayer(policy, Slow(policy), config_of(llama_folder)).play(requests, temperature=1.0)
    assert [r.error for r in rollouts] == [None, None]
    assert max(Timed.late) < 0.2
