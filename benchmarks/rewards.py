"""Time that scoring rollouts takes: with a reward that computes, and with a quick one.

python -m benchmarks.rewards                      # 64 rollouts of 2 s of CPU each; 256 quick ones
python -m benchmarks.rewards --rollouts 16 --seconds 0.5
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

from uptrend.records import Message
from uptrend.rollout.play import RolloutRequest, play_messages, repeat_messages
from uptrend.rollout.sampler import Limits
from uptrend.tasks import event_loop
from uptrend.tasks.pool import make_taskset
from uptrend.tasks.taskset import Taskset
from uptrend.tasks.workers import count_cores

FUNCTIONS = """
import time

def busy(completion, answer):
    end = time.process_time() + {seconds}
    while time.process_time() < end:
        pass
    return float(completion == answer)

def quick(completion, answer):
    return float(completion == answer)
"""
QUICK_ROLLOUTS = 256
REPEATS = 5


def make(folder: Path, reward: str) -> Taskset:
    """Return tasks with one of the functions."""
    options = {"file": str(folder / "rows.jsonl"), "hold_out": "none"}
    return make_taskset("data", {**options, "reward": reward}, 0)


def measure(taskset: Taskset, count: int) -> float:
    """Return the seconds in which rollouts are played, of which nothing but the score takes time."""
    task = taskset.train(1)[0]
    requests = [RolloutRequest(task, taskset, 0, f"g{n}", 0, n) for n in range(count)]
    reply = Message("assistant", task.answer)
    started = time.perf_counter()
    rollouts = event_loop.run(
        play_messages(requests, lambda _: repeat_messages([reply]), Limits(8, 64), 1)
    )
    seconds = time.perf_counter() - started
    assert all(rollout.reward is not None for rollout in rollouts)
    return seconds


def main() -> None:
    """Print one line for each kind of reward."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rollouts", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "rewards.py").write_text(FUNCTIONS.format(seconds=options.seconds))
        (folder / "rows.jsonl").write_text(json.dumps({"prompt": "1 + 1 = ", "answer": "2"}))
        busy = make(folder, f"{folder}/rewards.py:busy")
        measure(busy, 1)  # starts a worker
        seconds = measure(busy, options.rollouts)
        cpu_seconds = options.rollouts * options.seconds
        print(
            f"{options.rollouts} rollouts at {options.seconds:g} s of CPU on {count_cores()} cores:"
            f" {seconds:.1f} s, {cpu_seconds / seconds:.2f} cores busy"
        )
        for reward in ("exact", f"{folder}/rewards.py:quick"):
            taskset = make(folder, reward)
            measure(taskset, QUICK_ROLLOUTS)  # the function is measured first
            times = [1000 * measure(taskset, QUICK_ROLLOUTS) for _ in range(REPEATS)]
            print(
                f"{QUICK_ROLLOUTS} rollouts with {Path(reward).name}: median"
                f" {statistics.median(times):.1f} ms, {min(times):.1f} to {max(times):.1f}"
            )


if __name__ == "__main__":
    main()
