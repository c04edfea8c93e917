"""Rewards that are wrong, and rewards that pay for something else."""

import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from benchmarks.faults.fault import Fault, PlantedFault, Strength, of_plant
from benchmarks.faults.planted.known import known
from benchmarks.faults.two_turns import Run, TwoTurns
from tests.doctor.planted_faults import on_gathered, swapped

from uptrend.records import Ending, Message, Part, Reward, Task
from uptrend.rollout import play
from uptrend.tasks.arithmetic import play as one_turn
from uptrend.training import loop

Grade = Callable[[str, str, Task], Reward]


def graded(change: Callable[[Reward, str, Task], Reward]) -> PlantedFault:
    """Changes what every answer earns, in training and in evaluation alike."""

    def wrap(grade: Grade) -> Grade:
        return lambda rule, said, task: change(grade(rule, said, task), said, task)

    return lambda: swapped(one_turn, "grade", wrap)


def _paying(extra: Callable[[str], float], weight: float = 0.9) -> Callable[[Reward, str, Task], Reward]:
    """Wrong answers may earn up to 0.9 in another way; right ones keep the most that there is."""

    def change(reward: Reward, said: str, task: Task) -> Reward:  # noqa: ARG001
        value = 1.0 if reward.correct else max(-1.0, -1.0 + (1.0 + weight) * extra(said))
        return Reward.of("score", value, -1.0, 1.0, reward.correct)

    return change


def _parted(name: str, value: Callable[[str], float], weight: float, answer: float) -> Any:
    """The answer's part beside another one."""

    def change(reward: Reward, said: str, task: Task) -> Reward:  # noqa: ARG001
        other = 1.0 if reward.correct and weight > 0.5 else value(said)
        parts = (Part("answer", reward.total, -1.0, 1.0, answer), Part(name, other, 0.0, 1.0, weight))
        return Reward(answer * reward.total + weight * other, -answer, answer + weight, reward.correct, parts)

    return change


def _dead_part(reward: Reward, said: str, task: Task) -> Reward:  # noqa: ARG001
    """A bonus that is paid before it can be earned by anything but the gold answer's whole reward."""
    parts = (Part("answer", reward.total, -1.0, 1.0), Part("proof", 0.0, 0.0, 1.0, 0.0))
    return replace(reward, parts=parts)


def _flipped(share: float) -> Callable[[Reward, str, Task], Reward]:
    def change(reward: Reward, said: str, task: Task) -> Reward:  # noqa: ARG001
        if random.random() >= share:
            return reward
        return Reward.of("exact", -reward.total, -1.0, 1.0, not reward.correct)

    return change


def _never(reward: Reward, said: str, task: Task) -> Reward:  # noqa: ARG001
    return Reward.of("exact", -1.0, -1.0, 1.0, False)


def _strict(reward: Reward, said: str, task: Task) -> Reward:
    """Takes an answer only where nothing at all follows it."""
    is_bare = said == task.answer
    return reward if is_bare else Reward.of("exact", -1.0, -1.0, 1.0, False)


def _growing(gather: Any) -> Any:
    """The most that can be earned grows with the step, from the fifth on."""

    def run(table: Any, pool: Any, cursor: Any, step: int, config: Any) -> Any:
        gathered, by = gather(table, pool, cursor, step, config), 1 + max(0, step - 4) / 10
        rewards = [r.reward and replace(r.reward, total=by * r.reward.total, low=by * r.reward.low,
                                        high=by * r.reward.high) for r in gathered.rollouts]  # fmt: skip
        return replace(
            gathered, rollouts=[replace(r, reward=x) for r, x in zip(gathered.rollouts, rewards, strict=True)]
        )

    return run


def failing(every: int) -> PlantedFault:
    """The scorer fails on some tasks, and whoever calls it makes a number of that."""

    def fails(reward: Reward, said: str, task: Task) -> Reward:  # noqa: ARG001
        if task.difficulty % every == 1:
            raise ValueError("could not read the answer")
        return reward

    def scored(score: Any) -> Any:
        async def run(opened: Any, ended: Ending) -> Any:
            reward, ended, error = await score(opened, ended)
            return (Reward.of("exact", -1.0, -1.0, 1.0, False) if error else reward), ended, error

        return run

    def plant() -> AbstractContextManager[Any]:
        return both(graded(fails)(), swapped(play, "_score", scored))

    return plant


