"""The one event loop of the process: interruptions, failures, exits and forks."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from uptrend.tasks.event_loop import in_caller, run, together


async def where() -> tuple[asyncio.AbstractEventLoop, threading.Thread]:
    return asyncio.get_running_loop(), threading.current_thread()


def test_one_loop_for_every_caller_whatever_went_wrong_before() -> None:
    first = run(where())

    async def fails(error: BaseException) -> None:
        await asyncio.sleep(0)
        raise error

    for error in (KeyError("x"), SystemExit(3), asyncio.CancelledError()):
        with pytest.raises(type(error)):
            run(fails(error))
    others: list[Any] = []
    threads = [threading.Thread(target=lambda: others.append(run(where()))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert others == [first] * 4
    assert first[1] is not threading.current_thread()


@pytest.mark.parametrize("decodes", [False, True], ids=["waiting", "decoding"])
def test_ctrl_c_cancels_the_plays_and_waits_for_their_close(decodes: bool) -> None:
    closed = []

    async def play(number: int) -> None:
        try:
            if decodes and number == 0:
                await in_caller(lambda: time.sleep(60))
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)
            closed.append(number)

    async def plays() -> None:
        asyncio.get_running_loop().call_later(0.1, os.kill, os.getpid(), signal.SIGINT)
        await together(play(number) for number in range(3))

    with pytest.raises(KeyboardInterrupt):
        run(plays())
    assert sorted(closed) == [0, 1, 2]
    assert (
        run(in_caller(threading.current_thread)) is threading.current_thread()
    )  # all goes on as before


def test_where_one_fails_the_others_are_cancelled_and_waited_for() -> None:
    ended = []

    async def one(number: int) -> None:
        try:
            await asyncio.sleep(0 if number == 1 else 60)
            raise LookupError(str(number))
        finally:
            ended.append(number)

    with pytest.raises(LookupError, match="1"):
        run(together(map(one, range(3))))
    assert sorted(ended) == [0, 1, 2]


def test_a_forked_process_has_its_own() -> None:
    program = """
import asyncio, os
from uptrend.tasks.event_loop import run
run(asyncio.sleep(0))
child = os.fork()
assert run(asyncio.sleep(0, "heard")) == "heard"
if child:
    assert os.waitpid(child, 0)[1] == 0
"""
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], timeout=60, env=os.environ, check=False
    )
    assert ran.returncode == 0
