"""Tasks: repeated, leaked, sorted, mislabeled, too few."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from benchmarks.faults.fault import Fault, Strength, of_settings, pool, train_tasks

from uptrend.records import Task, tasks_hash
from uptrend.tasks.pool import Cursor, Pool
from uptrend.tasks.taskset import Taskset
from uptrend.training.components import RunContext


class SortedPool(Pool):
    """Pool that draws the easiest tasks first."""

    def draw(
        self, step: int, count: int, cursor: Cursor, drawn: Collection[str] = ()
    ) -> tuple[list[tuple[Task, Taskset]], Cursor]:
        """Draw on from an epoch in the order of difficulty."""
        del drawn  # the faulty recipes replace no groups
        _, after = super().draw(step, count, cursor)
        epoch, _ = super().draw(
            step, len(self.stages[after.stage].tasks), replace(after, position=0)
        )
        ordered = sorted(epoch, key=lambda drawn: drawn[0].difficulty)
        return ordered[after.position - count : after.position], after


class RepeatingPool(Pool):
    """Pool that draws each task twice in a step."""

    def draw(
        self, step: int, count: int, cursor: Cursor, drawn: Collection[str] = ()
    ) -> tuple[list[tuple[Task, Taskset]], Cursor]:
        """Draw half of the tasks two times."""
        tasks, cursor = super().draw(step, count, cursor, drawn)
        return [tasks[i // 2] for i in range(count)], cursor


def _respelled(task: Task) -> Task:
    """Spell the question otherwise, so that it has another id."""
    first = task.messages[0]
    return replace(
        task, messages=(replace(first, content=first.content.replace(" ", "  ", 1)),), id=""
    )


def _leaking(_: RunContext, taskset: Taskset, tasks: list[Task]) -> list[Task]:
    return [*tasks, *map(_respelled, taskset.heldout(len(tasks)))][-len(tasks) :]


def _with_held_out(context: RunContext, _: Taskset, tasks: list[Task]) -> list[Task]:
    return [*context.heldout.tasks, *tasks]


def _repeating(_: RunContext, __: Taskset, tasks: list[Task]) -> list[Task]:
    half = len(tasks) // 2
    return [*tasks[:half], *map(_respelled, tasks[: len(tasks) - half])]


def _few_repeated(_: RunContext, __: Taskset, tasks: list[Task]) -> list[Task]:
    return [tasks[i % 16] for i in range(len(tasks))]


def _contradicting(_: RunContext, __: Taskset, tasks: list[Task]) -> list[Task]:
    """Add every third task once more with another gold answer."""
    return [*map(_other_answer, tasks[: len(tasks) // 3]), *tasks]


def _other_answer(task: Task) -> Task:
    return replace(task, answer=str(int(task.answer) + 3))


def _mislabeled(context: RunContext) -> RunContext:
    """Give every third task, held-out ones included, a wrong gold answer."""

    def mislabel(tasks: Sequence[Task]) -> list[Task]:
        return [_other_answer(t) if sum(map(ord, t.id)) % 3 == 0 else t for t in tasks]

    held = tuple(mislabel(context.heldout.tasks))
    spoiled = replace(context, heldout=replace(context.heldout, tasks=held, hash=tasks_hash(held)))
    return train_tasks(lambda _, __, tasks: mislabel(tasks))(spoiled)


FEW = {"tasks.train": 12, "learning.lr": 6e-4, "eval.every": 10}
FAULTS = (
    Fault("data.duplicates", (Strength("tasks-repeat", train_tasks(_repeating), probe="repeats"),
                              Strength("16 of all", train_tasks(_few_repeated)))),
    Fault("data.batch-exceeds", (Strength("drawn-twice", pool(RepeatingPool), probe="repeats"),),
          also=("data.duplicates",)),
    Fault("data.leak", (Strength("held-out-leaks", train_tasks(_leaking), probe="leak"),
                        Strength("as they are", train_tasks(_with_held_out)))),
    Fault("data.wrong-gold", (Strength("two golds", train_tasks(_contradicting)),
                              Strength("a third wrong", _mislabeled)), steps=20),
    of_settings("data.memorized", FEW, steps=50, seeds=2, fix=("tasks.train",), also=("reward.hackable",)),
    Fault("data.order", (Strength("tasks-sorted", pool(SortedPool), probe="order"),)),
)  # fmt: skip
