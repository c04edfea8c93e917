"""Playing groups and held-out tasks: the loop that tools live on, limits, seeds, and tasks drawn
again.
"""

# ruff: noqa: ARG002, ARG005

import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from letters import Letter, Letters
from models import make_policy
from uptrend.cli.plot import command as plot
from uptrend.config import Config, load_config
from uptrend.config.schema import Sampling
from uptrend.doctor.report import latest_report
from uptrend.policy.policy import Policy
from uptrend.records import ConfigError, Ending, Message, RecordError, Reward, Rollout, Task
from uptrend.records import Sequence as Tokens
from uptrend.records.summary import describe
from uptrend.rollout.inprocess import InProcessSampler
from uptrend.rollout.play import RolloutRequest
from uptrend.runner.evaluation import evaluate
from uptrend.runner.runs import resume_run, train_recipe
from uptrend.runner.view import LineView
from uptrend.tasks.pool import Cursor, make_heldout, make_pool
from uptrend.training.gather import RolloutPlayer, gather, penalize_length


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


def test_what_a_taskset_keeps_works_in_every_step_and_evaluation(
    llama_folder: Path, tmp_path: Path
) -> None:
    config = config_of(llama_folder, "test_gather:Connected")
    run = train_recipe(config, runs=tmp_path, name="run")
    rows = [
        *run.rollouts().to_pylist(),
        *(row for step in (0, 2) for row in run.eval_rollouts(step).to_pylist()),
    ]
    assert {row["error"] for row in rows} == {None}
    assert len(rows) == 2 * 16 + 2 * 6


class Slow(InProcessSampler):
    def _begin(self, *given: Any) -> None:
        time.sleep(1.5)
        super()._begin(*given)


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
    rollouts = RolloutPlayer(policy, Slow(policy), config_of(llama_folder)).play(
        requests, temperature=1.0
    )
    assert [r.error for r in rollouts] == [None, None]
    assert max(Timed.late) < 1.0


class Uneven(Letter):
    """Takes some rounds of the event loop to answer."""

    async def respond(self, message: Message) -> Sequence[Message] | None:
        for _ in range(self._number % 5):
            await asyncio.sleep(0)
        return await super().respond(message)


class Batches(InProcessSampler):
    """Notes who is sampled together, and takes its time."""

    def __init__(self, policy: Policy, seconds: Sequence[float]) -> None:
        super().__init__(policy)
        self.seconds, self.batches = seconds, list[list[int]]()

    def _begin(self, *given: Any) -> None:
        time.sleep(self.seconds[len(self.batches) % len(self.seconds)])
        self.batches.append([request.stream for request, _ in self._running.values()])
        super()._begin(*given)


def test_batches_and_rollouts_do_not_depend_on_time(policy: Policy, llama_folder: Path) -> None:
    taskset = Letters(Letters.Options(turns=3), 0)
    taskset.open = lambda task, seed: Uneven(task, taskset.options)  # type: ignore[method-assign, misc]
    config, seen = config_of(llama_folder, **{"sampling.rows": 5}), []
    for seconds in ([0.0], [0.03], [0.0, 0.02, 0.05]):
        sampler = Batches(policy, seconds)
        rollouts = RolloutPlayer(policy, sampler, config).play(
            requests_of(taskset, 9), temperature=1.0
        )
        tokens = [
            (r.sequences[0].ids.tobytes(), r.sequences[0].sampler.tobytes()) for r in rollouts
        ]
        seen.append((sampler.batches, tokens))
    assert seen[0] == seen[1] == seen[2]
    assert len(seen[0][0]) > 3


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
    return [
        RolloutRequest(task, taskset, 1, f"g{i}", 0, i)
        for i, task in enumerate(taskset.heldout(count))
    ]


