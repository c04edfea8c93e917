"""Whether a taskset is fit to train on, found out without a model.

Gold and corrupted scripts are played through the real play objects: a reward that cuts its completion in the
wrong place, or that can be had without an answer, shows here before the first step.
"""

import asyncio
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from uptrend.records import Message, MissingExtra, Reward, Task
from uptrend.tasks import checks
from uptrend.tasks.checks import Check, HasCheaters, HasVariants, Played
from uptrend.tasks.script import play_script
from uptrend.tasks.taskset import Script, Taskset

__all__ = ["Check", "ValidationReport", "play_script", "validate"]

CEILING = 50
"""Tasks on which each variant's ceiling is measured, and cheaters play: a semantic retriever takes its time."""


@dataclass(frozen=True)
class ValidationReport:
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


def validate(
    make: Callable[[], Taskset], train: int = 500, heldout: int = 200, limit: int = 200, *, only_trains: bool = False
) -> ValidationReport:
    """Check a taskset, made twice by `make`, on so many tasks; at most `limit` of them are played.

    One that only trains need not hold out any: it is then asked for no more held-out tasks than it has.
    """
    taskset, again = make(), make()
    repeated = [*again.train(train), *(spare := again.heldout(heldout))]
    # Known from the other one, so that this one's notes do not tell of a wish that nobody has.
    heldout = len(spare) if only_trains else heldout
    to_train, held_out = taskset.train(train), taskset.heldout(heldout)
    tasks = [*to_train, *held_out]
    chosen = random.Random(0).sample(tasks, min(limit, len(tasks)))
    proving = taskset.proof() if isinstance(taskset, HasVariants) else taskset
    played = asyncio.run(_play(proving, chosen))
    found = (
        checks.has_tasks(to_train, held_out, (train, heldout)),
        checks.prompts(tasks),
        checks.disjoint(to_train, held_out),
        checks.duplicates(taskset, to_train, held_out),
        checks.same_tasks(tasks, repeated),
        checks.order(to_train),
        checks.failures(played),
        checks.gold(played),
        checks.corrupted(played),
        *_cheated(proving, chosen[:CEILING]),
        checks.bounds(played),
        checks.deterministic(played),
        *_ceilings(taskset, chosen[:CEILING]),
    )
    return ValidationReport(taskset.name, found, tuple(taskset.notes))


def _ceilings(taskset: Taskset, tasks: Sequence[Task]) -> Iterator[Check]:
    """How far the expert gets under each variant, where there are any."""
    for name, make in (taskset.variants() if isinstance(taskset, HasVariants) else {}).items():
        try:
            yield checks.ceiling(name, asyncio.run(_play(make(), tasks, times=1)))
        except MissingExtra as missing:  # the proof itself does not need it
            yield Check(f"ceiling of gold under {name}", True, f"not measured: {missing}")


def _cheated(taskset: Taskset, tasks: Sequence[Task]) -> Iterator[Check]:
    """Whether going for the reward pays, where the taskset has players that do."""
    if isinstance(taskset, HasCheaters):
        yield checks.cheaters(asyncio.run(_play(taskset, tasks, 1, taskset.cheaters, has_gold=False)))


async def _play(
    taskset: Taskset,
    tasks: Sequence[Task],
    times: int = 2,
    scripts: Callable[[Task], Iterable[Script]] | None = None,
    *,
    has_gold: bool = True,
) -> list[Played]:
    """Every script of every task, so many times; tasks go on side by side, as rollouts do."""
    given = scripts or (lambda task: (taskset.gold(task), *taskset.corrupted(task)))
    plays = await asyncio.gather(*(_play_task(taskset, t, [given(t) for _ in range(times)], has_gold) for t in tasks))
    return [play for of_task in plays for play in of_task]


async def _play_task(taskset: Taskset, task: Task, rounds: Sequence[Iterable[Script]], has_gold: bool) -> list[Played]:
    repeats = enumerate(zip(*rounds, strict=False))
    return [await _play_script(taskset, task, scripts, is_gold=has_gold and i == 0) for i, scripts in repeats]


async def _play_script(taskset: Taskset, task: Task, scripts: Sequence[Script], is_gold: bool) -> Played:
    """One script's repetitions."""
    prompt = next((m.content for m in task.messages if m.role != "system"), "")
    messages: list[Message] = []
    rewards: list[Reward] = []
    try:
        for script in scripts:
            messages, reward = await play_script(taskset, task, script)
            rewards.append(reward)
    except MissingExtra:  # nothing is wrong with the taskset
        raise
    except Exception as error:  # a taskset's own bug is what we are here to report
        return Played(prompt, "", is_gold, (), f"{type(error).__name__}: {error}")
    said = [message.content for message in messages if message.role == "assistant"]
    return Played(prompt, said[-1] if said else "", is_gold, tuple(rewards))
