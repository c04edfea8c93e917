"""Proof of a taskset without a model: gold answers reach the maximum; corrupted ones and cheaters
do not.
"""

import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from typing import Protocol

import numpy as np

from uptrend.records import MissingExtra, Reward, RewardOutOfBounds, Task, tasks_hash
from uptrend.tasks import event_loop
from uptrend.tasks.functions import without_remote
from uptrend.tasks.proof import (
    TOTAL_TOLERANCE,
    HasCheaters,
    HasVariants,
    ScoredPlay,
    ScoredTask,
    explain_rejections,
    paid_wrong,
    pays_cheater,
    play_scripts,
    score_script,
    split_golds,
    taskset_for_proof,
)
from uptrend.tasks.rewards import Undecided
from uptrend.tasks.taskset import LoadedTasks, Script, Taskset, known_gold, say

# Tasks that are played, unless a taskset sets a number of its own (MAX_VALIDATED_TASKS).
PLAYED_TASKS = 200
# Tasks on which each variant's ceiling is measured, and cheaters play: a semantic retriever takes
# its time.
CEILING_TASKS = 50
# Tasks of a family below which a correlation of difficulty with position is not judged.
MIN_FAMILY = 30
# Standard errors of a rank correlation above which an order is not chance, which exceeds them once
# in 16,000 times.
MAX_ORDER_ERRORS = 4


@dataclass(frozen=True)
class Requirement:
    """A property that a taskset must have."""

    name: str
    passed: bool
    figure: str  # numbers, and an example that breaks it


@dataclass(frozen=True)
class ValidationReport:
    """Result of a validation."""

    taskset: str
    checks: tuple[Requirement, ...]
    notes: tuple[str, ...]  # notes of the taskset itself
    tasks: int  # tasks that were made
    played: int  # tasks of them that scripts played

    @property
    def passed(self) -> bool:
        """True if all checks hold."""
        return all(check.passed for check in self.checks)


class PlayProgress(Protocol):
    """Receives the progress of a validation."""

    def __call__(self, part: str, done: int, total: int) -> None:
        """Report that `done` of a part's answers were played; 0 as it begins."""


def _silent(part: str, done: int, total: int) -> None:
    pass


def validate(
    make: Callable[[], Taskset],
    train: int = 500,
    heldout: int = 200,
    limit: int | None = None,
    *,
    only_trains: bool = False,
    progress: PlayProgress = _silent,
) -> ValidationReport:
    """Check a taskset, made twice by `make`, on `train` tasks to train on and `heldout` held-out
    ones.

    Scripts play at most `limit` of these tasks: by default as many as the taskset allows, and all
    of them if it is 0. A taskset that only trains may have fewer held-out tasks, or none.
    """
    taskset = make()
    # A second taskset has to give the same tasks. It is asked first: if fewer held-out tasks will
    # do, the first one, whose notes are reported, is asked for no more than there are, and adds no
    # note on a lack of them.
    second = make()
    second_train = second.train(train)
    second_heldout = second.heldout(heldout)
    if only_trains:
        heldout = len(second_heldout)
    train_tasks = taskset.train(train)
    heldout_tasks = taskset.heldout(heldout)
    tasks = [*train_tasks, *heldout_tasks]

    # Requirements of the tasks themselves.
    has_enough = bool(train_tasks or not train) and bool(heldout_tasks or not heldout)
    counts = f"{len(train_tasks)} to train on, {len(heldout_tasks)} held out"
    n_empty = sum(not any(message.content.strip() for message in task.messages) for task in tasks)
    shared = {task.id for task in train_tasks} & {task.id for task in heldout_tasks}
    requirements = [
        Requirement("there are tasks", has_enough, counts),
        Requirement("prompts are not empty", not n_empty, f"{n_empty} of {len(tasks)} empty"),
        Requirement("none that is held out is trained on", not shared, f"{len(shared)} in both"),
        _same_hash(tasks_hash(tasks), tasks_hash([*second_train, *second_heldout])),
        _duplicates(taskset, train_tasks, heldout_tasks),
        judge_order(train_tasks),
    ]

    # Requirements of what scripted answers earn.
    if limit is None:
        limit = getattr(taskset, "MAX_VALIDATED_TASKS", PLAYED_TASKS)
    played = _draw_by_family(tasks, limit or len(tasks))
    proof_taskset = taskset_for_proof(taskset)
    with without_remote():
        scored = _play(proof_taskset, played, "gold and corrupted answers", progress, times=2)
        requirements += _judge_plays(proof_taskset, scored)
        requirements += _judge_cheaters(proof_taskset, played[:CEILING_TASKS], progress)
        requirements += _ceilings(taskset, played[:CEILING_TASKS], progress)
    return ValidationReport(
        taskset.name, tuple(requirements), tuple(taskset.notes), len(tasks), len(played)
    )


