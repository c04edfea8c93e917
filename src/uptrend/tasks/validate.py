"""Proof of a taskset without a model: gold answers reach the maximum; corrupted ones and cheaters do not."""

import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Protocol, runtime_checkable

import numpy as np

from uptrend.records import MissingExtra, Reward, RewardOutOfBounds, Task, tasks_hash
from uptrend.tasks import event_loop
from uptrend.tasks.rewards import Undecided
from uptrend.tasks.taskset import GivenTasks, Script, Taskset, known_gold, play_script

# Sums of parts may miss a bound by this much.
NEAR = 1e-9
# Tasks that are played, where a taskset does not say how many it allows (VALIDATED).
PLAYED = 200
# Tasks on which each variant's ceiling is measured, and cheaters play: a semantic retriever takes its time.
CEILING = 50


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


@runtime_checkable
class HasVariants(Protocol):
    """A taskset whose expert reaches the maximum only under some of its options."""

    def proof(self) -> Taskset:
        """Return the same tasks under the options that prove the reward."""

    def variants(self) -> Mapping[str, Callable[[], Taskset]]:
        """Return makers of the same tasks under every option that bounds the reward, by name."""


@runtime_checkable
class HasCheaters(Protocol):
    """A taskset with scripted players that go for the reward and not for the answer."""

    def cheaters(self, task: Task) -> Iterable[Script]:
        """Return their scripts; none may earn the maximum."""