@pytest.mark.parametrize(
    ("where", "ended"),
    [("respond", Ending.TOOL_ERROR), ("score", Ending.TASK_ERROR), ("close", None)],
)
def test_a_tool_that_does_not_answer(
    policy: Policy, llama_folder: Path, where: str, ended: Ending | None
) -> None:
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
        run = train_recipe(config, runs=tmp_path, name=f"{run_seed}-{eval_seed}")
        opened: dict[str, set[int]] = {}
        for task, seed in Noting.opened:
            opened.setdefault(task, set()).add(seed)
        rows = [
            [(r["task"], r["index"], r["seed"]) for r in run.eval_rollouts(step).to_pylist()]
            for step in (0, 2)
        ]
        assert rows[0] == rows[1]
        groups: dict[str, set[int]] = {}
        for row in run.rollouts().to_pylist():
            groups.setdefault(row["group"], set()).add(row["seed"])
        assert [len(each) for each in groups.values()] == [4] * 8  # each samples with its own
        return opened, rows[0], list(groups.values())

    opened, held_out, sampled = seeds(0, 0)
    assert {len(each) for each in opened.values()} == {
        1
    }  # a group's rollouts find their task the same
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
def test_no_task_comes_twice_in_a_step(
    policy: Policy, llama_folder: Path, tasks: int, replaced: int
) -> None:
    changes = {"tasks.train": tasks, "tasks.dead": 1, "eval.dead": 1, "sampling.resample": 2}
    config = config_of(llama_folder, **changes)
    player, drawn = (
        RolloutPlayer(policy, InProcessSampler(policy), config),
        make_pool(config, make_heldout(config)),
    )
    cursor = Cursor()
    for step in range(1, 6):
        gathered, again = (gather(player, drawn, cursor, step, config) for _ in range(2))
        played = [*gathered.rollouts, *gathered.dropped]
        assert [(r.task, r.group) for r in played] == [
            (r.task, r.group) for r in (*again.rollouts, *again.dropped)
        ]
        groups = {r.group: r.task for r in played}
        assert len(set(groups.values())) == len(groups) == 4 + replaced
        assert len(gathered.rollouts) == 4 * 4
        cursor = gathered.cursor
    assert cursor.epoch > 0


class Odd(Letters):
    """Holds out tasks that the others train on."""

    def heldout(self, count: int) -> list[Task]:
        return [self._task(i) for i in range(1, self.options.count, 4)][:count]


SETS = [{"label": "odd", "name": "test_gather:Odd", "tasks": 3, "max_tokens": 2, "attempts": 2, "temperature": 0.5},
        {"label": "more-turns", "turns": 2, "max_turns": 2}]  # fmt: skip


