"""Rewards that are wrong, and rewards that pay for something else."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.faults.fault import (
    Alter,
    Fault,
    PlayWrapper,
    Strength,
    gathered,
    of_parts,
    plays,
    tasksets,
    together,
    wrapped,
)
from benchmarks.faults.two_turns import Run, TwoTurns
from examples.autopsies.cut import Cut

from uptrend.records import Message, Part, Reward, Rollout, Task
from uptrend.tasks.taskset import Script

Change = Callable[[Reward, str, Task], Reward]
NOTHING = Reward.of("exact", -1.0, -1.0, 1.0, False)
"""The least that an answer can earn."""


class Regraded(PlayWrapper):
    """Play whose reward is changed, given what was said last and the task."""

    def __init__(self, play: Any, task: Task, change: Change) -> None:
        super().__init__(play, task)
        self._change, self._said = change, ""

    async def respond(self, message: Message) -> Sequence[Message] | None:
        """Keep what was said."""
        self._said = message.content
        return await super().respond(message)

    async def score(self) -> Reward:
        """Change what it earns."""
        return self._change(await super().score(), self._said, self.task)


def graded(change: Change) -> Alter:
    """Change what every answer earns, in training and in evaluation alike."""
    return plays(lambda play, task: Regraded(play, task, change))


def _paying(extra: Callable[[str], float], weight: float = 0.9) -> Change:
    """Pay wrong answers up to 0.9 for something else; right ones keep the most that there is."""

    def change(reward: Reward, said: str, _: Task) -> Reward:
        value = 1.0 if reward.correct else max(-1.0, -1.0 + (1.0 + weight) * extra(said))
        return Reward.of("score", value, -1.0, 1.0, reward.correct)

    return change


def _ruled_by_style(reward: Reward, said: str, _: Task) -> Reward:
    """Let another part outweigh the answer's nine times."""
    style = 1.0 if reward.correct else float(said[:1] == "1")
    parts = (Part("answer", reward.total, -1.0, 1.0, 0.1), Part("style", style, 0.0, 1.0, 0.9))
    return Reward(0.1 * reward.total + 0.9 * style, -0.1, 1.0, reward.correct, parts)


def _dead_part(reward: Reward, _: str, __: Task) -> Reward:
    """Add a part that nothing earns."""
    parts = (Part("answer", reward.total, -1.0, 1.0), Part("proof", 0.0, 0.0, 1.0, 0.0))
    return replace(reward, parts=parts)


def _jittered(reward: Reward, _: str, __: Task) -> Reward:
    return replace(reward, total=reward.total + random.choice((-0.1, 0.0, 0.1)))


def _flipped(share: float) -> Change:
    def change(reward: Reward, _: str, __: Task) -> Reward:
        if random.random() >= share:
            return reward
        return Reward.of("exact", -reward.total, -1.0, 1.0, not reward.correct)

    return change


def _never(_: Reward, __: str, ___: Task) -> Reward:
    return NOTHING


def _strict(reward: Reward, said: str, task: Task) -> Reward:
    """Take an answer only where nothing at all follows it."""
    return reward if said == task.answer else NOTHING


def _cut_sign(reward: Reward, _: str, task: Task) -> Reward:
    """Compare negative gold answers without their sign."""
    return NOTHING if task.answer.startswith("-") else reward


def _rewarded(rollouts: list[Rollout], rewards: Sequence[Reward | None]) -> list[Rollout]:
    return [replace(r, reward=reward) for r, reward in zip(rollouts, rewards, strict=True)]


def _shifted(rollouts: list[Rollout], by: int = -1) -> list[Rollout]:
    rewards = [r.reward for r in rollouts]
    return _rewarded(rollouts, rewards[by:] + rewards[:by])


def _by_group(rollouts: list[Rollout]) -> list[Rollout]:
    """Take rewards from the neighboring group."""
    return _shifted(rollouts, sum(r.group == rollouts[0].group for r in rollouts))


def _one_for_all(rollouts: list[Rollout]) -> list[Rollout]:
    return _rewarded(rollouts, [rollouts[0].reward] * len(rollouts))


