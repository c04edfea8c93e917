"""Scripted players on machine-learning tasks: scores on the test split of held-out examples, with
intervals.

    python benchmarks/mlgym.py --examples 20
    python benchmarks/mlgym.py --folder MLGym --problems prisonersDilemma --sandbox bubblewrap --json
    python benchmarks/mlgym.py --at-once 32

Every player plays the same examples in fresh sandboxes. A score is the evaluator's metric; the
reward is the scheme `final`'s; both are means with a 95% bootstrap interval. "none" counts rollouts
without a valid submission.

`--at-once` plays so many rollouts of scripted players one by one and then side by side, in turns,
and compares every observation and reward.
"""

import argparse
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from uptrend.records import Message, Task
from uptrend.stats.intervals import bootstrap_mean
from uptrend.tasks import event_loop
from uptrend.tasks.taskset import Script, play_script
from uptrend.tasksets.mlgym.play import AUTOMATIC_SUBMISSION, ResearchPlay
from uptrend.tasksets.mlgym.taskset import MlGym, MlGymOptions, Player, read_players

# {n} is a number from 1 to 20.
RANDOM_COMMANDS = (
    "ls",
    "cat baseline.py",
    "open baseline.py",
    "goto {n}",
    "edit {n}:{n}\nx = {n}\nend_of_edit",
    "python baseline.py",
    "scroll_down",
    "search_file import",
    "insert {n}\n# {n}\nend_of_insert",
    "head -n {n} train.csv",
    "validate",
)


def players_of(taskset: MlGym, task: Task) -> dict[str, Script]:
    """Return the scripts that play a task, by name: nobody, at random, and the task's own
    players.
    """
    seed, folder = task.data["seed"], taskset.problems[task.family].players
    own: tuple[Player, ...] = read_players(folder) if folder else ()
    baseline = taskset.problems[task.family].baseline
    first = [f"python {baseline}", "submit"] if baseline else ["submit"]
    scripts: dict[str, Any] = {"baseline": _say(first), "random": _act_at_random(seed)}
    return scripts | {
        f"{p.kind} {p.name}": p.play(seed)
        for p in sorted(own, key=lambda p: "ewc".index(p.kind[0]))
    }


def _act_at_random(seed: int, turns: int = 8) -> Iterator[Message]:
    """Give commands at random, and submit at the end."""
    generator = random.Random(f"random-{seed}")
    for _ in range(turns - 1):
        command = generator.choice(RANDOM_COMMANDS)
        yield Message("assistant", command.replace("{n}", str(generator.randint(1, 20))))
    yield Message("assistant", "submit")


def _say(turns: list[str]) -> Iterator[Message]:
    for turn in turns:
        yield Message("assistant", turn)


async def play(taskset: MlGym, task: Task, script: Script) -> dict[str, float | None]:
    """Play a script; return its test score, its reward, and whether it validated."""
    opened: ResearchPlay = taskset.open(task, 0)
    try:
        for message in script:
            if await opened.respond(message) is None:
                break
        reward = await opened.score()
    finally:
        await opened.close()
    end = opened.commands[-1] if opened.commands else None
    score = (
        end.score if end is not None and end.command in ("submit", AUTOMATIC_SUBMISSION) else None
    )
    parts = {part.name: part.value for part in reward.parts}
    return {"score": score, "reward": reward.total, "validated": parts["validated"]}


async def measure(taskset: MlGym, tasks: list[Task]) -> list[dict[str, Any]]:
    """Let every player play every task, and sum up by player."""
    pairs = [
        (task, name, script) for task in tasks for name, script in players_of(taskset, task).items()
    ]
    results = await event_loop.together(play(taskset, task, script) for task, _, script in pairs)
    rows: dict[tuple[str, str], list[dict[str, float | None]]] = {}
    for (task, name, _), result in zip(pairs, results, strict=True):
        rows.setdefault((task.family, name), []).append(result)
    return [
        {"task": task, "player": name, **_summary(each)}
        for (task, name), each in sorted(rows.items(), key=_order)
    ]


