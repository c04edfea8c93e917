"""Scripted cheaters of a taskset must not earn the maximum: those who reach for the evaluator, and who says everything.

A cheater that is paid without ever saying the answer has reached the evaluator (task.evaluator-exposed); one that says
it among others, or in the wrong place, has found a reward that is paid for too much (reward.hackable).
"""

import asyncio
from collections import defaultdict
from dataclasses import dataclass

from uptrend.doctor.probes.bench import CRITICAL, HIGH, Bench
from uptrend.doctor.probes.result import Result, not_asked, told
from uptrend.records import Evidence, Finding, Reward, Task
from uptrend.tasks.taskset import Script, Taskset, play_script
from uptrend.tasks.validate import NEAR, HasCheaters

TASKS = 8
TIMES = 2
"""How often each is played: a noisy scorer pays anybody now and then, which is another fault."""
HALF = 0.5
"""The share of tasks on which one of them gets through, from which on it is no luck."""


@dataclass(frozen=True)
class _Tried:
    """One cheater at one task."""

    said: str
    """All that it said."""
    is_through: bool
    """Whether it earned the maximum, each time."""
    says_answer: bool
    """Whether the answer is among what it said."""


def probe(bench: Bench) -> Result:
    """Play what `cheaters(task)` gives on a few tasks."""
    stage = bench.pool.stages[0]
    if not isinstance(stage.taskset, HasCheaters):
        return not_asked("the taskset has no scripted cheater")
    by_kind: dict[int, list[_Tried]] = defaultdict(list)
    for task in stage.tasks[:TASKS]:
        for kind, tried in enumerate(asyncio.run(_try_all(stage.taskset, task))):
            by_kind[kind].append(tried)
    everyone = [tried for kind in by_kind.values() for tried in kind]
    figure = f"{sum(t.is_through for t in everyone)} of {len(everyone)} scripted cheaters earn the maximum"
    through = [kind for kind in by_kind.values() if sum(t.is_through for t in kind) >= HALF * len(kind)]
    return told(figure, [_found(bench, kind, figure) for kind in through])


def _found(bench: Bench, kind: list[_Tried], figure: str) -> Finding:
    paid = [t for t in kind if t.is_through]
    evidence = Evidence(figure), Evidence(f"paid in full: {paid[0].said[-80:]!r}", len(paid) / len(kind))
    count = f"{len(paid)} of {len(kind)}"
    if all(t.says_answer for t in paid):
        summary = f"The reward is paid in full for the answer among others: {count} who say everything earn it."
        return bench.found("reward.hackable", CRITICAL, HIGH, summary, *evidence)
    summary = f"The evaluator can be reached from inside a rollout: {count} cheaters earn the maximum."
    return bench.found("task.evaluator-exposed", CRITICAL, HIGH, summary, *evidence)


async def _try_all(taskset: Taskset, task: Task) -> list[_Tried]:
    assert isinstance(taskset, HasCheaters)
    rounds = [[await _try(taskset, task, script) for script in taskset.cheaters(task)] for _ in range(TIMES)]
    return [
        _Tried(tries[0][0], all(map(_is_best, [reward for _, reward in tries])), _says(tries[0][0], task.answer))
        for tries in zip(*rounds, strict=True)
    ]


async def _try(taskset: Taskset, task: Task, script: Script) -> tuple[str, Reward | None]:
    try:
        messages, reward = await play_script(taskset, task, script)
    except Exception as error:  # a scorer that fails pays nobody, and other probes tell of it
        return f"{type(error).__name__}: {error}", None
    return " ".join(m.content for m in messages if m.role == "assistant"), reward


def _is_best(reward: Reward | None) -> bool:
    return reward is not None and (reward.correct or reward.total >= reward.high - NEAR)


def _says(said: str, answer: str) -> bool:
    return bool(answer) and answer.lower() in said.lower()