def _draw_by_family(tasks: Sequence[Task], count: int) -> list[Task]:
    """Draw tasks at random from all families in turn, so that even a few are of many families."""
    by_family: dict[str, list[Task]] = defaultdict(list)
    for task in random.Random(0).sample(tasks, len(tasks)):
        by_family[task.family].append(task)
    in_turn = chain.from_iterable(zip_longest(*by_family.values()))
    return [task for task in in_turn if task is not None][:count]


def _same_hash(first: str, second: str) -> Requirement:
    figure = first if first == second else f"{first}, then {second}"
    return Requirement("the same seed gives the same tasks", first == second, figure)


def _duplicates(taskset: Taskset, train: Sequence[Task], heldout: Sequence[Task]) -> Requirement:
    """Require tasks that are unique, and a file with no more repeated rows than it allows."""
    n_repeated = 0
    for tasks in (train, heldout):
        n_repeated += len(tasks) - len({task.id for task in tasks})
    figure = f"{n_repeated} repeated among the tasks"
    passed = not n_repeated
    loaded = getattr(taskset, "loaded", None)
    if isinstance(loaded, LoadedTasks):
        share = loaded.duplicate_rows / loaded.rows
        figure = (
            f"{loaded.duplicate_rows} of {loaded.rows} rows ({share:.1%}),"
            f" {loaded.duplicates_allowed:.1%} allowed"
        )
        passed = passed and share <= loaded.duplicates_allowed
    return Requirement("duplicates are few", passed, figure)


def judge_order(train: Sequence[Task]) -> Requirement:
    """Require that tasks come shuffled: neither easy ones nor one family first. Difficulty is
    compared within a family.
    """
    # scipy only when tasks are checked: `tasks list` stays quick
    from uptrend.stats.trend import rank_correlation

    # What may go with a task's position: its difficulty within a family, and its family.
    series: dict[str, list[float]] = defaultdict(list)
    for task in train:
        series[f"difficulty of {task.family}"].append(task.difficulty)
    families = sorted({task.family for task in train})
    if len(families) > 1:
        for family in families:
            series[f"being {family}"] = [float(task.family == family) for task in train]

    passed = True
    correlations: dict[str, float] = {}
    for name, values in series.items():
        if len(values) < MIN_FAMILY:
            continue
        positions = np.arange(float(len(values)))
        correlations[name] = rank_correlation(positions, np.array(values))
        # Standard error of a rank correlation of independent values: 1/sqrt(n - 1).
        errors = abs(correlations[name]) * (len(values) - 1) ** 0.5
        passed = passed and errors <= MAX_ORDER_ERRORS
    if not correlations:
        return Requirement(
            "difficulty is shuffled", True, f"not judged: no family has {MIN_FAMILY} tasks"
        )
    worst = max(correlations, key=lambda name: abs(correlations[name]))
    figure = f"rank correlation with position {correlations[worst]:+.2f} ({worst})"
    return Requirement("difficulty is shuffled", passed, figure)


# Requirements of what scripted answers earn


Plays = Sequence[tuple[Task, ScoredPlay]]


def _judge_plays(taskset: Taskset, tasks: Sequence[ScoredTask]) -> Iterator[Requirement]:
    yield _reliable(tasks)
    yield from _gold_earns_most(taskset, tasks)
    yield _within_bounds(tasks)
    yield _repeatable(tasks)


def _gold_plays(tasks: Iterable[ScoredTask]) -> Plays:
    return [(tried.task, play) for tried in tasks for play in tried.golds]


def _other_plays(tasks: Iterable[ScoredTask]) -> Plays:
    return [(tried.task, play) for tried in tasks for play in tried.others]


def _all_plays(tasks: Iterable[ScoredTask]) -> Plays:
    return [(tried.task, play) for tried in tasks for play in (*tried.golds, *tried.others)]


def _all_rewards(tasks: Iterable[ScoredTask]) -> list[tuple[Task, ScoredPlay, Reward]]:
    """Return the rewards of first and second plays."""
    rewards = []
    for task, play in _all_plays(tasks):
        for reward in (play.reward, play.second_reward):
            if reward:
                rewards.append((task, play, reward))
    return rewards


def _reliable(tasks: Sequence[ScoredTask]) -> Requirement:
    plays = _all_plays(tasks)
    failed = []
    for task, play in plays:
        # Undecided is a reward's own answer, and rewards out of bounds have a requirement of their
        # own.
        is_own_verdict = isinstance(play.error, Undecided | RewardOutOfBounds)
        if play.error is not None and not is_own_verdict:
            failed.append((task, play))
    figure = f"{len(failed)} of {len(plays)} failed{_example(failed)}"
    return Requirement("no play fails", not failed, figure)