async def _transcript(taskset: MlGym, task: Task, player: Player) -> tuple[list[str], float]:
    messages, reward = await play_script(taskset, task, player.play(task.data["seed"]))
    return [message.content for message in messages], reward.total


async def compare(taskset: MlGym, count: int, rounds: int = 3) -> dict[str, Any]:
    """Play the same rollouts one by one and side by side; return the times and whether anything
    differed.
    """
    tasks = taskset.heldout(count)
    pairs = [(task, (own := read_players(taskset.problems[task.family].players or Path()))[i % len(own)])
             for i, task in enumerate(tasks)]  # fmt: skip
    await event_loop.together(
        _transcript(taskset, *pair) for pair in pairs
    )  # baselines are measured once
    alone, together, differ = list[float](), list[float](), 0
    for _ in range(rounds):
        began = time.perf_counter()
        first = [await _transcript(taskset, *pair) for pair in pairs]
        alone.append(time.perf_counter() - began)
        began = time.perf_counter()
        second = await event_loop.together(_transcript(taskset, *pair) for pair in pairs)
        together.append(time.perf_counter() - began)
        differ += sum(a != b for a, b in zip(first, second, strict=True))
    turns = sum(len(said) for said, _ in second)
    return {
        "rollouts": count,
        "messages": turns,
        "one_by_one_s": alone,
        "at_once_s": together,
        "differ": differ,
    }


def _order(row: tuple[tuple[str, str], Any]) -> tuple[str, int, str]:
    (task, name), _ = row
    return task, ["baseline", "random", "expert", "weak", "cheat"].index(name.split()[0]), name


def _summary(results: list[dict[str, float | None]]) -> dict[str, Any]:
    scores = np.array([r["score"] for r in results if r["score"] is not None], float)
    rewards = np.array([r["reward"] for r in results], float)
    interval = [*bootstrap_mean(scores)] if len(scores) else None
    return {
        "examples": len(results), "score": float(scores.mean()) if len(scores) else None, "interval": interval,
        "reward": float(rewards.mean()), "reward_interval": [*bootstrap_mean(rewards)],
        "validated": float(np.mean([r["validated"] for r in results])), "none": len(results) - len(scores),
    }  # fmt: skip


def main() -> None:
    """Print the table, as Markdown or as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--problems", nargs="*", default=[])
    parser.add_argument(
        "--folder", default="", help="a MLGym checkout; default: the tasks that come with Uptrend"
    )
    parser.add_argument("--examples", type=int, default=20, help="held-out examples of each task")
    parser.add_argument("--sandbox", default="auto")
    parser.add_argument(
        "--at-once",
        type=int,
        default=0,
        help="compare so many rollouts side by side with one by one",
    )
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    options = MlGymOptions(
        problems=tuple(given.problems), folder=given.folder, sandbox=given.sandbox
    )
    taskset = MlGym(options, 0)
    if given.at_once:
        print(json.dumps(event_loop.run(compare(taskset, given.at_once))))
        return
    rows = event_loop.run(measure(taskset, taskset.heldout(given.examples * len(taskset.problems))))
    if given.json:
        print(json.dumps(rows))
        return
    print("| task | player | test score | reward | validated | none |\n|---|---|---|---|---|---|")
    for row in rows:
        score = (
            "—"
            if row["score"] is None
            else f"{row['score']:.3f} ({row['interval'][0]:.3f} to {row['interval'][1]:.3f})"
        )
        reward = f"{row['reward']:+.2f} ({row['reward_interval'][0]:+.2f} to {row['reward_interval'][1]:+.2f})"
        print(
            f"| {row['task']} | {row['player']} | {score} | {reward} | {row['validated']:.0%} | {row['none']} |"
        )


if __name__ == "__main__":
    main()
