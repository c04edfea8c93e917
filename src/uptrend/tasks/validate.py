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
from uptrend.tasks.proof import (
    TOTAL_TOLERANCE,
    HasCheaters,
    HasVariants,
    ScoredPlay,
    ScoredTask,
    paid_wrong,
    pays_cheater,
    proving,
    score_script,
)
from uptrend.tasks.rewards import Undecided
from uptrend.tasks.taskset import LoadedTasks, Script, Taskset, known_gold

# Tasks that are played, where a taskset does not say how many it allows (VALIDATED).
PLAYED_TASKS = 200
# Tasks on which each variant's ceiling is measured, and cheaters play: a semantic retriever takes
# its time.
CEILING_TASKS = 50
# Tasks of a family below which a correlation of difficulty with position is not judged.
MIN_FAMILY = 30
# Standard errors of a rank correlation from which an order is no chance: once in 16,000 times.
MAX_ORDER_ERRORS = 4


@dataclass(frozen=True)
class Requirement:
    """A property that a taskset must have."""

    name: str
    passed: bool
    figure: str  # numbers, and an example where it does not hold


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
        """True where all checks hold."""
        return all(check.passed for check in self.checks)


class PlayProgress(Protocol):
    """Receives how far a validation is."""

    def __call__(self, part: str, done: int, total: int) -> None:
        """Note that so many of a part's answers were played; 0 as it begins."""


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
    """Check a taskset, made twice by `make`, on so many tasks; at most `limit` of them are played.

    Without a limit as many are played as the taskset allows, and all with 0. One that only trains
    need not hold out any: it is then asked for no more held-out tasks than it has.
    """
    taskset = make()
    again = make()
    repeated = [*again.train(train), *(spare := again.heldout(heldout))]
    # Known from the other one, so that this one's notes do not mention a wish that nobody has.
    heldout = len(spare) if only_trains else heldout
    to_train = taskset.train(train)
    held_out = taskset.heldout(heldout)
    tasks = [*to_train, *held_out]
    if limit is None:
        limit = getattr(taskset, "VALIDATED", PLAYED_TASKS)
    chosen = _drawn(tasks, limit or len(tasks))
    enough = bool(to_train or not train) and bool(held_out or not heldout)
    empty = sum(not any(message.content.strip() for message in task.messages) for task in tasks)
    shared = {task.id for task in to_train} & {task.id for task in held_out}
    a = tasks_hash(tasks)
    b = tasks_hash(repeated)
    proven = proving(taskset)
    requirements = (
        Requirement(
            "there are tasks", enough, f"{len(to_train)} to train on, {len(held_out)} held out"
        ),
        Requirement("prompts are not empty", not empty, f"{empty} of {len(tasks)} empty"),
        Requirement("none that is held out is trained on", not shared, f"{len(shared)} in both"),
        Requirement(
            "the same seed gives the same tasks", a == b, a if a == b else f"{a}, then {b}"
        ),
        _duplicates(taskset, to_train, held_out),
        order(to_train),
        *_of_plays(_play(proven, chosen, "gold and corrupted answers", progress, times=2)),
        *_cheated(proven, chosen[:CEILING_TASKS], progress),
        *_ceilings(taskset, chosen[:CEILING_TASKS], progress),
    )
    return ValidationReport(
        taskset.name, requirements, tuple(taskset.notes), len(tasks), len(chosen)
    )


def _drawn(tasks: Sequence[Task], count: int) -> list[Task]:
    """Draw tasks at random, one family after the other, so that a few are of many families."""
    by_family: dict[str, list[Task]] = defaultdict(list)
    for task in random.Random(0).sample(tasks, len(tasks)):
        by_family[task.family].append(task)
    in_turn = chain.from_iterable(zip_longest(*by_family.values()))
    return [task for task in in_turn if task is not None][:count]


# Tasks are unique; a file may repeat as many rows as it allows.
def _duplicates(taskset: Taskset, train: Sequence[Task], heldout: Sequence[Task]) -> Requirement:
    repeated = sum(len(tasks) - len({task.id for task in tasks}) for tasks in (train, heldout))
    figure = f"{repeated} repeated among the tasks"
    passed = not repeated
    loaded = getattr(taskset, "loaded", None)
    if isinstance(loaded, LoadedTasks):
        share = loaded.duplicate_rows / loaded.rows
        figure = (
            f"{loaded.duplicate_rows} of {loaded.rows} rows ({share:.1%}),"
            f" {loaded.duplicates_allowed:.1%} allowed"
        )
        passed = passed and share <= loaded.duplicates_allowed
    return Requirement("duplicates are few", passed, figure)


