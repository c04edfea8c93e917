"""Tasks: repeated, leaked, sorted, mislabeled, too few."""

from dataclasses import replace
from typing import Any

from benchmarks.faults.fault import Fault, Strength, of_settings
from benchmarks.faults.planted.known import known
from tests.doctor.planted_faults import swapped

from uptrend.runner import runs as launch
from uptrend.tasks.arithmetic.calculation import Arithmetic
from uptrend.tasks.arithmetic.family import Family


def _few_repeated(train: Any) -> Any:
    """16 different tasks stand for all that were asked for."""

    def run(self: Any, count: int, exclude: Any = ()) -> Any:
        tasks = train(self, count, exclude)
        return [tasks[i % 16] for i in range(len(tasks))]

    return run


def _with_held_out(pool: Any) -> Any:
    """Held-out tasks are mixed into those to train on, as they are."""

    def run(config: Any, held_out: Any) -> Any:
        made = pool(config, held_out)
        stages = [replace(s, tasks=(*held_out.tasks, *s.tasks)[: len(s.tasks)]) for s in made.stages]
        return replace(made, stages=tuple(stages))

    return run


def _mislabeled(make: Any) -> Any:
    """Every third gold answer is another number."""

    def run(self: Any, problem: Any) -> Any:
        task = make(self, problem)
        return replace(task, answer=str(int(task.answer) + 3), id="") if sum(map(ord, task.id)) % 3 == 0 else task

    return run


def _contradicting(pool: Any) -> Any:
    """Every third task stands there once more with another gold answer."""

    def run(config: Any, held_out: Any) -> Any:
        made = pool(config, held_out)
        stages = []
        for s in made.stages:
            others = [replace(t, answer=str(int(t.answer) + 3)) for t in s.tasks[: len(s.tasks) // 3]]
            stages.append(replace(s, tasks=(*others, *s.tasks)[: len(s.tasks)]))
        return replace(made, stages=tuple(stages))

    return run


FEW = {"tasks.train": 12, "learning.lr": 6e-4, "eval.every": 10}
FAULTS = (
    Fault("data.duplicates", (known("tasks-repeat"),
                              Strength("16 of all", lambda: swapped(Family, "train", _few_repeated)))),
    Fault("data.batch-exceeds", (known("drawn-twice"),), also=("data.duplicates",)),
    Fault("data.leak", (known("held-out-leaks"),
                        Strength("as they are", lambda: swapped(launch, "pool", _with_held_out)))),
    Fault("data.wrong-gold", (Strength("two golds", lambda: swapped(launch, "pool", _contradicting)),
                              Strength("a third wrong", lambda: swapped(Arithmetic, "task", _mislabeled))),
          steps=20),
    of_settings("data.memorized", FEW, steps=50, seeds=2, fix=("tasks.train",), also=("reward.hackable",)),
    Fault("data.order", (known("tasks-sorted"),)),
)  # fmt: skip
