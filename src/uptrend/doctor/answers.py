"""Answers of recorded rollouts, with what they earned: read by `tasks/answers.py`, not by the
taskset's own parser.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from uptrend.doctor.case import Case
from uptrend.doctor.groups import RolloutSubset
from uptrend.records import Ending
from uptrend.records.table import Flags, Floats, Ints, RolloutTable
from uptrend.tasks.answers import is_surely_wrong, says, says_somehow
from uptrend.tasks.proof import Earnings

# Rollouts below which their endings are chance, and rollouts that must show a wrong score.
MIN_ROLLOUTS = 32
MIN_WRONG_SCORES = 3
# Right, and wrong, answers below which their medians are chance.
MIN_ANSWERS = 6
# Rollouts that ended so had more to say: their last words are no answer yet.
UNFINISHED_ENDINGS = (Ending.TURN_LIMIT.value, Ending.TIME_LIMIT.value, Ending.CONTEXT_FULL.value)
CUT_ENDINGS = (*UNFINISHED_ENDINGS, Ending.LENGTH.value)
# Characters before and after an answer that make its form.
FORM_CHARACTERS = 40


@dataclass(frozen=True)
class Answers(RolloutSubset):
    """The scored rollouts of one step that said something to a task with a gold answer."""

    response_n: list[str]
    gold_n: list[str]
    task_n: Ints
    right_n: Flags
    """True where the strict reader finds the gold answer."""
    rewarded_n: Flags
    """True where the run counted it as right."""
    low_n: Flags
    """True where it earned the least that there is."""
    reward_n: Floats
    wrong_n: Flags
    """True where it is wrong for certain: it gives another answer, and the gold one nowhere."""

    @cached_property
    def finished_n(self) -> Flags:
        """True where the last words are an answer: a rollout that was cut off may have had more to
        say.
        """
        return ~np.isin(self.table.ended_n[self.index_n], UNFINISHED_ENDINGS)

    def accepted(self, golds: Sequence[str], among_n: Flags) -> Flags:
        """Flag those of some rollouts that the lenient reader takes for these gold answers."""
        trios = zip(among_n, self.response_n, golds, strict=True)
        return np.array(
            [bool(is_among) and says_somehow(said, gold) for is_among, said, gold in trios],
            np.bool_,
        )

    def golds_of_other_tasks(self) -> list[str]:
        """Return for each rollout the gold answer of the next task of its step; its own where there
        is no other.
        """
        gold_of = dict(zip(self.task_n.tolist(), self.gold_n, strict=True))
        tasks = sorted(gold_of)
        following = dict(zip(tasks, tasks[1:] + tasks[:1], strict=True))
        return [gold_of[following[task]] for task in self.task_n.tolist()]


def read_answers(case: Case) -> list[Answers]:
    """Return the answers of each step that has texts, gold answers, tasks and rewards."""
    steps = [_read_step(rows) for rows in case.tables_with("messages", "answer", "reward")]
    return [step for step in steps if step is not None]


def _read_step(rows: RolloutTable) -> Answers | None:
    response_n = rows.response_n
    gold_n = rows.texts("answer")
    has_failed_n = np.array([error is not None for error in rows.texts("error")], np.bool_)
    scored = np.flatnonzero(np.isfinite(rows.reward_n) & ~has_failed_n)
    place = np.array([n for n in scored if response_n[n] is not None and gold_n[n]], np.int64)
    if rows.task_n is None or not len(place):
        return None
    texts = [response_n[n] or "" for n in place]
    golds = [gold_n[n] or "" for n in place]
    reward, low, high, correct = (
        rows.by_rollout(key)[place] for key in ("reward", "reward_low", "reward_high", "correct")
    )
    # Where nobody said what the bounds are, they are what was earned.
    low = np.where(np.isfinite(low), low, np.nanmin(reward))
    high = np.where(np.isfinite(high), high, np.nanmax(reward))
    right = np.array(list(map(says, texts, golds)), np.bool_)
    return Answers(
        rows,
        place,
        texts,
        golds,
        rows.task_n[place],
        right_n=right,
        rewarded_n=np.where(np.isfinite(correct), correct != 0, reward >= high - 1e-6).astype(
            np.bool_
        ),
        low_n=(reward <= low + 1e-6) & (high > low),
        reward_n=reward,
        wrong_n=np.array(list(map(is_surely_wrong, texts, golds)), np.bool_) & ~right,
    )


@dataclass(frozen=True)
class AnswerRewards:
    """What right and wrong answers earn, over all steps that are read; arrays are by answer."""

    steps: list[Answers]
    right_n: Flags
    wrong_n: Flags
    reward_n: Floats
    task_n: NDArray[np.str_]
    gold_n: list[str]
    form_n: NDArray[np.str_]
    """The words around the gold answer, without their numbers."""

    def split_by_step(self, flags: Flags) -> list[Flags]:
        """Return flags of all answers by step."""
        return np.split(flags, np.cumsum([len(step.index_n) for step in self.steps])[:-1])

    @cached_property
    def earnings(self) -> Earnings:
        """What surely right and surely wrong answers earn."""
        return Earnings(self.reward_n[self.right_n], self.reward_n[self.wrong_n])

    @cached_property
    def paid_wrong_n(self) -> Flags:
        """True for surely wrong answers that earn as much as right ones, where these earn more than
        the least.
        """
        top = self.earnings.top
        is_paid = top > np.min(self.reward_n)
        return self.wrong_n & (self.reward_n >= top - 1e-6) & is_paid

    @property
    def paid_wrong_share(self) -> float:
        """Share of surely wrong answers that earn as much as right ones."""
        return float(self.paid_wrong_n.sum()) / max(1, int(self.wrong_n.sum()))

    @property
    def is_inverted(self) -> bool:
        """True where right answers earn less than wrong ones as a rule."""
        return (
            min(self.right_n.sum(), self.wrong_n.sum()) >= MIN_ANSWERS and self.earnings.is_inverted
        )


def read_answer_rewards(case: Case) -> AnswerRewards | None:
    """Read what right and wrong answers earn; None without answers."""
    steps = case.cached(read_answers)
    if not steps:
        return None
    return AnswerRewards(
        steps,
        np.concatenate([step.right_n & step.finished_n for step in steps]),
        np.concatenate([step.wrong_n & step.finished_n for step in steps]),
        np.concatenate([step.reward_n for step in steps]),
        np.concatenate(
            [np.array(step.table.texts("task"), np.str_)[step.index_n] for step in steps]
        ),
        [gold for step in steps for gold in step.gold_n],
        np.concatenate([list(map(_form, step.response_n, step.gold_n)) for step in steps]),
    )


def _form(text: str, gold: str) -> str:
    before, _, after = text.rpartition(gold)
    return re.sub(r"\d+", "0", f"{before[-FORM_CHARACTERS:]}{{}}{after[:FORM_CHARACTERS]}")


def why_no_scores(case: Case) -> str:
    """Return why there are no scores to judge; empty where there are."""
    # Our own rollouts always have a place for a score.
    return case.why_no_rollouts(() if case.view.trainer == "uptrend" else ("reward",))


def why_no_answers(case: Case) -> str:
    """Return why there are no answers to judge; empty where there are."""
    lacking = case.why_no_rollouts(["reward", "task", "answer", "messages"])
    return lacking or (
        "" if case.cached(read_answers) else "no scored rollout has a gold answer and a text"
    )