def order(train: Sequence[Task]) -> Requirement:
    """Check that neither easy tasks nor one family come first; difficulty is compared within a
    family.
    """
    # scipy only where tasks are checked: `tasks list` stays quick
    from uptrend.stats.trend import rank_correlation

    ranks: dict[str, list[float]] = defaultdict(list)
    for task in train:
        ranks[f"difficulty of {task.family}"].append(task.difficulty)
    families = sorted({task.family for task in train})
    if len(families) > 1:
        ranks |= {
            f"being {name}": [float(task.family == name) for task in train] for name in families
        }
    judged = {
        what: rank_correlation(np.arange(float(len(values))), np.array(values))
        for what, values in ranks.items()
        if len(values) >= MIN_FAMILY
    }
    if not judged:
        return Requirement(
            "difficulty is shuffled", True, f"not judged: no family has {MIN_FAMILY} tasks"
        )
    passed = all(
        abs(rank) * (len(ranks[what]) - 1) ** 0.5 <= MAX_ORDER_ERRORS
        for what, rank in judged.items()
    )
    worst = max(judged, key=lambda what: abs(judged[what]))
    figure = f"rank correlation with position {judged[worst]:+.2f} ({worst})"
    return Requirement("difficulty is shuffled", passed, figure)


# Requirements of what scripted answers earn


Plays = Sequence[tuple[Task, ScoredPlay]]


def _of_plays(tasks: Sequence[ScoredTask]) -> Iterator[Requirement]:
    yield from _reliable(tasks)
    yield from _gold_earns_most(tasks)
    yield _within_bounds(tasks)
    yield _repeatable(tasks)


def _plays(tasks: Iterable[ScoredTask]) -> Plays:
    return [(tried.task, play) for tried in tasks for play in (*tried.golds, *tried.others)]


def _rewards(tasks: Iterable[ScoredTask]) -> list[tuple[Task, ScoredPlay, Reward]]:
    return [
        (task, play, reward)
        for task, play in _plays(tasks)
        for reward in (play.reward, play.again)
        if reward
    ]


def _reliable(tasks: Sequence[ScoredTask]) -> Iterator[Requirement]:
    plays = _plays(tasks)
    # Undecided is a reward's own answer, and one that leaves its bounds has a requirement of its
    # own.
    failed = [
        (task, play)
        for task, play in plays
        if play.error is not None and not isinstance(play.error, Undecided | RewardOutOfBounds)
    ]
    yield Requirement(
        "no play fails", not failed, f"{len(failed)} of {len(plays)} failed{_example(failed)}"
    )


def _is_bounded(tasks: Iterable[ScoredTask]) -> bool:
    return not any(math.isnan(reward.low + reward.high) for _, _, reward in _rewards(tasks))


def _gold_earns_most(tasks: Sequence[ScoredTask]) -> Iterator[Requirement]:
    experts = [(tried.task, play) for tried in tasks for play in tried.golds]
    others = [(tried.task, play) for tried in tasks for play in tried.others]
    is_bounded = _is_bounded(tasks)
    paid = paid_wrong(tasks, by_maximum=is_bounded)
    if not is_bounded and experts:
        yield _none_of("no corrupted answer earns as much as gold", paid, others)
        return
    short = [(task, play) for task, play in experts if not play.is_accepted]
    figure = (
        f"{len(experts) - len(short)} of {len(experts)} do{_example(short)}"
        if experts
        else "not judged: none"
    )
    yield Requirement("gold answers reach the maximum", not short, figure)
    if is_bounded and (experts or others):
        yield _none_of("corrupted answers stay below it", paid, others)


def _within_bounds(tasks: Sequence[ScoredTask]) -> Requirement:
    plays = _plays(tasks)
    rewards = _rewards(tasks)
    outside = [(task, play) for task, play, reward in rewards if not _is_within(reward)]
    outside += [(task, play) for task, play in plays if isinstance(play.error, RewardOutOfBounds)]
    highs = {reward.high for _, _, reward in rewards}
    span = "none"
    if rewards:
        span = f"between {min(reward.low for _, _, reward in rewards):g} and {max(highs):g}"
        span += ", the maximum differs between tasks" if len(highs) > 1 else ""
    if not _is_bounded(tasks):
        span = "of unknown bounds: set tasks.bounds"
        outside = []
    figure = f"{len(rewards)} rewards, {span}{_example(outside)}"
    return Requirement(
        "rewards keep their bounds", bool(rewards or not plays) and not outside, figure
    )


def _is_within(reward: Reward) -> bool:
    spans = [
        (reward.low, reward.total, reward.high),
        *((part.low, part.value, part.high) for part in reward.parts),
    ]
    # Bounds may be unknown: NaN, which nothing is below or above.
    return all(
        np.isfinite(value) and not (value < low - TOTAL_TOLERANCE or value > high + TOTAL_TOLERANCE)
        for low, value, high in spans
    )


