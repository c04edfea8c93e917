"""Time limits count what a call does, not what it waits for its turn."""

import asyncio
import json
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import uptrend
from mlgym_folder import write_folder
from uptrend.config.functions import register_functions
from uptrend.records import Ending, Message, Rollout, Run
from uptrend.rollout.play import RolloutRequest, Timeouts, play_messages, repeat_messages
from uptrend.rollout.sampler import Limits
from uptrend.tasks import event_loop
from uptrend.tasks.event_loop import holding
from uptrend.tasks.pool import make_taskset
from uptrend.tasks.taskset import Taskset
from uptrend.tasksets.mlgym.taskset import MlGym, MlGymOptions

ROWS = [
    {"prompt": f"Calculate: {a} + {b} = ", "answer": str(a + b)} for a in range(8) for b in range(8)
]
TOO_LATE = "score: no answer within sampling.tool_timeout = 1 s"


def errors(run: Run) -> list[str | None]:
    return list(run.rollouts(1)["error"].to_pylist())


def train(tmp_path: Path, reward: Any, *overrides: str) -> Run:
    quick = ["tasks.chat=false", "sampling.max_tokens=4", "sampling.groups=2", "sampling.size=8", "eval.tasks=1",
             "doctor.live=false", "sampling.tool_timeout=1"]  # fmt: skip
    return uptrend.train(
        model="tiny", data=ROWS, reward=reward, steps=1, preflight=False, progress=False, runs=tmp_path,
        overrides=[*quick, *overrides],
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [0, 1])
def test_healthy_rewards_that_wait_for_each_other_are_scored(tmp_path: Path, ahead: int) -> None:
    def slow(completion: str) -> float:
        time.sleep(0.15)
        return float(len(completion))

    run = train(tmp_path, slow, f"sampling.ahead={ahead}", "learning.correction=token")
    assert errors(run) == [None] * 16


@pytest.mark.slow
def test_a_reward_that_takes_longer_itself_is_a_failed_rollout_and_its_neighbors_are_not(
    tmp_path: Path,
) -> None:
    calls = Counter[str]()

    def slow(completion: str) -> float:
        calls["all"] += 1
        time.sleep(3.0 if calls["all"] % 4 == 3 else 0.05)
        return float(len(completion))

    assert Counter(errors(train(tmp_path, slow))) == {None: 12, TOO_LATE: 4}


def play(taskset: Taskset, words: str, count: int, seconds: float) -> list[Rollout]:
    """Say the same words to so many tasks side by side, with so many seconds for each call."""
    tasks = taskset.train(count)
    requests = [RolloutRequest(task, taskset, 0, str(n), 0, 0) for n, task in enumerate(tasks)]
    said = [Message("assistant", words)]
    timeouts = Timeouts(tool=seconds, rollout=seconds)
    return event_loop.run(
        play_messages(
            requests, lambda _: repeat_messages(said), Limits(8, 64), 1, timeouts=timeouts
        )
    )


def data(tmp_path: Path, **options: Any) -> Taskset:
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    return make_taskset("data", {"file": str(tmp_path / "rows.jsonl"), **options}, 0)


def test_an_async_reward_does_not_pay_for_the_places_that_others_hold(tmp_path: Path) -> None:
    gate = asyncio.Semaphore(1)

    async def asks(completion: str) -> float:
        async with holding(gate):
            await asyncio.sleep(3.0 if completion == "slow" else 0.2)
        return 1.0

    with register_functions({"mine:asks": asks}):
        taskset = data(tmp_path, reward="mine:asks")
    assert [rollout.error for rollout in play(taskset, "quick", 8, 1.0)] == [None] * 8
    assert [rollout.error for rollout in play(taskset, "slow", 2, 1.0)] == [TOO_LATE] * 2


def test_what_has_to_be_done_after_a_limit_may_wait_too(tmp_path: Path) -> None:
    gate, cleaned = asyncio.Semaphore(1), list[bool]()

    async def asks(**_: Any) -> float:
        try:
            await asyncio.sleep(9)
        finally:
            async with holding(gate):
                cleaned.append(True)
        return 1.0

    with register_functions({"mine:asks": asks}):
        taskset = data(tmp_path, reward="mine:asks")
    assert [rollout.error for rollout in play(taskset, "slow", 2, 1.0)] == [TOO_LATE] * 2
    assert cleaned == [True, True]


def test_a_judge_is_waited_for_as_long_as_it_takes_its_turn(tmp_path: Path) -> None:
    class Server(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            time.sleep(0.2)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"choices": [{"message": {"content": "yes"}}]}).encode())

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    judge = {"url": f"http://127.0.0.1:{server.server_port}/v1", "model": "m", "at_once": 1}
    rollouts = play(data(tmp_path, reward="judge", judge=judge), "x", 8, 1.0)
    server.shutdown()
    server.server_close()
    assert [rollout.error for rollout in rollouts] == [None] * 8


@pytest.mark.slow
def test_a_command_does_not_pay_for_the_sandboxes_that_others_hold(tmp_path: Path) -> None:
    options = MlGymOptions(folder=write_folder(tmp_path), sandbox="process", workers=1)
    rollouts = play(MlGym(options, 0), "sleep 1", 6, 5.0)
    assert [(rollout.error, rollout.ended) for rollout in rollouts] == [
        (None, Ending.TURN_LIMIT)
    ] * 6
    assert sum(command.seconds for rollout in rollouts for command in rollout.commands) > 5.0
