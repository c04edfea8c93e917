"""Proof of a reward without a model: right answers earn the most, and wrong ones less.

A proof is over (task, text, gold, reward). Answers are scripted: a taskset plays them, or the
reward functions of another library's trainer score them. `uptrend tasks validate`, preflight and a
watched trainer judge what they earned by the rules here; checks of records, which have only what a
policy said, share `Earnings`.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from uptrend.records import Reward, RewardOutOfBounds, Task, TasksetError
from uptrend.tasks import event_loop
from uptrend.tasks.answers import fold, name_class, near_miss, number_of, remedy_of_class, value_of
from uptrend.tasks.taskset import Script, Taskset, known_gold, play_script

# Sums of parts may miss a bound by this much.
TOTAL_TOLERANCE = 1e-9
# A cheater may miss what gold earns by this much.
PAID_TOLERANCE = 1e-6
# Characters of a text that a message quotes.
QUOTED_TEXT = 60
# Quantile of what right answers earn that is taken for an accepted one's: some may be rejected.
ACCEPTED_QUANTILE = 0.9
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


def taskset_for_proof(taskset: Taskset) -> Taskset:
    """Return a taskset under the options that prove its reward: under others, not even gold reaches
    the maximum.
    """
    return taskset.proof() if isinstance(taskset, HasVariants) else taskset


@dataclass(frozen=True)
class ScoredPlay:
    """One play of a task without the model."""

    texts: tuple[tuple[str, ...], ...]
    """Replies of the task to each turn; for a script, its own turns, or the error if it failed at
    once.
    """
    reward: Reward | None
    """None if the task failed."""
    error: Exception | None = None
    second_reward: Reward | None = None
    """Reward of a second play with the same seed; None if there was one play."""

    @property
    def last_text(self) -> str:
        """Last turn of a script; the error if it failed."""
        return self.texts[-1][0] if self.texts else ""

    @property
    def total(self) -> float:
        """Total reward; NaN if it was not scored."""
        return self.reward.total if self.reward else math.nan

    @property
    def is_accepted(self) -> bool:
        """True if it counts as right and earns the maximum."""
        return self.reward is not None and self.reward.correct and self.reward.is_best


async def score_script(taskset: Taskset, task: Task, script: Script) -> ScoredPlay:
    """Play a script; a taskset's own failure is an observation too."""
    try:
        messages, reward = await play_script(taskset, task, script)
    except Exception as error:
        return ScoredPlay(((f"{type(error).__name__}: {error}",),), None, error)
    turns = tuple((message.content,) for message in messages if message.role == "assistant")
    return ScoredPlay(turns, reward)


def play_scripts(taskset: Taskset, task: Task, scripts: Iterable[Script]) -> list[ScoredPlay]:
    """Play scripts one after another; those of a slow taskset side by side."""

    async def play_all() -> list[ScoredPlay]:
        plays = [score_script(taskset, task, script) for script in scripts]
        if hasattr(taskset, "MAX_PROBE_PLAYS"):
            return await event_loop.together(plays)
        return [await play for play in plays]

    return event_loop.run(play_all())


@dataclass(frozen=True)
class ScoredTask:
    """A task with the plays of its gold answer and of wrong ones."""

    task: Task
    golds: Sequence[ScoredPlay]
    """One play; none if no gold answer is known."""
    others: Sequence[ScoredPlay]

    @property
    def earned(self) -> float:
        """Reward of gold; NaN if it was not scored."""
        return next((play.total for play in self.golds if play.reward), math.nan)

    @property
    def rival(self) -> float:
        """Highest reward of a wrong answer."""
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
    """Return True if a gold answer does not earn the most; `top` is what accepted ones earn."""
    gold = next(iter(tried.golds), None)
    if gold is None:
        return False
    if gold.reward is None or math.isnan(gold.reward.high):
        # The maximum is unknown. A gold answer that earns as much as a wrong one is not rejected
        # if both earn the top.
        is_level = tried.earned == tried.rival and tried.earned < top
        return is_level or not tried.earned >= tried.rival
    # A penalty, such as one for length, may keep a right answer from the maximum.
    is_penalized = gold.reward.correct and len(gold.reward.parts) > 1 and gold.total > tried.rival
    return not gold.is_accepted and not is_penalized


