"""Proof of a reward without a model: right answers earn the most, and wrong ones less.

A proof is over (task, text, gold, reward). Answers are scripted: a taskset plays them, or the
reward functions of another library's trainer score them. `uptrend tasks validate`, preflight and a
watched trainer judge what they earned by the rules here; checks of records, which have only what a
policy said, share `Earnings`.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from uptrend.records import Reward, RewardOutOfBounds, Task
from uptrend.tasks import event_loop
from uptrend.tasks.answers import name_class
from uptrend.tasks.taskset import Script, Taskset, known_gold, play_script

# Sums of parts may miss a bound by this much.
TOTAL_TOLERANCE = 1e-9
# Share of tasks on which gold must earn more than wrong answers, for a reward to tell them apart in
# some form. A row of a dataset may be odd.
MIN_SEPARATED_SHARE = 0.75
# Share of tasks from which a text without an answer is paid by rule, and not by luck.
MIN_PAID_CHEATERS_SHARE = 0.5
# Share of rejected gold answers from which training must not go on.
CRITICAL_REJECTED_SHARE = 0.05


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


def proving(taskset: Taskset) -> Taskset:
    """Return a taskset under the options that prove its reward: under some, not even gold reaches
    the maximum.
    """
    return taskset.proof() if isinstance(taskset, HasVariants) else taskset


@dataclass(frozen=True)
class ScoredPlay:
    """One play of a task without the model."""

    texts: tuple[tuple[str, ...], ...]
    """Replies of the task to each turn; for a script, its own turns. The error where it failed at
    once.
    """
    reward: Reward | None
    """None where the task failed."""
    error: Exception | None = None
    again: Reward | None = None
    """The reward of a second play with the same seed, where there was one."""

    @property
    def last_text(self) -> str:
        """The last thing that a script said; the error where it failed."""
        return self.texts[-1][0] if self.texts else ""

    @property
    def total(self) -> float:
        """What it earned; NaN where it was not scored."""
        return self.reward.total if self.reward else math.nan

    @property
    def is_accepted(self) -> bool:
        """True where it counts as right and earns the maximum."""
        return self.reward is not None and self.reward.correct and self.reward.is_best


async def score_script(taskset: Taskset, task: Task, script: Script) -> ScoredPlay:
    """Play a script; a taskset's own failure is an observation too."""
    try:
        messages, reward = await play_script(taskset, task, script)
    except Exception as error:
        return ScoredPlay(((f"{type(error).__name__}: {error}",),), None, error)
    return ScoredPlay(tuple((m.content,) for m in messages if m.role == "assistant"), reward)


def play_scripts(taskset: Taskset, task: Task, scripts: Iterable[Script]) -> list[ScoredPlay]:
    """Play scripts one after another; those of a slow taskset side by side."""

    async def play_all() -> list[ScoredPlay]:
        plays = [score_script(taskset, task, script) for script in scripts]
        return (
            await event_loop.together(plays)
            if hasattr(taskset, "FEW_PLAYS")
            else [await play for play in plays]
        )

    return event_loop.run(play_all())


@dataclass(frozen=True)
class ScoredTask:
    """A task with what its gold answer and wrong ones earned."""

    task: Task
    golds: Sequence[ScoredPlay]
    """One; none where no gold answer is known."""
    others: Sequence[ScoredPlay]

    @property
    def earned(self) -> float:
        """What gold earned; NaN where it was not scored."""
        return next((play.total for play in self.golds if play.reward), math.nan)

    @property
    def rival(self) -> float:
        """The most that a wrong answer earned."""
        return max((play.total for play in self.others if play.reward), default=-math.inf)

    @property
    def is_bounded(self) -> bool:
        """True unless the reward of gold has unknown bounds."""
        return not any(play.reward and math.isnan(play.reward.high) for play in self.golds)


def try_task(taskset: Taskset, task: Task) -> ScoredTask:
    """Play a task's gold answer and its corrupted ones."""
    golds = known_gold(taskset, task)
    plays = play_scripts(taskset, task, [*golds, *taskset.corrupted(task)])
    return ScoredTask(task, plays[: len(golds)], plays[len(golds) :])


def is_rejected(tried: ScoredTask, top: float) -> bool:
    """Return True where a gold answer does not earn the most; `top` is what accepted ones earn."""
    gold = next(iter(tried.golds), None)
    if gold is None:
        return False
    if gold.reward is None or math.isnan(gold.reward.high):
        # Nobody said what the maximum is. Earning as much as a wrong answer is no fault of gold
        # where that is the top.
        is_level = tried.earned == tried.rival and tried.earned < top
        return is_level or not tried.earned >= tried.rival
    # A penalty, such as one for length, may keep a right answer from the maximum.
    is_penalized = gold.reward.correct and len(gold.reward.parts) > 1 and gold.total > tried.rival
    return not gold.is_accepted and not is_penalized


