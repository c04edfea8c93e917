"""What must hold of a taskset: each check looks at tasks or at plays and gives its figures."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from uptrend.records import Reward, Task, tasks_hash
from uptrend.tasks.taskset import Script, Taskset

NEAR = 1e-9
"""Sums of parts may miss a bound by this much."""


@dataclass(frozen=True)
class Check:
    """One thing that must hold."""

    name: str
    """What must hold."""
    passed: bool
    """Whether it does."""
    figure: str
    """The numbers, and an example where it does not."""


@runtime_checkable
class ReadsRows(Protocol):
    """A taskset that reads rows, some of which may repeat others."""

    rows: int
    """How many were read; 0 where these tasks were not read but made."""
    duplicate_rows: int
    """How many repeat an earlier one."""
    duplicates_allowed: float
    """The share that may."""


@runtime_checkable
class HasVariants(Protocol):
    """A taskset whose expert reaches the maximum only under some of its options."""

    def proof(self) -> Taskset:
        """The same tasks under the options that prove the reward."""

    def variants(self) -> Mapping[str, Callable[[], Taskset]]:
        """What makes the same tasks under every option that bounds what can be earned, by name."""


@runtime_checkable
class HasCheaters(Protocol):
    """A taskset with scripted players that go for the reward and not for the answer."""

    def cheaters(self, task: Task) -> Iterable[Script]:
        """What they say; none may earn the maximum."""


@dataclass(frozen=True)
class Played:
    """One script, played twice with the same seed."""

    prompt: str
    """The first of the task's messages."""
    said: str
    """The last thing that the script said."""
    is_gold: bool
    """Whether this is the expert."""
    rewards: tuple[Reward, ...]
    """What each of the two plays earned; none where one failed."""
    error: str = ""
    """What failed."""

    @property
    def is_best(self) -> bool:
        """Whether it earned the most that can be earned."""
        return bool(self.rewards) and self.rewards[0].total >= self.rewards[0].high - NEAR

    @property
    def is_taken_in(self) -> bool:
        """Whether the scorer took it for the answer, which a cheater's is not."""
        return self.is_best or (bool(self.rewards) and self.rewards[0].correct)

    def __str__(self) -> str:
        got = f"got {self.rewards[0].total:g}" if self.rewards else f"failed with {self.error}"
        return f"{self.prompt!r} answered {self.said!r} {got}"


def has_tasks(train: Sequence[Task], heldout: Sequence[Task], asked: tuple[int, int]) -> Check:
    """Something to train on and something to evaluate on, as far as that was asked for."""
    enough = bool(train or not asked[0]) and bool(heldout or not asked[1])
    return Check("there are tasks", enough, f"{len(train)} to train on, {len(heldout)} held out")


def prompts(tasks: Sequence[Task]) -> Check:
    """Every task says something."""
    empty = sum(not any(message.content.strip() for message in task.messages) for task in tasks)
    return Check("prompts are not empty", not empty, f"{empty} of {len(tasks)} empty")


def disjoint(train: Sequence[Task], heldout: Sequence[Task]) -> Check:
    """Training and evaluation share no question."""
    shared = {task.id for task in train} & {task.id for task in heldout}
    return Check("none that is held out is trained on", not shared, f"{len(shared)} in both")


def duplicates(taskset: Taskset, train: Sequence[Task], heldout: Sequence[Task]) -> Check:
    """Tasks are unique; a file may repeat as many rows as it allows."""
    repeated = sum(len(tasks) - len({task.id for task in tasks}) for tasks in (train, heldout))
    figure, passed = f"{repeated} repeated among the tasks", not repeated
    if isinstance(taskset, ReadsRows) and taskset.rows:
        share, allowed = taskset.duplicate_rows / taskset.rows, taskset.duplicates_allowed
        figure = f"{taskset.duplicate_rows} of {taskset.rows} rows ({share:.1%}), {allowed:.1%} allowed"
        passed = passed and share <= allowed
    return Check("duplicates are few", passed, figure)


def same_tasks(first: Sequence[Task], second: Sequence[Task]) -> Check:
    """A run can be repeated."""
    a, b = tasks_hash(first), tasks_hash(second)
    return Check("the same seed gives the same tasks", a == b, a if a == b else f"{a}, then {b}")


def order(train: Sequence[Task]) -> Check:
    """Check that neither easy tasks nor one family come first; difficulty is compared within a family."""
    from uptrend.stats.trend import rank_correlation  # scipy only where tasks are checked: `tasks list` stays quick

    ranks = {f"difficulty of {name}": values for name, values in _difficulties(train).items()}
    ranks |= {f"being {name}": values for name, values in _memberships(train).items()}
    judged = {
        what: rank_correlation(np.arange(float(len(values))), np.array(values))
        for what, values in ranks.items()
        if len(values) >= 30
    }
    if not judged:
        return Check("difficulty is shuffled", True, "not judged: no family has 30 tasks")
    # Four standard errors: by chance once in 16,000 times.
    passed = all(abs(rank) * (len(ranks[what]) - 1) ** 0.5 <= 4 for what, rank in judged.items())
    worst = max(judged, key=lambda what: abs(judged[what]))
    return Check("difficulty is shuffled", passed, f"rank correlation with position {judged[worst]:+.2f} ({worst})")