def split_golds(tasks: Sequence[ScoredTask]) -> tuple[list[ScoredTask], list[ScoredTask]]:
    """Return the tasks whose gold answer earns the most, or is unknown; and those whose gold answer
    does not.
    """
    lowest = min(_other_totals(tasks), default=-math.inf)
    accepted_totals = [tried.earned for tried in tasks if tried.earned > tried.rival]
    # Where gold never earns more than wrong answers, anything above the lowest reward is the top.
    top = max(accepted_totals, default=lowest + TOTAL_TOLERANCE)
    accepted: list[ScoredTask] = []
    rejected: list[ScoredTask] = []
    for tried in tasks:
        side = rejected if is_rejected(tried, top) else accepted
        side.append(tried)
    return accepted, rejected


def describe_rejections(
    subject: str, accepted: Sequence[ScoredTask], rejected: Sequence[ScoredTask]
) -> str:
    """Return a sentence on the gold answers that a reward rejects: a class of them, or their
    number.
    """
    rejected_golds = [tried.task.answer for tried in rejected]
    accepted_golds = [tried.task.answer for tried in accepted]
    class_name = name_class(rejected_golds, accepted_golds)
    if class_name:
        return f"{subject} rejects gold answers of one kind: {class_name}."
    n_judged = len(accepted) + len(rejected)
    return (
        f"{subject} rejects {len(rejected)} of {n_judged} gold answers: what is right does not earn"
        " the most."
    )


# How a rejected answer is read


@dataclass(frozen=True)
class Spelling:
    """Another way to write an answer; a scorer that accepts it shows how it reads."""

    write: Callable[[Task, str], str]
    remedy: str
    """What to change in the scorer that accepts it, and not the answer itself."""
    words: tuple[str, ...] = ()
    """Words of the line of code that does so, the likeliest first."""


def _behind_prompt(task: Task, answer: str) -> str:
    return "x" * len(task.messages[-1].content) + answer


def _as_float(_: Task, answer: str) -> str:
    return f"{value_of(answer):.1f}" if number_of(answer) else ""


def _first_word(_: Task, answer: str) -> str:
    return (answer.split() or [""])[0]


BEHIND_PROMPT = Spelling(
    _behind_prompt,
    "Score the completion itself, not completion[len(prompt):]: it comes without the prompt.",
    ("[len(", ":len(", "len("),
)
SAME_NUMBER = "Compare numbers as numbers: the same one is written in two ways."
SAME_CASE = "Fold the case of both sides alike, not of one."
# The likeliest mistake first: the first spelling that is accepted explains the rejection.
SPELLINGS = (
    BEHIND_PROMPT,
    Spelling(lambda _, answer: answer.strip(), "Strip spaces from both sides.", ("strip(", "==")),
    Spelling(lambda _, answer: answer.lower(), SAME_CASE, (".lower(", "casefold(", "==")),
    Spelling(lambda _, answer: answer.upper(), SAME_CASE, (".upper(", "==")),
    Spelling(
        lambda _, answer: answer.replace(",", ""),
        "Take thousands separators out of both sides.",
        ("replace(", "float(", "int(", "=="),
    ),
    Spelling(
        lambda _, answer: answer.lstrip("-+"),
        "Read the sign as a part of the number.",
        ("re.", "isdigit", "=="),
    ),
    Spelling(lambda _, answer: number_of(answer), SAME_NUMBER, ("float(", "int(", "==")),
    Spelling(_as_float, SAME_NUMBER, ("float(", "int(", "==")),
    Spelling(
        lambda _, answer: fold(answer),
        "Normalize both sides alike: case, spaces and punctuation.",
        ("strip(", "replace(", "re.", "=="),
    ),
    Spelling(_first_word, "Read the whole answer, not its first word.", ("split(", "[0]")),
    Spelling(
        lambda _, answer: answer[:1],
        "Read the whole answer, not its first character.",
        ("[0]", "[:1]", "re."),
    ),
)


@dataclass(frozen=True)
class Remedy:
    """What to change in a scorer that rejects gold answers, and the input that shows it."""

    sentence: str
    example: str
    """Input that shows it; empty where a class of answers is all that does."""
    words: tuple[str, ...] = ()
    """Words of the line of code to change."""


