"""Reward functions: where they run, what ends them, what groups they see, and what they may return."""

import asyncio
import functools
import json
import os
import signal
import subprocess
import sys
import time
from datetime import date, datetime, timedelta
from datetime import time as clock
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from uptrend.config.functions import register_functions
from uptrend.doctor.probes.bench import Bench
from uptrend.doctor.probes.probe import Answer as ProbeAnswer
from uptrend.doctor.probes.probe import probe
from uptrend.records import Ending, Message, Reward, Rollout, Task, TasksetError
from uptrend.rollout.play import (
    RolloutRequest,
    Timeouts,
    TurnFailed,
    message_turn,
    play_messages,
    repeat_messages,
)
from uptrend.rollout.sampler import Limits
from uptrend.tasks import event_loop
from uptrend.tasks.functions import (
    QUICK_S,
    decode_arguments,
    encode_arguments,
    is_remote,
    read_values,
    remote,
    without_remote,
)
from uptrend.tasks.pool import make_taskset
from uptrend.tasks.taskset import Taskset, play_script, say
from uptrend.tasks.validate import validate
from uptrend.tasks.workers import count_cores

FUNCTIONS = '''
import os, time

def slow(completion, **row):
    """Take time, and say where it was spent."""
    end = time.perf_counter() + 0.4
    while time.perf_counter() < end:
        pass
    return {"correct": 1.0, "process": float(os.getpid())}

def quick(completion, **row):
    return float(os.getpid())

def hangs(completion, **row):
    while completion == "hang":
        pass
    return 1.0

def dies(completion, **row):
    if completion == "die":
        os._exit(3)
    return 1.0

def swells(completion, **row):
    ballast = []
    while completion == "swell":
        ballast.append(bytes(range(256)) * 2**18)
    return 1.0

def raises(completion, **row):
    numbers = []
    return numbers[
        1
    ]

def ranks(prompts, completions, **columns):
    """Pay the longest completion of each call."""
    longest = max(map(len, completions))
    return [float(len(completion) == longest) for completion in completions]

def counts(prompts, completions, answer, **columns):
    return [float(len(completions) + 100 * len(set(answer)))] * len(completions)

def not_mine(prompts, completions, **columns):
    return [None if completion == "b" else 1.0 for completion in completions]
'''
ROWS = [{"prompt": f"{n} + 1 = ", "answer": str(n + 1)} for n in range(16)]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("functions_under_test.py").write_text(FUNCTIONS)
    Path("rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)))

    def made(name: str, **options: Any) -> Taskset:
        chosen = {
            "file": "rows.jsonl",
            "hold_out": "none",
            "reward": f"functions_under_test.py:{name}",
        }
        return make_taskset("data", chosen | options, 0)

    return made


def play(
    taskset: Taskset, replies: list[str], size: int = 1, rows: int = 0, seconds: float = 60.0
) -> list[Rollout]:
    """Play one task per group, each rollout with the next reply."""
    tasks = taskset.train(len(replies) // size)
    requests = []
    for n in range(len(replies)):
        group = n // size
        requests.append(RolloutRequest(tasks[group], taskset, 0, f"g{group}", n % size, n))

    def start(request: RolloutRequest) -> Any:
        return repeat_messages([Message("assistant", replies[request.seed])])

    timeouts = Timeouts(tool=seconds)
    return event_loop.run(play_messages(requests, start, Limits(8, 64), 1, rows, timeouts))


def totals(rollouts: list[Rollout]) -> list[float | None]:
    return [None if r.reward is None else r.reward.total for r in rollouts]


# Where they run


def test_a_function_that_takes_time_runs_in_as_many_processes_as_there_are_cores(make) -> None:
    taskset = make("slow")
    play(taskset, ["x"])  # a worker is started
    started = time.perf_counter()
    rollouts = play(taskset, ["x"] * 8)
    seconds = time.perf_counter() - started

    processes = {
        int(part.value) for r in rollouts for part in r.reward.parts if part.name == "process"
    }
    assert os.getpid() not in processes
    assert len(processes) == min(8, count_cores())
    if count_cores() > 1:
        # One after the other they would take 8 × 0.4 s; the start of workers is on top.
        assert seconds < 8 * 0.4 + 1.5


def test_a_quick_function_is_called_here_after_it_was_measured(make) -> None:
    taskset = make("quick")
    first = totals(play(taskset, ["x"]))
    assert first != [float(os.getpid())]
    play(taskset, ["x"] * 8)
    assert totals(play(taskset, ["x"] * 4)) == [float(os.getpid())] * 4


def test_a_function_that_becomes_slow_moves_to_the_workers(make) -> None:
    taskset = make("quick")
    play(taskset, ["x"] * 8)
    (term,) = taskset._terms
    function = term.score.__self__
    assert function._is_quick()
    function._note_seconds(100 * QUICK_S)
    assert not function._is_quick()
    assert totals(play(taskset, ["x"])) != [float(os.getpid())]


def test_a_closure_runs_in_threads_and_says_so(make) -> None:
    def here(**_: Any) -> float:
        time.sleep(0.02)
        return float(os.getpid())

    with register_functions({"mine:here": here}):
        taskset = make("", reward="mine:here")
    assert any("runs in threads" in note for note in taskset.notes)
    assert totals(play(taskset, ["x"] * 4)) == [float(os.getpid())] * 4


# What ends them


def test_a_function_that_hangs_is_killed_and_others_are_scored(make) -> None:
    taskset = make("hangs")
    rollouts = play(taskset, ["hang", "x", "x", "hang", "x"], seconds=1.0)
    assert totals(rollouts) == [None, 1.0, 1.0, None, 1.0]
    late = "score: no answer within sampling.tool_timeout = 1 s"
    assert [r.error for r in rollouts if r.reward is None] == [late] * 2
    assert totals(play(taskset, ["x"] * 4)) == [1.0] * 4


def test_a_worker_that_dies_is_a_failed_rollout_with_the_reason(make) -> None:
    taskset = make("dies")
    rollouts = play(taskset, ["x", "die", "x"])
    assert totals(rollouts) == [1.0, None, 1.0]
    assert "exit status 3" in str(rollouts[1].error)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="only Linux tells")
def test_a_worker_that_outgrows_its_memory_is_a_failed_rollout(make, monkeypatch) -> None:
    monkeypatch.setattr("uptrend.tasks.workers.memory_limit", lambda _: 300 << 20)
    rollouts = play(make("swells"), ["x", "swell"])
    assert totals(rollouts) == [1.0, None]
    assert "more than 0.3 GiB of memory" in str(rollouts[1].error)


SCORES_FOREVER = """
import json, sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from uptrend.tasks.pool import make_taskset
from uptrend.records import Message
from uptrend.rollout.play import RolloutRequest, play_messages, repeat_messages
from uptrend.rollout.sampler import Limits
from uptrend.tasks import event_loop

options = dict(file="rows.jsonl", hold_out="none", reward="functions_under_test.py:hangs")
taskset = make_taskset("data", options, 0)
requests = [RolloutRequest(taskset.train(1)[0], taskset, 0, "g", 0, 0)]
said = [Message("assistant", "hang")]
event_loop.run(play_messages(requests, lambda _: repeat_messages(said), Limits(8, 64), 1))
"""


def children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for file in found for child in file.read_text().split()]