def _growing(gather: Any) -> Any:
    """Let the most that can be earned grow with the step, from the fifth on."""

    def run(player: Any, pool: Any, cursor: Any, step: int, config: Any) -> Any:
        found, by = gather(player, pool, cursor, step, config), 1 + max(0, step - 4) / 10
        rewards = [r.reward and replace(r.reward, total=by * r.reward.total, low=by * r.reward.low,
                                        high=by * r.reward.high) for r in found.rollouts]  # fmt: skip
        return replace(found, rollouts=_rewarded(found.rollouts, rewards))

    return run


def failing(every: int) -> Alter:
    """Let the scorer fail on some tasks, and make a number of the failure."""

    def fail(reward: Reward, _: str, task: Task) -> Reward:
        if task.difficulty % every == 1:
            raise ValueError("could not read the answer")
        return reward

    def scored(rollouts: list[Rollout]) -> list[Rollout]:
        return _rewarded(rollouts, [NOTHING if r.error else r.reward for r in rollouts])

    return together(graded(fail), gathered(scored))


class UnendingRun(Run):
    """Rollout that is paid only if it says that it is done, which nothing tells the model to
    say.
    """

    async def respond(self, message: Message) -> Sequence[Message] | None:
        """Ask on until it says so."""
        self.said.append(message.content)
        told = self.task.data["then"] if len(self.said) == 1 else "Calculate: 1 + 1 = "
        return None if "done" in message.content else [Message("tool", told)]

    async def score(self) -> Reward:
        """Pay who is done."""
        reward = await super().score()
        return reward if "done" in self.said else replace(reward, total=0.0, correct=False)


class UnendingTurns(TwoTurns):
    """Two-turn tasks that wait for a word."""

    def open(self, task: Task, seed: int) -> UnendingRun:  # noqa: ARG002 (nothing is random)
        """Begin a rollout."""
        return UnendingRun(task)

    def gold(self, task: Task) -> Script:
        """Answer both, and say the word."""
        yield from super().gold(task)
        yield Message("assistant", "done")


def _of_class(cls: Any) -> Alter:
    return tasksets(lambda taskset: cls(taskset.options, taskset.seed))  # type: ignore[attr-defined]


IMPOSSIBLE = {"tasks.low": 41, "tasks.high": 99, "tasks.operations": ["*"], "tasks.reward": "exact"}
LONG = {"sampling.max_tokens": 12, "learning.lr": 5e-4, "learning.steps": 60}
FAULTS = (
    Fault("reward.gold-rejected", (Strength("wrong-slice", _of_class(Cut), probe="gold"),
                                   Strength("no minus sign", graded(_cut_sign)))),
    Fault("reward.constant", (Strength("never paid", graded(_never)), Strength("impossible", settings=IMPOSSIBLE)),
          steps=12, also=("reward.gold-rejected", "advantage.dead-groups-low")),
    Fault("reward.misaligned", (Strength("rewards-shifted", gathered(_shifted), probe="rescoring"),
                                Strength("by a group", gathered(_by_group)))),
    Fault("reward.wrong-length", (Strength("one-reward-for-all", gathered(_one_for_all), probe="rescoring"),)),
    Fault("reward.nondeterministic", (Strength("noisy-scorer", graded(_jittered), probe="rescoring"),
                                      Strength("3% flipped", graded(_flipped(0.03))),
                                      Strength("a third flipped", graded(_flipped(0.33))))),
    of_parts("reward.component-dead", graded(_dead_part), steps=30, seeds=2),
    of_parts("reward.component-dominates", graded(_ruled_by_style), {"learning.lr": 4e-4}, steps=40, seeds=2,
             also=("reward.hackable", "reward.gold-rejected")),
    of_parts("reward.hackable", graded(_paying(lambda said: float(said.startswith("1")))), {"learning.lr": 4e-4},
             steps=40, seeds=2, also=("reward.gold-rejected",)),
    of_parts("reward.length-hacking", graded(_paying(lambda said: min(1.0, len(said) / 10))), LONG,
             steps=50, seeds=2, also=("reward.hackable",)),
    of_parts("reward.scale-moves", wrapped(gather=_growing), steps=30, seeds=2),
    Fault("reward.error-scored", (Strength("a third of tasks", failing(3)), Strength("a tenth", failing(10))),
          also=("reward.gold-rejected",)),
    of_parts("reward.strict-parser", graded(_strict), {"sampling.max_tokens": 6}, wordy=True),
    of_parts("reward.never-computed", _of_class(UnendingTurns), {"sampling.max_turns": 4}, steps=12, two_turns=True),
)  # fmt: skip