# Scores texts as answers to a task.
ScoreTexts = Callable[[Task, Sequence[str]], Sequence[ScoredPlay]]


def explain_rejections(
    accepted: Sequence[ScoredTask], rejected: Sequence[ScoredTask], score: ScoreTexts | None = None
) -> Remedy | None:
    """Return what to change where gold answers are rejected: by the exception, by a spelling that
    is accepted, or by the class of answers; None where none of these shows it.
    """
    for tried in rejected:
        play = next(iter(tried.golds), None)
        if play is not None and isinstance(play.error, TasksetError):
            if isinstance(play.error, RewardOutOfBounds):
                continue
            sentence = f"Make it score what it can't read as wrong: {play.error}."
            return Remedy(sentence, f"it fails on the right answer {tried.task.answer!r}")
    shortest = min(rejected, key=lambda tried: len(tried.task.answer), default=None)
    if score is not None and shortest is not None:
        remedy = _try_spellings(shortest, score)
        if remedy is not None:
            return remedy
    rejected_golds = [tried.task.answer for tried in rejected]
    accepted_golds = [tried.task.answer for tried in accepted]
    sentence = remedy_of_class(rejected_golds, accepted_golds)
    return Remedy(sentence, "") if sentence else None


def _try_spellings(rejected: ScoredTask, score: ScoreTexts) -> Remedy | None:
    """Write a rejected answer in other ways, and name the first that earns more, as a wrong answer
    in the same spelling does not.
    """
    task = rejected.task
    gold_play = next(iter(rejected.golds), None)
    is_scored = gold_play is not None and gold_play.reward is not None
    if gold_play is None or not is_scored or len(gold_play.texts) != 1:
        return None
    if task.answer not in gold_play.last_text:
        return None
    gold_text = gold_play.last_text

    def respell(own_task: Task, spelling: Spelling, answer: str) -> str:
        return gold_text.replace(task.answer, spelling.write(own_task, answer))

    # What the scorer accepts for the answer as it is.
    spelling_by_text: dict[str, Spelling] = {}
    for spelling in (*SPELLINGS, *_other_columns(task)):
        text = respell(task, spelling, task.answer)
        if text != gold_text and text.strip():
            spelling_by_text.setdefault(text, spelling)
    texts = list(spelling_by_text)
    for text, play in zip(texts, score(task, texts), strict=True):
        spelling = spelling_by_text[text]
        wrong_text = respell(task, spelling, near_miss(task.answer))
        if _is_paid_for_answer(task, rejected.earned, play, wrong_text, score):
            return _remedy(rejected, spelling, f"{text[-QUOTED_TEXT:]!r} earns {play.total:g}")

    # What it accepts where the right answer is spelled so as well: it changes completions alone.
    for spelling in SPELLINGS:
        answer = spelling.write(task, task.answer)
        if answer in ("", task.answer) or spelling is BEHIND_PROMPT:
            continue
        respelled = replace(task, answer=answer)
        (play,) = score(respelled, [gold_text.replace(task.answer, answer)])
        wrong_text = respell(respelled, spelling, near_miss(answer))
        if _is_paid_for_answer(respelled, rejected.earned, play, wrong_text, score):
            example = f"with {answer!r} as the right answer it earns {play.total:g}"
            return _remedy(rejected, spelling, example)
    return None


def _is_paid_for_answer(
    task: Task, earned: float, play: ScoredPlay, wrong_text: str, score: ScoreTexts
) -> bool:
    """Return True if a spelling earns more than the answer as it is, and a wrong answer in the same
    text and spelling does not.
    """
    if not play.total > earned + PAID_TOLERANCE:
        return False
    if wrong_text == play.last_text:
        return True
    (wrong_play,) = score(task, [wrong_text])
    return wrong_play.total < play.total


def _remedy(rejected: ScoredTask, spelling: Spelling, example: str) -> Remedy:
    gold_play = rejected.golds[0]
    text = f"the right answer {gold_play.last_text!r} earns {gold_play.total:g}; {example}"
    return Remedy(spelling.remedy, text, spelling.words)