@dataclass(frozen=True)
class Played:
    """One script, played once or more with the same seed."""

    prompt: str
    said: str
    is_gold: bool
    rewards: tuple[Reward, ...]  # reward of each play; empty where one failed
    error: str = ""
    leaves_bounds: bool = False  # it failed because of that

    @property
    def is_best(self) -> bool:
        """True where it earned the maximum."""
        return bool(self.rewards) and self.rewards[0].is_best

    def __str__(self) -> str:
        got = f"got {self.rewards[0].total:g}" if self.rewards else f"failed with {self.error}"
        return f"{self.prompt!r} answered {self.said!r} {got}"


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

    Without a limit as many are played as the taskset allows, and all with 0. One that only trains need not hold out
    any: it is then asked for no more held-out tasks than it has.
    """
    taskset, again = make(), make()
    repeated = [*again.train(train), *(spare := again.heldout(heldout))]
    # Known from the other one, so that this one's notes do not mention a wish that nobody has.
    heldout = len(spare) if only_trains else heldout
    to_train, held_out = taskset.train(train), taskset.heldout(heldout)
    tasks = [*to_train, *held_out]
    if limit is None:
        limit = getattr(taskset, "VALIDATED", PLAYED)
    chosen = _drawn(tasks, limit or len(tasks))
    proving = taskset.proof() if isinstance(taskset, HasVariants) else taskset
    enough = bool(to_train or not train) and bool(held_out or not heldout)
    empty = sum(not any(message.content.strip() for message in task.messages) for task in tasks)
    shared = {task.id for task in to_train} & {task.id for task in held_out}
    a, b = tasks_hash(tasks), tasks_hash(repeated)
    found = (
        Requirement("there are tasks", enough, f"{len(to_train)} to train on, {len(held_out)} held out"),
        Requirement("prompts are not empty", not empty, f"{empty} of {len(tasks)} empty"),
        Requirement("none that is held out is trained on", not shared, f"{len(shared)} in both"),
        Requirement("the same seed gives the same tasks", a == b, a if a == b else f"{a}, then {b}"),
        _duplicates(taskset, to_train, held_out),
        order(to_train),
        *_of_plays(event_loop.run(_play(proving, chosen, "gold and corrupted answers", progress))),
        *_cheated(proving, chosen[:CEILING], progress),
        *_ceilings(taskset, chosen[:CEILING], progress),
    )
    return ValidationReport(taskset.name, found, tuple(taskset.notes), len(tasks), len(chosen))


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
    figure, passed = f"{repeated} repeated among the tasks", not repeated
    given = getattr(taskset, "given", None)
    if isinstance(given, GivenTasks):
        share = given.duplicate_rows / given.rows
        figure = f"{given.duplicate_rows} of {given.rows} rows ({share:.1%}), {given.duplicates_allowed:.1%} allowed"
        passed = passed and share <= given.duplicates_allowed
    return Requirement("duplicates are few", passed, figure)


def order(train: Sequence[Task]) -> Requirement:
    """Check that neither easy tasks nor one family come first; difficulty is compared within a family."""
    from uptrend.stats.trend import rank_correlation  # scipy only where tasks are checked: `tasks list` stays quick

    ranks: dict[str, list[float]] = defaultdict(list)
    for task in train:
        ranks[f"difficulty of {task.family}"].append(task.difficulty)
    families = sorted({task.family for task in train})
    if len(families) > 1:
        ranks |= {f"being {name}": [float(task.family == name) for task in train] for name in families}
    judged = {
        what: rank_correlation(np.arange(float(len(values))), np.array(values))
        for what, values in ranks.items()
        if len(values) >= 30
    }
    if not judged:
        return Requirement("difficulty is shuffled", True, "not judged: no family has 30 tasks")
    # Four standard errors: by chance once in 16,000 times.
    passed = all(abs(rank) * (len(ranks[what]) - 1) ** 0.5 <= 4 for what, rank in judged.items())
    worst = max(judged, key=lambda what: abs(judged[what]))
    figure = f"rank correlation with position {judged[worst]:+.2f} ({worst})"
    return Requirement("difficulty is shuffled", passed, figure)


def _none_of(name: str, wrong: Sequence[Played], plays: Sequence[Played]) -> Requirement:
    return Requirement(name, bool(plays) and not wrong, f"{len(wrong)} of {len(plays)} do{_example(wrong)}")


def _of_plays(played: Sequence[Played]) -> Iterator[Requirement]:
    failed = [play for play in played if play.error and not play.leaves_bounds]
    yield Requirement("no play fails", not failed, f"{len(failed)} of {len(played)} failed{_example(failed)}")
    experts, others = ([play for play in played if play.is_gold is gold] for gold in (True, False))
    rewards = [(play, reward) for play in played for reward in play.rewards]
    is_bounded = not any(math.isnan(reward.low + reward.high) for _, reward in rewards)
    if is_bounded or not experts:
        short = [play for play in experts if not play.is_best or not play.rewards[0].correct]
        figure = f"{len(experts) - len(short)} of {len(experts)} do{_example(short)}" if experts else "not judged: none"
        yield Requirement("gold answers reach the maximum", not short, figure)
        if (experts or others) and is_bounded:
            yield _none_of("corrupted answers stay below it", [play for play in others if play.is_best], others)
    else:
        gold = {play.prompt: play.rewards[0].total for play in experts if play.rewards}
        as_good = [p for p in others if p.rewards and p.rewards[0].total >= gold.get(p.prompt, -math.inf)]
        yield _none_of("no corrupted answer earns as much as gold", as_good, others)
    outside = [play for play, reward in rewards if not _is_within(reward)]
    outside += [play for play in played if play.leaves_bounds]
    lows, highs = {reward.low for _, reward in rewards}, {reward.high for _, reward in rewards}
    span = f"between {min(lows):g} and {max(highs):g}" if rewards else "none"
    if not is_bounded:
        span, highs, outside = "of unknown bounds: set tasks.bounds", set(), []
    varying = ", the maximum differs between tasks" if len(highs) > 1 else ""
    figure = f"{len(rewards)} rewards, {span}{varying}{_example(outside)}"
    yield Requirement("rewards keep their bounds", bool(rewards or not played) and not outside, figure)
    differing = [play for play in played if play.rewards and repr(play.rewards[0]) != repr(play.rewards[1])]
    figure = f"{len(differing)} of {len(played)} differ{_example(differing)}"
    yield Requirement("scoring twice gives the same", not differing, figure)


# Going for the reward does not pay, where the taskset has players that try.
def _cheated(taskset: Taskset, tasks: Sequence[Task], progress: PlayProgress) -> Iterator[Requirement]:
    if isinstance(taskset, HasCheaters):
        plays = _play(taskset, tasks, "cheaters", progress, times=1, scripts=taskset.cheaters)
        played = event_loop.run(plays)
        # A cheater's answer is never the right one, so that a scorer which calls it correct was taken in.
        through = [play for play in played if play.is_best or (play.rewards and play.rewards[0].correct)]
        if played:
            yield _none_of("cheaters stay below it", through, played)


# The expert's reward under each variant, where the maximum may be out of reach; nobody lazy earns as much.
def _ceilings(taskset: Taskset, tasks: Sequence[Task], progress: PlayProgress) -> Iterator[Requirement]:
    for variant, make in (taskset.variants() if isinstance(taskset, HasVariants) else {}).items():
        name = f"ceiling of gold under {variant}"
        try:
            played = event_loop.run(_play(make(), tasks, name, progress, times=1))
        except MissingExtra as missing:  # the proof itself does not need it
            yield Requirement(name, True, f"not measured: {missing}")
            continue
        if not any(play.is_gold for play in played):  # nothing to compare with, as in a folder without players
            yield Requirement(name, True, "not judged: none")
            continue
        experts = [play for play in played if play.is_gold and play.rewards]
        gold_by_task = {play.prompt: play.rewards[0].total for play in experts}
        others = [play for play in played if not play.is_gold and play.rewards]
        as_good = [play for play in others if play.rewards[0].total >= gold_by_task.get(play.prompt, -np.inf) - NEAR]
        failed = [play for play in played if play.error]
        totals = [play.rewards[0].total / play.rewards[0].high for play in experts]
        figure = f"{np.mean(totals):.3f} of the maximum on average, least {min(totals):.3f}" if totals else "none"
        values: dict[str, list[float]] = defaultdict(list)
        for part in (part for play in experts for part in play.rewards[0].parts if part.weight):
            values[part.name].append(part.value)
        means = {part: float(np.mean(each)) for part, each in values.items()}
        figure += "".join(f"; {part} {mean:.2f}" for part, mean in means.items() if mean < 1 - NEAR)
        figure += f"; {len(as_good)} of {len(others)} corrupted earn as much{_example(as_good or failed)}"
        yield Requirement(name, bool(experts) and not as_good and not failed, figure)


def _is_within(reward: Reward) -> bool:
    spans = [(reward.low, reward.total, reward.high), *((part.low, part.value, part.high) for part in reward.parts)]
    # Bounds may be unknown: NaN, which nothing is below or above.
    return all(np.isfinite(value) and not (value < low - NEAR or value > high + NEAR) for low, value, high in spans)


def _example(plays: Sequence[Played]) -> str:
    return f": {plays[0]}" if plays else ""


async def _play(
    taskset: Taskset,
    tasks: Sequence[Task],
    part: str,
    progress: PlayProgress,
    times: int = 2,
    scripts: Callable[[Task], Iterable[Script]] | None = None,
) -> list[Played]:
    """Play every script of every task (gold and corrupted ones, or those given); tasks go on side by side."""
    plays: list[tuple[Task, list[tuple[Sequence[Script], bool]]]] = []
    for task in tasks:
        experts = zip(*([] if scripts else known_gold(taskset, task) for _ in range(times)), strict=True)
        others = zip(*((scripts or taskset.corrupted)(task) for _ in range(times)), strict=False)
        to_play: list[tuple[Sequence[Script], bool]] = [(repeated, True) for repeated in experts]
        to_play += [(repeated, False) for repeated in others]
        plays.append((task, to_play))
    total = sum(len(to_play) for _, to_play in plays)
    done = 0
    progress(part, done, total)

    async def play_task(task: Task, to_play: list[tuple[Sequence[Script], bool]]) -> list[Played]:
        nonlocal done
        played = []
        for repeated, is_gold in to_play:
            played.append(await _play_repeats(taskset, task, repeated, is_gold))
            done += 1
            progress(part, done, total)
        return played

    works = [play_task(task, to_play) for task, to_play in plays]
    return [play for played in await event_loop.together(works) for play in played]


async def _play_repeats(taskset: Taskset, task: Task, scripts: Sequence[Script], is_gold: bool) -> Played:
    prompt = next((m.content for m in task.messages if m.role != "system"), "")
    played = []
    try:
        for script in scripts:
            played.append(await play_script(taskset, task, script))
    except MissingExtra:  # nothing is wrong with the taskset
        raise
    except Undecided:  # its own answer
        return Played(prompt, "", is_gold, ())
    except RewardOutOfBounds as error:
        return Played(prompt, "", is_gold, (), f"{error.sentence}; set tasks.bounds", leaves_bounds=True)
    except Exception as error:  # a taskset's own bug is what we are here to report
        return Played(prompt, "", is_gold, (), f"{type(error).__name__}: {error}")
    said = [message.content for message in played[-1][0] if message.role == "assistant"]
    return Played(prompt, said[-1] if said else "", is_gold, tuple(reward for _, reward in played))
