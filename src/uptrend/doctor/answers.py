"""Answers of recorded rollouts and their rewards, read by `tasks/answers.py` instead of the
taskset's own parser: a check that used that parser would repeat its mistakes.

Suffix: n = rollout.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from uptrend.doctor.case import Case
from uptrend.doctor.groups import RolloutSubset
from uptrend.records import Ending, Fix
from uptrend.records.table import Flags, Floats, Ints, RolloutTable
from uptrend.tasks.answers import is_surely_wrong, says, says_leniently
from uptrend.tasks.proof import Earnings, Remedy

# Rollouts below which their endings are chance, and rollouts that must show a wrong score.
MIN_ROLLOUTS = 32
MIN_WRONG_SCORES = 3
# Right answers, and wrong ones, below which their median reward is chance.
MIN_ANSWERS = 6
# A rollout that ended by one of these had more to say: its last words are not its answer.
UNFINISHED_ENDINGS = (Ending.TURN_LIMIT.value, Ending.TIME_LIMIT.value, Ending.CONTEXT_FULL.value)
LIMIT_ENDINGS = (*UNFINISHED_ENDINGS, Ending.LENGTH.value)
# Characters before and after an answer that make its form.
FORM_CHARACTERS = 40
# Rewards that differ by less are the same up to rounding.
REWARD_TOLERANCE = 1e-6


@dataclass(frozen=True)
class Answers(RolloutSubset):
    """Scored rollouts of one step that answered a task with a gold answer."""

    response_n: list[str]
    gold_n: list[str]
    task_n: Ints
    right_n: Flags
    """True if the strict reader finds the gold answer."""
    rewarded_n: Flags
    """True if the run counted it as right."""
    low_n: Flags
    """True if it earned the lowest possible reward."""
    reward_n: Floats
    wrong_n: Flags
    """True if it is certainly wrong: it gives another answer, and the gold one nowhere."""

    @cached_property
    def finished_n(self) -> Flags:
        """True if the last message is an answer: a rollout that was cut off may have had more to
        say.
        """
        return ~np.isin(self.table.ended_n[self.index_n], UNFINISHED_ENDINGS)

    def accepted(self, golds: Sequence[str], among_n: Flags) -> Flags:
        """Flag those of some rollouts in which the lenient reader finds these gold answers."""
        accepted_n = np.zeros(len(self.response_n), np.bool_)
        for n in np.flatnonzero(among_n).tolist():
            accepted_n[n] = says_leniently(self.response_n[n], golds[n])
        return accepted_n

    def golds_of_other_tasks(self) -> list[str]:
        """Return the gold answer of the step's next task for each rollout; its own if there is only
        one task.
        """
        gold_by_task = dict(zip(self.task_n.tolist(), self.gold_n, strict=True))
        tasks = sorted(gold_by_task)
        next_task = dict(zip(tasks, tasks[1:] + tasks[:1], strict=True))
        return [gold_by_task[next_task[task]] for task in self.task_n.tolist()]


def read_answers(case: Case) -> list[Answers]:
    """Return the answers of each step that has texts, gold answers, tasks and rewards."""
    tables = case.tables_with("messages", "answer", "reward")
    steps = [_read_step(table) for table in tables]
    return [step for step in steps if step is not None]


def _read_step(table: RolloutTable) -> Answers | None:
    if table.task_n is None:
        return None

    gold_of_rollout = table.texts("answer")
    error_of_rollout = table.texts("error")
    indices: list[int] = []
    responses: list[str] = []
    golds: list[str] = []
    for n in np.flatnonzero(np.isfinite(table.reward_n)).tolist():
        response = table.response_n[n]
        gold = gold_of_rollout[n]
        if error_of_rollout[n] is None and response is not None and gold:
            indices.append(n)
            responses.append(response)
            golds.append(gold)
    if not indices:
        return None

    index_n = np.array(indices, np.int64)
    reward_n = table.reward_n[index_n]
    # Where a run does not record the bounds, they are the step's own lowest and highest reward.
    lowest_n = table.numbers("reward_low")[index_n]
    lowest_n = np.where(np.isfinite(lowest_n), lowest_n, np.nanmin(reward_n))
    highest_n = table.numbers("reward_high")[index_n]
    highest_n = np.where(np.isfinite(highest_n), highest_n, np.nanmax(reward_n))
    is_lowest_n = (reward_n <= lowest_n + REWARD_TOLERANCE) & (highest_n > lowest_n)
    is_highest_n = reward_n >= highest_n - REWARD_TOLERANCE
    correct_n = table.numbers("correct")[index_n]
    rewarded_n = np.where(np.isfinite(correct_n), correct_n != 0, is_highest_n).astype(np.bool_)

    right_n = np.array(list(map(says, responses, golds)), np.bool_)
    surely_wrong_n = np.array(list(map(is_surely_wrong, responses, golds)), np.bool_)
    return Answers(
        table,
        index_n,
        responses,
        golds,
        table.task_n[index_n],
        right_n=right_n,
        rewarded_n=rewarded_n,
        low_n=is_lowest_n,
        reward_n=reward_n,
        wrong_n=surely_wrong_n & ~right_n,
    )


@dataclass(frozen=True)
class AnswerRewards:
    """Rewards of right and wrong answers, over all steps that are read."""

    steps: list[Answers]
    right_n: Flags
    wrong_n: Flags
    reward_n: Floats
    task_n: NDArray[np.str_]
    gold_n: list[str]
    form_n: NDArray[np.str_]
    """Words around the gold answer, with every number in them as 0."""

    def split_by_step(self, flags: Flags) -> list[Flags]:
        """Return flags of all answers as one array per step."""
        ends = np.cumsum([len(step.index_n) for step in self.steps])
        return np.split(flags, ends[:-1])

    @cached_property
    def earnings(self) -> Earnings:
        """Rewards of surely right and of surely wrong answers."""
        return Earnings(self.reward_n[self.right_n], self.reward_n[self.wrong_n])

    @cached_property
    def paid_wrong_n(self) -> Flags:
        """True for surely wrong answers that earn as much as right ones; none if right ones earn
        no more than the lowest reward.
        """
        top = self.earnings.top
        is_paid = top > np.min(self.reward_n)
        return self.wrong_n & (self.reward_n >= top - REWARD_TOLERANCE) & is_paid

    @property
    def paid_wrong_share(self) -> float:
        """Share of surely wrong answers that earn as much as right ones."""
        return float(self.paid_wrong_n.sum()) / max(1, int(self.wrong_n.sum()))

    @property
    def is_inverted(self) -> bool:
        """True if right answers usually earn less than wrong ones."""
        n_fewer = min(self.right_n.sum(), self.wrong_n.sum())
        return n_fewer >= MIN_ANSWERS and self.earnings.is_inverted


def read_answer_rewards(case: Case) -> AnswerRewards | None:
    """Return the rewards of right and wrong answers; None without answers."""
    steps = case.cached(read_answers)
    if not steps:
        return None
    tasks: list[str | None] = []
    golds: list[str] = []
    forms: list[str] = []
    for step in steps:
        task_of_rollout = step.table.texts("task")
        tasks += [task_of_rollout[n] for n in step.index_n]
        golds += step.gold_n
        forms += map(_form, step.response_n, step.gold_n)
    return AnswerRewards(
        steps,
        right_n=np.concatenate([step.right_n & step.finished_n for step in steps]),
        wrong_n=np.concatenate([step.wrong_n & step.finished_n for step in steps]),
        reward_n=np.concatenate([step.reward_n for step in steps]),
        task_n=np.array(tasks, np.str_),
        gold_n=golds,
        form_n=np.array(forms, np.str_),
    )


def _form(text: str, gold: str) -> str:
    before, _, after = text.rpartition(gold)
    form = f"{before[-FORM_CHARACTERS:]}{{}}{after[:FORM_CHARACTERS]}"
    return re.sub(r"\d+", "0", form)


def fix_of(remedy: Remedy, place: str = "") -> Fix:
    """Return the fix for a scorer that rejects gold answers; `place` is the line of its code."""
    return Fix(f"At {place}: {remedy.sentence}" if place else remedy.sentence)


def why_no_scores(case: Case) -> str:
    """Return why there are no scores to judge; empty if there are."""
    # Our own rollouts always have a reward column, which is null for a rollout without a score.
    columns = () if case.view.trainer == "uptrend" else ("reward",)
    return case.why_no_rollouts(columns)


def why_no_answers(case: Case) -> str:
    """Return why there are no answers to judge; empty if there are."""
    reason = case.why_no_rollouts(["reward", "task", "answer", "messages"])
    if reason:
        return reason
    return "" if case.cached(read_answers) else "no scored rollout has a gold answer and a text"