def _difficulties(train: Sequence[Task]) -> dict[str, list[float]]:
    families: dict[str, list[float]] = defaultdict(list)
    for task in train:
        families[task.family].append(task.difficulty)
    return families


def _memberships(train: Sequence[Task]) -> dict[str, list[float]]:
    """For each of several families, whether each task belongs to it."""
    names = sorted({task.family for task in train})
    return {name: [float(task.family == name) for task in train] for name in names} if len(names) > 1 else {}


def failures(played: Sequence[Played]) -> Check:
    """Plays do not raise."""
    failed = [play for play in played if play.error]
    return Check("no play fails", not failed, f"{len(failed)} of {len(played)} failed{_example(failed)}")


def gold(played: Sequence[Played]) -> Check:
    """The expert earns the most and counts as correct."""
    experts = [play for play in played if play.is_gold]
    short = [play for play in experts if not play.is_best or not play.rewards[0].correct]
    figure = f"{len(experts) - len(short)} of {len(experts)} do{_example(short)}"
    return Check("gold answers reach the maximum", bool(experts) and not short, figure)


def corrupted(played: Sequence[Played]) -> Check:
    """Nothing else does."""
    others = [play for play in played if not play.is_gold]
    best = [play for play in others if play.is_best]
    figure = f"{len(best)} of {len(others)} do{_example(best)}"
    return Check("corrupted answers stay below it", bool(others) and not best, figure)


def cheaters(played: Sequence[Played]) -> Check:
    """Nor does who goes for the reward."""
    through = [play for play in played if play.is_taken_in]
    figure = f"{len(through)} of {len(played)} do{_example(through)}"
    return Check("cheaters stay below it", bool(played) and not through, figure)


def ceiling(name: str, played: Sequence[Played]) -> Check:
    """What the expert earns where the maximum may be out of reach, and that nobody lazy earns as much."""
    experts = [play for play in played if play.is_gold and play.rewards]
    gold_by_task = {play.prompt: play.rewards[0].total for play in experts}
    others = [play for play in played if not play.is_gold and play.rewards]
    as_good = [play for play in others if play.rewards[0].total >= gold_by_task.get(play.prompt, -np.inf) - NEAR]
    failed = [play for play in played if play.error]
    totals = np.array([play.rewards[0].total / play.rewards[0].high for play in experts])
    parts = _mean_parts(experts)
    figure = f"{totals.mean():.3f} of the maximum on average, least {totals.min():.3f}" if len(totals) else "none"
    figure += "".join(f"; {part} {value:.2f}" for part, value in parts.items() if value < 1 - NEAR)
    figure += f"; {len(as_good)} of {len(others)} corrupted earn as much{_example(as_good or failed)}"
    return Check(f"ceiling of gold under {name}", bool(experts) and not as_good and not failed, figure)


def bounds(played: Sequence[Played]) -> Check:
    """Rewards and their parts stay within what they say of themselves."""
    rewards = [(play, reward) for play in played for reward in play.rewards]
    outside = [play for play, reward in rewards if not _is_within(reward)]
    lows, highs = {reward.low for _, reward in rewards}, {reward.high for _, reward in rewards}
    span = f"between {min(lows):g} and {max(highs):g}" if rewards else "none"
    varying = ", the maximum differs between tasks" if len(highs) > 1 else ""
    figure = f"{len(rewards)} rewards, {span}{varying}{_example(outside)}"
    return Check("rewards keep their bounds", bool(rewards) and not outside, figure)


def deterministic(played: Sequence[Played]) -> Check:
    """The same play earns the same, whoever scores it."""
    differing = [play for play in played if play.rewards and play.rewards[0] != play.rewards[1]]
    figure = f"{len(differing)} of {len(played)} differ{_example(differing)}"
    return Check("scoring twice gives the same", not differing, figure)


def _mean_parts(plays: Sequence[Played]) -> dict[str, float]:
    """The mean of each part that counts."""
    names = [part.name for part in plays[0].rewards[0].parts if part.weight] if plays else []
    by_name = [{part.name: part.value for part in play.rewards[0].parts} for play in plays]
    return {name: float(np.mean([parts[name] for parts in by_name])) for name in names}


def _is_within(reward: Reward) -> bool:
    spans = [
        (reward.low, reward.total, reward.high),
        *((part.low, part.value, part.high) for part in reward.parts),
    ]
    return all(low - NEAR <= value <= high + NEAR for low, value, high in spans)


def _example(plays: Sequence[Played]) -> str:
    return f": {plays[0]}" if plays else ""
