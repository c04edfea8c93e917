"""The ready reward `math`: a process of its own that can be stopped, wherever rewards are
computed.
"""

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

import uptrend
from uptrend.records import Reward, TasksetError
from uptrend.tasks import event_loop
from uptrend.tasks.pool import make_taskset
from uptrend.tasks.taskset import Taskset, play_script, say
from uptrend.tasks.workers import count_cores

# Writing it out takes for ever: 9^9 has 9 digits, 9^(9^9) has 369,693,100.
ENDLESS = "9^{9^{9^{9}}}"
LATE = "math-verify took longer than 5 s"


def taskset_of(folder: Path, *answers: str) -> Taskset:
    rows = [{"prompt": f"{n}?", "answer": answer} for n, answer in enumerate(answers)]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return make_taskset(
        "data", {"file": str(folder / "rows.jsonl"), "reward": "math", "hold_out": "none"}, 0
    )


def score(taskset: Taskset, text: str) -> Reward:
    return event_loop.run(play_script(taskset, taskset.train(1)[0], say(text)))[1]


def workers(parent: int | str = "self") -> set[int]:
    """Return the math workers among the processes that a process has started."""
    found = set()
    for file in Path(f"/proc/{parent}/task").glob("*/children"):
        for pid in map(int, file.read_text().split()):
            if b"uptrend.tasks.math_worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.add(pid)
    return found


def is_gone(pid: int) -> bool:
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True


def wait_until_gone(pid: int, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while not is_gone(pid) and time.monotonic() < until:
        time.sleep(0.05)
    return is_gone(pid)


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [0, 1])
def test_an_endless_expression_is_a_failed_rollout_and_the_run_goes_on(
    tmp_path: Path, ahead: int
) -> None:
    pairs = [(a, b) for a in range(8) for b in range(8)]
    rows = [
        {
            "prompt": f"Calculate: {a} + {b} = ",
            "answer": f"${ENDLESS}$" if a == b < 5 else str(a + b),
        }
        for a, b in pairs
    ]
    run = uptrend.train(
        model="tiny", data=rows, reward="math", steps=2, preflight=False, progress=False, runs=tmp_path,
        overrides=["tasks.chat=false", "sampling.max_tokens=4", "sampling.groups=6", "sampling.size=2", "eval.tasks=1",
                   "doctor.live=false", f"sampling.ahead={ahead}", "learning.correction=token"],
    )  # fmt: skip
    assert run.status == "finished"
    rollouts = [row for step in (1, 2) for row in run.rollouts(step).to_pylist()]
    by_error = Counter(row["error"] for row in rollouts)
    assert set(by_error) == {None, f"score: TasksetError('{LATE}')"}
    assert {row["answer"] for row in rollouts if row["error"]} == {f"${ENDLESS}$"}
    assert any(row["correct"] for row in rollouts)
    del run
    gc.collect()
    assert not workers()  # it ends with the run


@pytest.mark.slow
def test_after_an_endless_expression_and_a_kill_the_next_answer_is_scored(tmp_path: Path) -> None:
    taskset = taskset_of(tmp_path, "5")
    with pytest.raises(
        TasksetError, match=LATE
    ):  # math-verify's own limit; without one this would never end
        score(taskset, f"${ENDLESS}$")
    assert score(taskset, "$10/2$").correct
    (worker,) = workers()
    os.kill(worker, signal.SIGKILL)
    assert wait_until_gone(worker, 10)
    assert score(taskset, "$10/2$").correct


@pytest.mark.slow
def test_many_threads_share_the_workers(tmp_path: Path) -> None:
    taskset, other = taskset_of(tmp_path, r"\frac{1}{2}"), taskset_of(tmp_path, r"\frac{1}{2}")
    found = Counter[tuple[str, bool]]()
    said = ["$0.5$", "$0.6$", "$2/4$"]

    def work(which: Taskset) -> None:
        for text in said:
            found[text, score(which, text).correct] += 1

    threads = [
        threading.Thread(target=work, args=(each,)) for each in (taskset, other) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {("$0.5$", True): 8, ("$0.6$", False): 8, ("$2/4$", True): 8}
    assert 1 <= len(workers()) <= count_cores()


SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from test_math import ENDLESS, score, taskset_of

taskset = taskset_of(Path({folder!r}), "5")
print(score(taskset, "$10/2$").total, flush=True)
if sys.argv[1] == "busy":
    score(taskset, f"${{ENDLESS}}$")
sys.stdin.read()
"""


@pytest.mark.slow
@pytest.mark.parametrize("state", ["idle", "busy"])
def test_the_worker_ends_with_a_killed_parent_and_takes_nothing_from_the_current_folder(
    tmp_path: Path, state: str
) -> None:
    for name in ("json", "math_verify", "sympy"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a file of the current folder')\n")
    (tmp_path / "data").mkdir()
    script = SCRIPT.format(tests=str(Path(__file__).parent), folder=str(tmp_path / "data"))
    parent = subprocess.Popen(
        [sys.executable, "-P", "-c", script, state],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"1.0\n"
    (worker,) = workers(parent.pid)
    time.sleep(0.5)
    parent.kill()
    parent.communicate()
    assert wait_until_gone(worker, 15)


def test_what_an_expression_may_hold_in_memory_is_bounded(tmp_path: Path) -> None:
    taskset = taskset_of(tmp_path, "5")
    score(taskset, "$5$")
    for worker in workers():
        limits = Path(f"/proc/{worker}/limits").read_text()
        (bound,) = [
            line.split()[3] for line in limits.splitlines() if line.startswith("Max address space")
        ]
        assert int(bound) == 4 << 30
