"""A scripted cheater, where the taskset has one, must not reach the maximum."""

import asyncio
from collections.abc import Iterable
from typing import Any

from uptrend.doctor.probes.bench import CRITICAL, HIGH, Bench
from uptrend.doctor.probes.result import Result, not_asked, told
from uptrend.records import Evidence
from uptrend.tasks.script import play_script
from uptrend.tasks.taskset import Script

TASKS = 8


def probe(bench: Bench) -> Result:
    """Play what `cheaters(task)` gives: scripts that try to read or write the answers or the evaluator."""
    stage = bench.pool.stages[0]
    taskset: Any = stage.taskset
    if not hasattr(taskset, "cheaters"):
        return not_asked("the taskset has no scripted cheater")
    through = tried = 0
    for task in stage.tasks[:TASKS]:
        scripts: Iterable[Script] = taskset.cheaters(task)
        for script in scripts:
            _, reward = asyncio.run(play_script(stage.taskset, task, script))
            tried += 1
            through += reward.correct or reward.total >= reward.high
    figure = f"{through} of {tried} scripted cheaters earn the maximum"
    if not through:
        return told(figure)
    summary = f"The evaluator can be reached from inside a rollout: {through} of {tried} cheaters earn the maximum."
    return told(figure, [bench.found("task.evaluator-exposed", CRITICAL, HIGH, summary, Evidence(figure, through))])