def _is_bounded(tasks: Iterable[ScoredTask]) -> bool:
    return not any(math.isnan(reward.low + reward.high) for _, _, reward in _all_rewards(tasks))


def _gold_earns_most(taskset: Taskset, tasks: Sequence[ScoredTask]) -> Iterator[Requirement]:
    golds = _gold_plays(tasks)
    others = _other_plays(tasks)
    # Where the maximum is unknown, corrupted answers are compared with gold instead.
    is_bounded = _is_bounded(tasks)
    paid_others = paid_wrong(tasks, by_maximum=is_bounded)
    if not is_bounded and golds:
        yield _none_of("no corrupted answer earns as much as gold", paid_others, others)
        return

    rejected = [(task, play) for task, play in golds if not play.is_accepted]
    figure = "not judged: none"
    if golds:
        figure = f"{len(golds) - len(rejected)} of {len(golds)} do{_example(rejected)}"
        figure += _remedy(taskset, tasks) if rejected else ""
    yield Requirement("gold answers reach the maximum", not rejected, figure)
    if is_bounded and (golds or others):
        yield _none_of("corrupted answers stay below it", paid_others, others)


def _remedy(taskset: Taskset, tasks: Sequence[ScoredTask]) -> str:
    """Return what to change in the reward that rejects gold answers, where it shows."""

    def score(task: Task, texts: Sequence[str]) -> Sequence[ScoredPlay]:
        return play_scripts(taskset, task, map(say, texts))

    remedy = explain_rejections(*split_golds(tasks), score)
    return "" if remedy is None else f". {remedy.sentence}"


def _within_bounds(tasks: Sequence[ScoredTask]) -> Requirement:
    plays = _all_plays(tasks)
    rewards = _all_rewards(tasks)
    outside = [(task, play) for task, play, reward in rewards if not _is_within(reward)]
    outside += [(task, play) for task, play in plays if isinstance(play.error, RewardOutOfBounds)]
    span = "none"
    if rewards:
        lowest = min(reward.low for _, _, reward in rewards)
        highs = {reward.high for _, _, reward in rewards}
        span = f"between {lowest:g} and {max(highs):g}"
        if len(highs) > 1:
            span += ", the maximum differs between tasks"
    if not _is_bounded(tasks):
        span = "of unknown bounds: set tasks.bounds"
        outside = []
    figure = f"{len(rewards)} rewards, {span}{_example(outside)}"
    has_rewards = bool(rewards) or not plays
    return Requirement("rewards keep their bounds", has_rewards and not outside, figure)


def _is_within(reward: Reward) -> bool:
    spans = [(reward.low, reward.total, reward.high)]
    spans += [(part.low, part.value, part.high) for part in reward.parts]
    for low, value, high in spans:
        # Bounds may be unknown: NaN, which nothing is below or above.
        is_outside = value < low - TOTAL_TOLERANCE or value > high + TOTAL_TOLERANCE
        if is_outside or not np.isfinite(value):
            return False
    return True


def _repeatable(tasks: Sequence[ScoredTask]) -> Requirement:
    plays = _all_plays(tasks)
    differing = []
    for task, play in plays:
        # By their text, in which NaN equals NaN.
        if play.second_reward is not None and repr(play.reward) != repr(play.second_reward):
            differing.append((task, play))
    figure = f"{len(differing)} of {len(plays)} differ{_example(differing)}"
    return Requirement("scoring twice gives the same", not differing, figure)


def _judge_cheaters(
    taskset: Taskset, tasks: Sequence[Task], progress: PlayProgress
) -> Iterator[Requirement]:
    """Require that cheaters do not earn the maximum, if the taskset has any."""
    if not isinstance(taskset, HasCheaters):
        return
    plays = _all_plays(_play(taskset, tasks, "cheaters", progress, scripts=taskset.cheaters))
    if plays:
        paid = [(task, play) for task, play in plays if pays_cheater(play)]
        yield _none_of("cheaters stay below it", paid, plays)