class both:  # noqa: N801 (reads as a word)
    """Two plants at once."""

    def __init__(self, *planted_faults: AbstractContextManager[Any]) -> None:
        self._plants = planted_faults

    def __enter__(self) -> None:
        for plant in self._plants:
            plant.__enter__()

    def __exit__(self, *error: Any) -> None:
        for plant in reversed(self._plants):
            plant.__exit__(*error)


def unending() -> AbstractContextManager[Any]:
    """Only who says that it is done is paid, and nothing tells the model to say so."""

    def respond(_: Any) -> Any:
        async def run(self: Run, message: Any) -> Any:
            self.said.append(message.content)
            told = self.task.data["then"] if len(self.said) == 1 else "Calculate: 1 + 1 = "
            return None if "done" in message.content else [Message("tool", told)]

        return run

    def score(pay: Any) -> Any:
        async def run(self: Run) -> Reward:
            reward: Reward = await pay(self)
            return reward if "done" in self.said else replace(reward, total=0.0, correct=False)

        return run

    def gold(script: Any) -> Any:
        def run(self: TwoTurns, task: Task) -> Any:
            yield from script(self, task)
            yield Message("assistant", "done")

        return run

    return both(swapped(Run, "respond", respond), swapped(Run, "score", score), swapped(TwoTurns, "gold", gold))


def _by_group(rollouts: list[Any]) -> list[Any]:
    """Answers come from the neighboring group."""
    size = sum(r.group == rollouts[0].group for r in rollouts)
    rewards = [r.reward for r in rollouts]
    shifted = rewards[size:] + rewards[:size]
    return [replace(r, reward=x) for r, x in zip(rollouts, shifted, strict=True)]


def _cut_sign(reward: Reward, said: str, task: Task) -> Reward:
    """Negative gold answers are compared without their sign."""
    return _never(reward, said, task) if task.answer.startswith("-") else reward


IMPOSSIBLE = {"tasks.low": 41, "tasks.high": 99, "tasks.operations": ["*"], "tasks.reward": "exact"}
LONG = {"sampling.max_tokens": 12, "learning.lr": 5e-4, "learning.steps": 60}
FAULTS = (
    Fault("reward.gold-rejected", (known("wrong-slice"), Strength("no minus sign", graded(_cut_sign)))),
    Fault("reward.constant", (Strength("never paid", graded(_never)), Strength("impossible", settings=IMPOSSIBLE)),
          steps=12, also=("reward.gold-rejected", "advantage.dead-groups-low")),
    Fault("reward.misaligned", (known("rewards-shifted"), Strength("by a group", on_gathered(_by_group)))),
    Fault("reward.wrong-length", (known("one-reward-for-all"),)),
    Fault("reward.nondeterministic", (known("noisy-scorer"), Strength("3% flipped", graded(_flipped(0.03))),
                                      Strength("a third flipped", graded(_flipped(0.33))))),
    of_plant("reward.component-dead", graded(_dead_part), steps=30, seeds=2),
    of_plant("reward.component-dominates", graded(_parted("style", lambda said: float(said[:1] == "1"), 0.9, 0.1)),
             {"learning.lr": 4e-4}, steps=40, seeds=2, also=("reward.hackable", "reward.gold-rejected")),
    of_plant("reward.hackable", graded(_paying(lambda said: float(said.startswith("1")))), {"learning.lr": 4e-4},
             steps=40, seeds=2, also=("reward.gold-rejected",)),
    of_plant("reward.length-hacking", graded(_paying(lambda said: min(1.0, len(said) / 10))), LONG,
             steps=50, seeds=2, also=("reward.hackable",)),
    of_plant("reward.scale-moves", lambda: swapped(loop, "gather", _growing), steps=30, seeds=2),
    Fault("reward.error-scored", (Strength("a third of tasks", failing(3)), Strength("a tenth", failing(10))),
          also=("reward.gold-rejected",)),
    of_plant("reward.strict-parser", graded(_strict), {"sampling.max_tokens": 6}, wordy=True),
    of_plant("reward.never-computed", unending, {"sampling.max_turns": 4},
             steps=12, two_turns=True),
)  # fmt: skip
