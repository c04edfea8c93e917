"""Whether a taskset is fit to train on, found out without a model.

Gold and corrupted scripts are played through the real play objects: a reward that cuts its completion in the
wrong place, or that can be had without an answer, shows here before the first step.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from uptrend.records import Message, Reward, Task
from uptrend.tasks import checks
from uptrend.tasks.checks import Check, Played
from uptrend.tasks.script import play_script
from uptrend.tasks.taskset import Script, Taskset

__all__ = ["Check", "Report", "play_script", "validate"]


@dataclass(frozen=True)
class Report:
    """What was found out about a taskset."""

    taskset: str
    """Its name."""
    checks: tuple[Check, ...]
    """In the order in which they are shown."""
    notes: tuple[str, ...]
    """What the taskset itself says."""

    @property
    def passed(self) -> bool:
        """Whether all checks hold."""
        return all(check.passed for check in self.checks)


def validate(make: Callable[[], Taskset], train: int = 500, heldout: int = 200, limit: int = 200) -> Report:
    """Check a taskset, made twice by `make`, on so many tasks; at most `limit` of them are played."""
    taskset, again = make(), make()
    to_train, held_out = taskset.train(train), taskset.heldout(heldout)
    tasks = [*to_train, *held_out]
    repeated = [*again.train(train), *again.heldout(heldout)]
    chosen = random.Random(0).sample(tasks, min(limit, len(tasks)))
    played = asyncio.run(_play(taskset, chosen))
    found = (
        checks.has_tasks(to_train, held_out, train),
        checks.prompts(tasks),
        checks.disjoint(to_train, held_out),
        checks.duplicates(taskset, to_train, held_out),
        checks.same_tasks(tasks, repeated),
        checks.order(to_train),
        checks.failures(played),
        checks.gold(played),
        checks.corrupted(played),
        checks.bounds(played),
        checks.deterministic(played),
    )
    return Report(taskset.name, found, tuple(taskset.notes))


async def _play(taskset: Taskset, tasks: Sequence[Task]) -> list[Played]:
    played = []
    for task in tasks:
        rounds = [(taskset.gold(task), *taskset.corrupted(task)) for _ in range(2)]
        for i, twice in enumerate(zip(*rounds, strict=False)):
            played.append(await _play_twice(taskset, task, twice, is_gold=i == 0))
    return played


async def _play_twice(taskset: Taskset, task: Task, scripts: Sequence[Script], is_gold: bool) -> Played:
    prompt = task.messages[0].content if task.messages else ""
    messages: list[Message] = []
    rewards: list[Reward] = []
    try:
        for script in scripts:
            messages, reward = await play_script(taskset, task, script)
            rewards.append(reward)
    except Exception as error:  # a taskset's own bug is what we are here to report
        return Played(prompt, "", is_gold, (), f"{type(error).__name__}: {error}")
    said = [message.content for message in messages if message.role == "assistant"]
    return Played(prompt, said[-1] if said else "", is_gold, tuple(rewards))
