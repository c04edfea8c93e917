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
from uptrend.records import Ending, Message, Reward, Task
from uptrend.rollout.inprocess import InProcessSampler
from uptrend.rollout.play import RolloutRequest
from uptrend.runner.runs import train
from uptrend.tasks.pool import Cursor, heldout, pool
from uptrend.training.gather import RolloutPlayer, gather


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


class Hanging(Letter):
    """Hangs for one of three tasks where it is told to."""

    where: ClassVar[str] = ""
    closed: ClassVar[list[int]] = []

    async def _hang(self, where: str) -> None:
        if where == Hanging.where and self._number == 4:
            await asyncio.sleep(600)

    async def respond(self, message: Message) -> Sequence[Message] | None:
        await self._hang("respond")
        return await super().respond(message)

    async def score(self) -> Reward:
        await self._hang("score")
        return await super().score()

    async def close(self) -> None:
        Hanging.closed.append(self._number)
        await self._hang("close")


def requests_of(taskset: Letters, count: int) -> list[RolloutRequest]:
    return [RolloutRequest(task, taskset, 1, f"g{i}", 0, i) for i, task in enumerate(taskset.heldout(count))]


@pytest.mark.parametrize(
    ("where", "ended"), [("respond", Ending.TOOL_ERROR), ("score", Ending.TASK_ERROR), ("close", None)]
)
def test_a_tool_that_does_not_answer(policy: Policy, llama_folder: Path, where: str, ended: Ending | None) -> None:
    Hanging.where, taskset = where, Letters(Letters.Options(), 0)
    Hanging.closed.clear()
    taskset.open = lambda task, seed: Hanging(task, taskset.options)  # type: ignore[method-assign, misc]
    config = config_of(llama_folder, **{"sampling.tool_timeout": 0.2})
    fine, hung, too = RolloutPlayer(policy, InProcessSampler(policy), config).play(
        requests_of(taskset, 3), temperature=1.0
    )
    assert (fine.error, too.error, sorted(Hanging.closed)) == (None, None, [0, 4, 8])
    assert hung.error == f"{where}: no answer within sampling.tool_timeout = 0.2 s"
    assert (hung.reward is None) == (ended is not None)
    assert ended in (None, hung.ended)


class Noting(Letters):
    """Notes the seeds that its plays are opened with."""

    opened: ClassVar[list[tuple[str, int]]] = []

    def open(self, task: Task, seed: int) -> Letter:
        Noting.opened.append((task.id, seed))
        return super().open(task, seed)


def test_seeds_of_groups_and_of_held_out_tasks(llama_folder: Path, tmp_path: Path) -> None:
    def seeds(run_seed: int, eval_seed: int) -> tuple[dict[str, set[int]], list[Any], list[Any]]:
        Noting.opened.clear()
        wishes = {"seed": run_seed, "eval.seed": eval_seed, "eval.attempts": 2}
        config = config_of(llama_folder, "test_gather:Noting", **wishes)
        run = train(config, runs=tmp_path, name=f"{run_seed}-{eval_seed}")
        opened: dict[str, set[int]] = {}
        for task, seed in Noting.opened:
            opened.setdefault(task, set()).add(seed)
        rows = [[(r["task"], r["index"], r["seed"]) for r in run.eval_rollouts(step).to_pylist()] for step in (0, 2)]
        assert rows[0] == rows[1]
        groups: dict[str, set[int]] = {}
        for row in run.rollouts().to_pylist():
            groups.setdefault(row["group"], set()).add(row["seed"])
        assert [len(each) for each in groups.values()] == [4] * 8  # each samples with its own
        return opened, rows[0], list(groups.values())

    opened, held_out, sampled = seeds(0, 0)
    assert {len(each) for each in opened.values()} == {1}  # a group's rollouts find their task the same
    assert len({seed for each in opened.values() for seed in each}) == len(opened)
    other, same, others = seeds(1, 0)
    assert same == held_out
    assert others != sampled
    tasks = {task for task, _, _ in held_out}
    assert {t: opened[t] for t in tasks} == {t: other[t] for t in tasks}
    assert not {s for t in opened.keys() - tasks for s in opened[t]} & {
        s for t in other.keys() - tasks for s in other[t]
    }
    assert seeds(0, 1)[1] != held_out


@pytest.mark.parametrize(("tasks", "replaced"), [(20, 8), (6, 2), (4, 0)])
def test_no_task_comes_twice_in_a_step(policy: Policy, llama_folder: Path, tasks: int, replaced: int) -> None:
    changes = {"tasks.train": tasks, "tasks.dead": 1, "eval.dead": 1, "sampling.resample": 2}
    config = config_of(llama_folder, **changes)
    player, drawn = RolloutPlayer(policy, InProcessSampler(policy), config), pool(config, heldout(config))
    cursor = Cursor()
    for step in range(1, 6):
        gathered, again = (gather(player, drawn, cursor, step, config) for _ in range(2))
        played = [*gathered.rollouts, *gathered.dropped]
        assert [(r.task, r.group) for r in played] == [(r.task, r.group) for r in (*again.rollouts, *again.dropped)]
        groups = {r.group: r.task for r in played}
        assert len(set(groups.values())) == len(groups) == 4 + replaced
        assert len(gathered.rollouts) == 4 * 4
        cursor = gathered.cursor
    assert cursor.epoch > 0