def test_further_held_out_sets_with_limits_of_their_own(
    llama_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = config_of(
        llama_folder, **{"eval.sets": SETS, "eval.max_tokens": 3, "sampling.max_turns": 1}
    )
    alone = config_of(
        llama_folder, **{"eval.max_tokens": 3, "sampling.max_turns": 1, "learning.steps": 1}
    )
    steps = [line.copy() for line in train_recipe(alone, runs=tmp_path, name="alone").eval_lines]
    run = train_recipe(config, runs=tmp_path, name="run", observers=[LineView()])
    assert "odd after step 2: " in capsys.readouterr().out
    assert [list(line["sets"]) for line in run.eval_lines] == [["odd", "more-turns"]] * 2
    first = run.eval_lines[0]
    for key in (
        "accuracy",
        "correct",
        "tasks",
        "hash",
        "reward",
    ):  # what further sets do not change
        assert first[key] == steps[0][key]
    assert (first["sets"]["odd"]["tasks"], list(first["sets"]["odd"]["pass_at"])) == (3, ["1", "2"])

    def lengths(label: str) -> int:
        return max(
            sum(role == 1 for role in row["roles"])
            for row in run.eval_rollouts(2, label).to_pylist()
        )

    assert [lengths(label) for label in ("", "odd", "more-turns")] == [3, 2, 6]
    assert run.eval_rollouts(2, "odd").num_rows == 3 * 3
    trained = {row["task"] for row in run.rollouts().to_pylist()}
    assert not trained & {row["task"] for row in run.eval_rollouts(2, "odd").to_pylist()}
    described = run.info["eval"]["sets"]
    assert {label: entry["hash"] for label, entry in described.items()} == {
        label: entry["hash"] for label, entry in first["sets"].items()
    }
    shown = describe(run, latest_report(run))
    assert [e["step"] for e in shown["sets"]["odd"]] == [0, 2]
    assert len(shown["curves"]["eval/set/odd/accuracy"]) == 2
    plot([run.path], out=tmp_path / "drawn.svg")
    assert ">odd<" in (tmp_path / "drawn.svg").read_text()
    scored = evaluate(run.path)
    assert scored.sets["odd"].held.correct == run.eval_lines[-1]["sets"]["odd"]["correct"]
    assert scored.held.correct == run.eval_lines[-1]["correct"]
    again = resume_run(run.path, ["learning.steps=3"])
    assert [line["step"] for line in again.eval_lines] == [0, 2, 3]
    info = json.loads((run.path / "run.json").read_text())
    info["eval"]["sets"]["odd"]["hash"] = "another"
    (run.path / "run.json").write_text(json.dumps(info))
    with pytest.raises(RecordError, match=r"\[eval\.sets\.odd\] gives other tasks now"):
        resume_run(run.path, ["learning.steps=4"])


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (
            [{"tasks": 3}],
            r"eval.sets\[0\].label = None should be a name of letters, digits and hyphens",
        ),
        ([{"label": "a/b"}], "label = 'a/b' should be a name"),
        ([{"label": "a"}, {"label": "a"}], r"eval.sets\[1\].label = 'a' is another set's already"),
        (
            [{"label": "a", "every": 3}],
            r"eval.sets\[0\].every: all sets are evaluated at the same steps",
        ),
        ([{"label": "a", "sets": []}], "a set has no sets of its own"),
        ([{"label": "a", "tasks": 0}], r"eval.sets\[0\].tasks = 0 should be at least 1"),
        (
            [{"label": "a", "max_tokens": 5000}],
            r"eval.sets\[0\].context = 2048 should exceed max_tokens = 5000",
        ),
        ([{"label": "a", "turn": 2}], r"eval.sets.a.turn is not a known key. Did you mean turns"),
    ],
)
def test_wrong_sets(llama_folder: Path, sets: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make_heldout(config_of(llama_folder, **{"eval.sets": sets}))


@pytest.mark.parametrize("length", range(1, 9))
def test_a_long_rollout_is_penalized_as_by_trl(length: int) -> None:
    from trl.rewards import get_soft_overlong_punishment

    sampling = Sampling(max_tokens=8, overlong=4, overlong_penalty=0.5)
    ids = np.arange(length + 3, dtype=np.int32)
    roles = np.array([0] * 3 + [1] * length, np.int8)
    sequence = Tokens(ids, 0 * ids, roles, 0 * ids, np.zeros(length + 3, np.float32))
    reward = Reward.of("r", 1.0, 0.0, 1.0, True)
    rollout = Rollout(
        1, "g", 0, "t", "f", "", 0, (), (sequence,), reward, Ending.STOP_TOKEN, None, 0.0
    )
    (theirs,) = get_soft_overlong_punishment(8, 4)(completion_ids=[ids[3:].tolist()])
    shaped = penalize_length(rollout, sampling).reward
    assert shaped is not None
    assert shaped.total == pytest.approx(1.0 + 0.5 * theirs)
    assert (shaped.low, shaped.high, shaped.correct) == (-0.5, 1.0, True)
    assert [p.value for p in shaped.parts] == pytest.approx([1.0, 0.5 * theirs])
    assert penalize_length(rollout, Sampling(max_tokens=8)) is rollout