@pytest.mark.usefixtures("make")
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux ends them")
def test_workers_end_with_a_run_that_is_killed(tmp_path: Path) -> None:
    run = subprocess.Popen([sys.executable, "-c", SCORES_FOREVER.format(tests=str(tmp_path))])
    workers: list[int] = []
    until = time.monotonic() + 60
    while not workers and time.monotonic() < until:
        time.sleep(0.1)
        workers = children(run.pid)
    assert workers
    time.sleep(2.0)  # it hangs by then
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    until = time.monotonic() + 10
    while any(is_running(worker) for worker in workers) and time.monotonic() < until:
        time.sleep(0.1)
    assert not any(is_running(worker) for worker in workers)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_a_function_that_raises_says_where(make) -> None:
    line = 1 + FUNCTIONS.splitlines().index("    return numbers[")
    (rollout,) = play(make("raises"), ["x"])
    assert rollout.reward is None
    expected = f"score: functions_under_test.py, line {line}: IndexError: list index out of range"
    assert rollout.error == expected


# The completions of one call


def test_a_function_of_trl_gets_its_group(make) -> None:
    replies = ["a", "bbb", "cc", "d", "ee", "f"]
    assert totals(play(make("ranks"), replies, size=3)) == [0, 1, 0, 0, 1, 0]
    # Also with fewer rows than a group has members.
    assert totals(play(make("ranks"), replies, size=3, rows=1)) == [0, 1, 0, 0, 1, 0]
    assert totals(play(make("counts"), replies, size=3)) == [103.0] * 6