def _ceilings(
    taskset: Taskset, tasks: Sequence[Task], progress: PlayProgress
) -> Iterator[Requirement]:
    """Measure gold's reward under each variant, where the maximum may be out of reach, and require
    that no corrupted answer earns as much.
    """
    variants = taskset.variants() if isinstance(taskset, HasVariants) else {}
    for variant, make in variants.items():
        name = f"ceiling of gold under {variant}"
        try:
            played = _play(make(), tasks, name, progress)
        except MissingExtra as missing:  # the proof itself does not need it
            yield Requirement(name, True, f"not measured: {missing}")
            continue
        # Nothing to compare with, as in a folder without players.
        if not any(tried.golds for tried in played):
            yield Requirement(name, True, "not judged: none")
            continue
        golds = [play.reward for _, play in _gold_plays(played) if play.reward]
        others = [play for _, play in _other_plays(played) if play.reward]
        paid = paid_wrong(played, by_maximum=False)
        failed = [(task, play) for task, play in _all_plays(played) if play.error]
        figure = (
            f"{_describe_ceiling(golds)}; {len(paid)} of {len(others)} corrupted earn as"
            f" much{_example(paid or failed)}"
        )
        yield Requirement(name, bool(golds) and not paid and not failed, figure)


def _describe_ceiling(rewards: Sequence[Reward]) -> str:
    """Return the mean and the least of gold's rewards, and the means of parts that are not full."""
    if not rewards:
        return "none"
    totals = [reward.total / reward.high for reward in rewards]
    text = f"{np.mean(totals):.3f} of the maximum on average, least {min(totals):.3f}"
    values_by_part: dict[str, list[float]] = defaultdict(list)
    for reward in rewards:
        for part in reward.parts:
            if part.weight:
                values_by_part[part.name].append(part.value)
    for name, values in values_by_part.items():
        mean = float(np.mean(values))
        if mean < 1 - TOTAL_TOLERANCE:
            text += f"; {name} {mean:.2f}"
    return text


def _none_of(name: str, wrong: Plays, plays: Plays) -> Requirement:
    figure = f"{len(wrong)} of {len(plays)} do{_example(wrong)}"
    return Requirement(name, bool(plays) and not wrong, figure)


def _example(plays: Plays) -> str:
    if not plays:
        return ""
    task, play = plays[0]
    prompt = next((message.content for message in task.messages if message.role != "system"), "")
    if isinstance(play.error, RewardOutOfBounds):
        return f": {prompt!r} failed with {play.error.sentence}; set tasks.bounds"
    if isinstance(play.error, Undecided):
        return f": the reward can't tell for {prompt!r}"
    if play.reward is None:
        return (
            f": {prompt!r} failed with {play.last_text}"  # the error: a failed play has no answer
        )
    return f": {prompt!r} answered {play.last_text!r} got {play.reward.total:g}"


# Playing


@dataclass(frozen=True)
class _PlannedTask:
    """A task with the scripts to play on it; each answer has one script per play."""

    task: Task
    golds: Sequence[Sequence[Script]]
    others: Sequence[Sequence[Script]]


def _play(
    taskset: Taskset,
    tasks: Sequence[Task],
    part: str,
    progress: PlayProgress,
    times: int = 1,
    scripts: Callable[[Task], Iterable[Script]] | None = None,
) -> list[ScoredTask]:
    """Play every script of every task, each `times` times; tasks are played side by side.

    By default scripts are the gold and the corrupted answers.
    """
    planned = []
    for task in tasks:
        golds: list[list[Script]] = []
        others: list[list[Script]] = []
        for _ in range(times):
            # A script is used up by a play: the next one needs another.
            golds.append([] if scripts else known_gold(taskset, task))
            others.append(list((scripts or taskset.corrupted)(task)))
        # By answer, with one script per play. A taskset may draw another number of corrupted
        # answers each time: those that all plays have are played.
        scripts_by_gold = list(zip(*golds, strict=True))
        scripts_by_other = list(zip(*others, strict=False))
        planned.append(_PlannedTask(task, scripts_by_gold, scripts_by_other))
    total = sum(len(plan.golds) + len(plan.others) for plan in planned)
    done = 0
    progress(part, done, total)

    async def play_task(plan: _PlannedTask) -> ScoredTask:
        nonlocal done
        plays = []
        for repeats in (*plan.golds, *plan.others):
            plays.append(await _play_repeats(taskset, plan.task, repeats))
            done += 1
            progress(part, done, total)
        n_golds = len(plan.golds)
        return ScoredTask(plan.task, plays[:n_golds], plays[n_golds:])

    return event_loop.run(event_loop.together([play_task(plan) for plan in planned]))


async def _play_repeats(taskset: Taskset, task: Task, scripts: Sequence[Script]) -> ScoredPlay:
    plays: list[ScoredPlay] = []
    for script in scripts:
        play = await score_script(taskset, task, script)
        if isinstance(play.error, MissingExtra):  # nothing is wrong with the taskset
            raise play.error
        if play.reward is None:
            return play
        plays.append(play)
    first = plays[0]
    return first if len(plays) == 1 else replace(first, second_reward=plays[1].reward)