def _repeatable(tasks: Sequence[ScoredTask]) -> Requirement:
    plays = _plays(tasks)
    differing = [
        (task, play)
        for task, play in plays
        if play.again is not None and repr(play.reward) != repr(play.again)
    ]
    figure = f"{len(differing)} of {len(plays)} differ{_example(differing)}"
    return Requirement("scoring twice gives the same", not differing, figure)


# Going for the reward does not pay, where the taskset has players that try.
def _cheated(
    taskset: Taskset, tasks: Sequence[Task], progress: PlayProgress
) -> Iterator[Requirement]:
    if isinstance(taskset, HasCheaters):
        plays = _plays(_play(taskset, tasks, "cheaters", progress, scripts=taskset.cheaters))
        if plays:
            taken_in = [(task, play) for task, play in plays if pays_cheater(play)]
            yield _none_of("cheaters stay below it", taken_in, plays)


# The expert's reward under each variant, where the maximum may be out of reach; nobody lazy earns
# as much.
def _ceilings(
    taskset: Taskset, tasks: Sequence[Task], progress: PlayProgress
) -> Iterator[Requirement]:
    for variant, make in (taskset.variants() if isinstance(taskset, HasVariants) else {}).items():
        name = f"ceiling of gold under {variant}"
        try:
            played = _play(make(), tasks, name, progress)
        except MissingExtra as missing:  # the proof itself does not need it
            yield Requirement(name, True, f"not measured: {missing}")
            continue
        # nothing to compare with, as in a folder without players
        if not any(tried.golds for tried in played):
            yield Requirement(name, True, "not judged: none")
            continue
        experts = [play.reward for tried in played for play in tried.golds if play.reward]
        others = [play for tried in played for play in tried.others if play.reward]
        paid = paid_wrong(played, by_maximum=False)
        failed = [(task, play) for task, play in _plays(played) if play.error]
        totals = [reward.total / reward.high for reward in experts]
        figure = (
            f"{np.mean(totals):.3f} of the maximum on average, least {min(totals):.3f}"
            if totals
            else "none"
        )
        values: dict[str, list[float]] = defaultdict(list)
        for part in (part for reward in experts for part in reward.parts if part.weight):
            values[part.name].append(part.value)
        means = {part: float(np.mean(each)) for part, each in values.items()}
        figure += "".join(
            f"; {part} {mean:.2f}" for part, mean in means.items() if mean < 1 - TOTAL_TOLERANCE
        )
        figure += f"; {len(paid)} of {len(others)} corrupted earn as much{_example(paid or failed)}"
        yield Requirement(name, bool(experts) and not paid and not failed, figure)


def _none_of(name: str, wrong: Plays, plays: Plays) -> Requirement:
    return Requirement(
        name, bool(plays) and not wrong, f"{len(wrong)} of {len(plays)} do{_example(wrong)}"
    )


def _example(plays: Plays) -> str:
    if not plays:
        return ""
    task, play = plays[0]
    prompt = next((message.content for message in task.messages if message.role != "system"), "")
    if isinstance(play.error, RewardOutOfBounds):
        return f": {prompt!r} answered '' failed with {play.error.sentence}; set tasks.bounds"
    if play.reward is None:
        problem = "" if isinstance(play.error, Undecided) else play.last_text
        return f": {prompt!r} answered '' failed with {problem}"
    return f": {prompt!r} answered {play.last_text!r} got {play.reward.total:g}"


# Playing


def _play(
    taskset: Taskset,
    tasks: Sequence[Task],
    part: str,
    progress: PlayProgress,
    times: int = 1,
    scripts: Callable[[Task], Iterable[Script]] | None = None,
) -> list[ScoredTask]:
    """Play every script of every task (gold and corrupted ones, or those given); tasks go on side
    by side.
    """
    planned: list[tuple[Task, list[Sequence[Script]], list[Sequence[Script]]]] = []
    for task in tasks:
        golds = zip(
            *([] if scripts else known_gold(taskset, task) for _ in range(times)), strict=True
        )
        others = zip(*((scripts or taskset.corrupted)(task) for _ in range(times)), strict=False)
        planned.append((task, list(golds), list(others)))
    total = sum(len(golds) + len(others) for _, golds, others in planned)
    done = 0
    progress(part, done, total)

    async def play_task(
        task: Task, golds: list[Sequence[Script]], others: list[Sequence[Script]]
    ) -> ScoredTask:
        nonlocal done
        plays = []
        for repeated in (*golds, *others):
            plays.append(await _play_repeats(taskset, task, repeated))
            done += 1
            progress(part, done, total)
        return ScoredTask(task, plays[: len(golds)], plays[len(golds) :])

    return event_loop.run(event_loop.together([play_task(*each) for each in planned]))


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
    return first if len(plays) == 1 else replace(first, again=plays[1].reward)