def test_a_function_of_trl_may_get_the_whole_step(make) -> None:
    replies = ["a", "bbb", "cc", "d", "ee", "f"]
    assert totals(play(make("ranks", per="step"), replies, size=3)) == [0, 1, 0, 0, 0, 0]
    assert totals(play(make("counts", per="step"), replies, size=3)) == [206.0] * 6


def test_a_rollout_that_failed_leaves_its_group(make) -> None:
    taskset = make("counts")
    task = taskset.train(1)[0]
    requests = [RolloutRequest(task, taskset, 0, "g", n, n) for n in range(3)]

    def start(request: RolloutRequest) -> Any:
        async def next_turn(*_: Any) -> Any:
            if request.seed == 1:
                raise TurnFailed(Ending.CONTEXT_FULL, "too long")
            return message_turn(Message("assistant", "x"), Ending.STOP_TOKEN)

        return next_turn

    rollouts = event_loop.run(play_messages(requests, start, Limits(8, 64), 1))
    assert totals(rollouts) == [102.0, None, 102.0]
    assert rollouts[1].error == "prompt: too long"


def test_none_is_not_mine_as_in_trl(make) -> None:
    rollouts = play(make("not_mine"), ["a", "b", "c"], size=3)
    assert totals(rollouts) == [1.0, None, 1.0]
    assert "no reward function could tell" in str(rollouts[1].error)
    both = make(
        "",
        reward=["functions_under_test.py:not_mine", "functions_under_test.py:quick"],
        weights=[1.0, 0.0],
    )
    assert totals(play(both, ["a", "b", "c"], size=3)) == [1.0, 0.0, 1.0]


# What they may return


@pytest.mark.parametrize(
    ("returned", "count", "sentence"),
    [
        (float("nan"), None, "f returned nan: it should be a number, or None if it can't tell"),
        ("1", None, "f returned '1': it should be a number, a dict of numbers, or None"),
        (True, None, "f returned True: write float(...), so that it is a number"),
        (np.True_, None, "f returned np.True_: write float(...), so that it is a number"),
        (torch.tensor(1.0), None, "f returned tensor(1.): it should be a number: write .item()"),
        ({"form": "x"}, None, "f, part form, returned 'x': it should be a number"),
        ([1.0, 2.0], 3, "f returned 2 rewards for 3 completions"),
        (1.0, 2, "f returned 1.0: it should be a list with a number for each completion"),
        ([1.0, "x"], 2, "f returned 'x': it should be a number"),
    ],
)
def test_wrong_values_are_answered_with_a_sentence(
    returned: Any, count: int | None, sentence: str
) -> None:
    with pytest.raises(TasksetError) as caught:
        read_values(returned, "f", count)
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize(
    ("returned", "count", "values"),
    [
        (1, None, [1.0]),
        (np.float32(0.5), None, [0.5]),
        (None, None, [None]),
        ({"correct": True, "form": 0.5, "style": None}, None, [{"correct": 1.0, "form": 0.5}]),
        (np.array([1, 2]), 2, [1.0, 2.0]),
        (torch.tensor([1.0, 2.0]), 2, [1.0, 2.0]),
        ([None, 0], 2, [None, 0.0]),
    ],
)
def test_numbers_are_read_as_numbers(returned: Any, count: int | None, values: list[Any]) -> None:
    assert read_values(returned, "f", count) == values