def split_golds(tasks: Sequence[ScoredTask]) -> tuple[list[ScoredTask], list[ScoredTask]]:
    """Return the tasks whose gold answer earns the most, or is unknown; and those whose does
    not.
    """
    least = min(
        (play.total for tried in tasks for play in tried.others if play.reward), default=-math.inf
    )
    top = max(
        (tried.earned for tried in tasks if tried.earned > tried.rival),
        default=least + TOTAL_TOLERANCE,
    )
    accepted: list[ScoredTask] = []
    rejected: list[ScoredTask] = []
    for tried in tasks:
        side = rejected if is_rejected(tried, top) else accepted
        side.append(tried)
    return accepted, rejected


def describe_rejections(
    subject: str, accepted: Sequence[ScoredTask], rejected: Sequence[ScoredTask]
) -> str:
    """Say which gold answers a reward rejects: a class of them, or how many."""
    class_name = name_class(
        [each.task.answer for each in rejected], [each.task.answer for each in accepted]
    )
    if class_name:
        return f"{subject} rejects gold answers of one kind: {class_name}."
    judged = len(accepted) + len(rejected)
    return (
        f"{subject} rejects {len(rejected)} of {judged} gold answers: what is right does not earn"
        " the most."
    )


def paid_wrong(tasks: Iterable[ScoredTask], *, by_maximum: bool) -> list[tuple[Task, ScoredPlay]]:
    """Return wrong answers that earn the maximum; else, where it is unknown or out of reach, as
    much as gold.
    """
    paid = []
    for tried in tasks:
        for play in tried.others:
            if play.reward is None:
                continue
            # A gold answer without a reward is no bar: what earns anything then earns as much.
            if (
                play.reward.is_best
                if by_maximum
                else not play.total < tried.earned - TOTAL_TOLERANCE
            ):
                paid.append((tried.task, play))
    return paid


def pays_cheater(play: ScoredPlay, most: float = math.inf) -> bool:
    """Return True where a reward pays a cheater, whose answer is never right: in full, or as much
    as gold earns.
    """
    reward = play.reward
    return reward is not None and (reward.correct or reward.is_best or reward.total >= most - 1e-6)


def furthest_outside(errors: Iterable[RewardOutOfBounds]) -> RewardOutOfBounds:
    """Return the error whose reward is the furthest outside its bounds."""
    return max(errors, key=lambda error: max(error.value - error.high, error.low - error.value))


def bounds_that_hold(errors: Iterable[RewardOutOfBounds]) -> dict[str, tuple[float, float]]:
    """Return the bounds by reward function in which these rewards stay."""
    bounds: dict[str, tuple[float, float]] = {}
    for error in errors:
        low, high = bounds.get(error.name, (error.low, error.high))
        bounds[error.name] = (min(low, error.value), max(high, error.value))
    return bounds


def judge_form(tasks: Sequence[ScoredTask], sign: int = 1) -> tuple[float, float] | None:
    """Return what right and wrong answers in one form earn on average.

    None where gold does not earn more than wrong answers, with sign -1 less.
    """
    # A reward that gives wrong answers no number tells nothing apart.
    told_apart = sum(
        sign * each.earned > sign * each.rival for each in tasks if math.isfinite(each.rival)
    )
    if not tasks or told_apart < MIN_SEPARATED_SHARE * len(tasks):
        return None
    right = np.nanmean([tried.earned for tried in tasks])
    wrong = np.nanmean([play.total for tried in tasks for play in tried.others])
    return float(right), float(wrong)


@dataclass(frozen=True)
class Earnings:
    """What right and wrong answers earn, over all tasks."""

    right: NDArray[np.float64]
    wrong: NDArray[np.float64]

    @cached_property
    def top(self) -> float:
        """What a right answer earns where it is accepted; NaN without any."""
        return float(np.quantile(self.right, 0.9)) if len(self.right) else math.nan

    @cached_property
    def base(self) -> float:
        """What a wrong answer earns as a rule; NaN without any."""
        return float(np.median(self.wrong)) if len(self.wrong) else math.nan

    @property
    def are_separated(self) -> bool:
        """True where accepted right answers earn more than wrong ones as a rule."""
        return self.top > self.base

    @property
    def is_inverted(self) -> bool:
        """True where right answers earn less than wrong ones as a rule; a wrong one may be paid now
        and then.
        """
        return len(self.right) > 0 and float(np.median(self.right)) < self.base


def earnings_of(tasks: Iterable[ScoredTask]) -> Earnings:
    """Return what gold and wrong answers of these tasks earn."""
    tasks = list(tasks)
    right = [play.total for tried in tasks for play in tried.golds if play.reward]
    wrong = [play.total for tried in tasks for play in tried.others if play.reward]
    return Earnings(np.array(right), np.array(wrong))