def _other_columns(task: Task) -> Iterator[Spelling]:
    """Return the texts in other columns of a task's row: a scorer may compare with one of them."""
    row = task.data.get("row")
    for key, value in row.items() if isinstance(row, Mapping) else ():
        text = str(value)
        if key != "prompt" and text not in ("", task.answer):
            remedy = (
                f"It compares with the column {key!r}: compare with that of the right answer, or"
                f" name {key!r} as the column of answers."
            )
            yield Spelling(lambda _, __, text=text: text, remedy, (key,))  # type: ignore[misc]


def paid_wrong(tasks: Iterable[ScoredTask], *, by_maximum: bool) -> list[tuple[Task, ScoredPlay]]:
    """Return wrong answers that earn the maximum; without `by_maximum`, those that earn as much as
    gold.
    """
    paid = []
    for tried in tasks:
        for play in tried.others:
            if play.reward is None:
                continue
            # Where gold was not scored its NaN is no bar: what earns anything earns as much.
            earns_as_gold = not play.total < tried.earned - TOTAL_TOLERANCE
            if play.reward.is_best if by_maximum else earns_as_gold:
                paid.append((tried.task, play))
    return paid


def pays_cheater(play: ScoredPlay, gold_total: float = math.inf) -> bool:
    """Return True if a reward pays a cheater, whose answer is never right: in full, or as much as
    gold earns.
    """
    reward = play.reward
    if reward is None:
        return False
    return reward.correct or reward.is_best or reward.total >= gold_total - PAID_TOLERANCE


def furthest_outside(errors: Iterable[RewardOutOfBounds]) -> RewardOutOfBounds:
    """Return the error whose reward is the furthest outside its bounds."""
    return max(errors, key=lambda error: max(error.value - error.high, error.low - error.value))


def bounds_that_hold(errors: Iterable[RewardOutOfBounds]) -> dict[str, tuple[float, float]]:
    """Return bounds that hold these rewards, by reward function."""
    bounds: dict[str, tuple[float, float]] = {}
    for error in errors:
        low, high = bounds.get(error.name, (error.low, error.high))
        bounds[error.name] = (min(low, error.value), max(high, error.value))
    return bounds


def judge_form(tasks: Sequence[ScoredTask], sign: int = 1) -> tuple[float, float] | None:
    """Return what right and wrong answers in one form earn on average.

    Returns None if gold does not earn more than wrong answers; with sign -1, if it does not earn
    less.
    """
    n_separated = 0
    for tried in tasks:
        # A reward that gives wrong answers no number separates nothing.
        if math.isfinite(tried.rival) and sign * tried.earned > sign * tried.rival:
            n_separated += 1
    if not tasks or n_separated < MIN_SEPARATED_SHARE * len(tasks):
        return None
    right = np.nanmean([tried.earned for tried in tasks])
    wrong = np.nanmean([play.total for tried in tasks for play in tried.others])
    return float(right), float(wrong)


@dataclass(frozen=True)
class Earnings:
    """Rewards of right and wrong answers, over all tasks."""

    right: NDArray[np.float64]
    wrong: NDArray[np.float64]

    @cached_property
    def top(self) -> float:
        """Reward of an accepted right answer; NaN without any."""
        return float(np.quantile(self.right, ACCEPTED_QUANTILE)) if len(self.right) else math.nan

    @cached_property
    def base(self) -> float:
        """Usual reward of a wrong answer; NaN without any."""
        return float(np.median(self.wrong)) if len(self.wrong) else math.nan

    @property
    def are_separated(self) -> bool:
        """True if accepted right answers earn more than wrong ones usually do."""
        return self.top > self.base

    @property
    def is_inverted(self) -> bool:
        """True if right answers usually earn less than wrong ones; a few wrong ones may be paid."""
        return len(self.right) > 0 and float(np.median(self.right)) < self.base


def earnings_of(tasks: Iterable[ScoredTask]) -> Earnings:
    """Return the rewards of gold and wrong answers of these tasks."""
    tasks = list(tasks)
    right = [play.total for tried in tasks for play in tried.golds if play.reward]
    return Earnings(np.array(right), np.array(_other_totals(tasks)))


def _other_totals(tasks: Iterable[ScoredTask]) -> list[float]:
    return [play.total for tried in tasks for play in tried.others if play.reward]