def test_arguments_come_back_with_their_types() -> None:
    row = {
        "day": date(2024, 5, 6),
        "moment": datetime(2024, 5, 6, 7, 8, 9, 123),
        "hour": clock(7, 8),
        "span": timedelta(days=2, microseconds=3),
        "price": Decimal("1.50"),
        "image": b"\x00\xff",
        "nested": [{"text": "é", "none": None, "number": 0.1, "day": date(2024, 1, 1)}],
    }
    assert decode_arguments(encode_arguments(row)) == row
    with pytest.raises(TypeError, match="a row has a object"):
        encode_arguments({"x": object()})


def test_quick_functions_cost_next_to_nothing(make) -> None:
    taskset = make("quick")
    play(taskset, ["x"] * 8)
    (term,) = taskset._terms
    task = taskset.train(1)[0]

    async def score_many() -> float:
        started = time.perf_counter()
        for _ in range(256):
            await term.score(["x"], [task])
        return time.perf_counter() - started

    # 2 to 5 ms on the machines at hand; a machine that is busy with other things takes longer.
    assert min(asyncio.run(score_many()) for _ in range(5)) < 0.05


class Judge:
    """A judge that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, completion: str, answer: str) -> float:
        self.calls += 1
        return float(completion == answer)

    def score(self, completion: str, answer: str) -> float:
        return self(completion, answer)


@remote
class PaidJudge(Judge):
    """A class that is marked."""


def test_the_mark_of_what_costs_money() -> None:
    marked = remote(lambda completion: float(completion == "7"))
    method = remote(Judge().score)
    assert marked("7") == method("7", "7") == 1.0
    decorated = functools.wraps(marked)(lambda completion: marked(completion))
    for function in (
        marked,
        method,
        functools.partial(marked),
        PaidJudge(),
        decorated,
        remote(len),
    ):
        assert is_remote(function)
    assert method.__name__ == "score"
    for plain in (Judge(), Judge().score, functools.partial(len), len):
        assert not is_remote(plain)
    with pytest.raises(TypeError, match="can be called"):
        remote("judge")  # type: ignore[type-var]


def test_what_costs_money_is_called_for_training_alone(tmp_path: Path) -> None:
    """Other rewards are still tested, and a taskset without any has nothing to test."""
    rows = [{"prompt": f"{n} + 1 = ", "answer": str(n + 1)} for n in range(40)]
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    judge = PaidJudge()

    with register_functions({"mine:judge": judge}):
        for rewards, n_golds in ((["mine:judge"], 0), (["exact", "mine:judge"], 30)):
            options = {"file": str(file), "reward": rewards, "bounds": [0, 1]}

            def make(options: dict[str, Any] = options) -> Taskset:
                return make_taskset("data", options, 0)

            report = validate(make, train=30, heldout=0)
            assert report.passed
            assert any("mine:judge" in note or "judge" in note for note in report.notes)
            figures = {check.name: check.figure for check in report.checks}
            gold_figure = figures["gold answers reach the maximum"]
            assert gold_figure == (f"{n_golds} of {n_golds} do" if n_golds else "not judged: none")
        assert judge.calls == 0

        taskset = make()
        task = taskset.train(1)[0]
        with without_remote():
            assert score_of(taskset, task).high == 1.0

        @probe("paid", finds=[])
        def earn(bench: Bench) -> ProbeAnswer:  # noqa: ARG001 (the taskset is all it needs)
            """Score a right answer."""
            yield f"{score_of(taskset, task).high:g}"

        assert earn.run(cast(Bench, None)).figure == "1"
        assert judge.calls == 0
        assert score_of(taskset, task).high == 2.0
        assert judge.calls == 1


def score_of(taskset: Taskset, task: Task) -> Reward:
    _, reward = event_loop.run(play_script(taskset, task, say(task.answer)))
    return reward
