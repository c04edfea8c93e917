"""Probes of the user's own reward functions: what right and wrong answers earn, and whether the
place of a row matters.

Scripted answers go through a function in few calls, the most telling questions first, as long as
its budget lasts (`rescoring`). Its random generators are put back afterwards.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from uptrend.bridge.trl.batch import TrlBatch, as_float64, last_text
from uptrend.bridge.trl.findings_log import FindingsLog
from uptrend.bridge.trl.learner_probe import answer_logprobs, quiet, same_randomness
from uptrend.bridge.trl.processes import sharding_of
from uptrend.bridge.trl.rescoring import (
    CallFailure,
    RewardCaller,
    Row,
    names_in_code,
    why_not_called,
)
from uptrend.bridge.trl.rollouts import RewardRange
from uptrend.doctor.answers import fix_of
from uptrend.doctor.checks.golds import is_positive, texts_depend
from uptrend.records import Basis, Evidence, Fix, Message, Reward, Severity, Task
from uptrend.stats.intervals import Spread, spread_of
from uptrend.tasks.answers import (
    EMPTY_TEXT,
    GARBAGE_TEXT,
    LONG_TEXT,
    NUMBERS_TEXT,
    Form,
    draw_every_class,
    final_answer,
    gold_column,
    gold_text,
    likely_forms,
    near_miss,
    other_answers,
    says_leniently,
)
from uptrend.tasks.functions import place_of
from uptrend.tasks.proof import (
    BEHIND_PROMPT,
    CRITICAL_REJECTED_SHARE,
    MIN_PAID_CHEATERS_SHARE,
    Remedy,
    ScoredPlay,
    ScoredTask,
    describe_rejections,
    explain_rejections,
    pays_cheater,
    split_golds,
)

# Rows of the first call at most: every form on a few tasks.
MAX_OPENING_ROWS = 128
# Rows of the dataset whose gold answers are scored, and of which the model is asked for
# probabilities.
PROBED_ROWS = 48
# Tasks on which each text without an answer is scored, and rows of a call below which only the
# most telling of these texts is, on a few tasks.
CHEATED_TASKS = 8
MIN_CHEATED_ROWS = 16
FEW_CHEATED_TASKS = 2
# Share of a call's rows that such texts take.
CHEATED_SHARE = 1 / 4
# Gold answers that must be accepted, and none rejected, for a function to be acquitted.
MIN_ACCEPTED_GOLDS = 4
# Tasks on which right answers must earn less than wrong ones for a reward to be inverted.
MIN_INVERTED_TASKS = 2
# Tasks whose answers are tried behind fillers.
CUT_TASKS = 2
# Forms in which they are, the likeliest ones.
CUT_FORMS = 3
# Different answers that are needed: with fewer, another prompt's answer is often right.
MIN_DIFFERENT_ANSWERS = 6
# Rows of the dataset whose texts are compared.
COMPARED_ROWS = 500
# Rejected gold answers, and their share, up to which a dataset's odd rows explain them.
MAX_ODD_ROWS = 1
MAX_ODD_SHARE = 0.03
# Size, in deviations, of an effect that is small for a model that knows anything.
SMALL_EFFECT = 0.5
# Scores that differ by less are equal.
SCORE_TOLERANCE = 1e-5
# Characters of a paid text that a message quotes; rejected gold answers.
QUOTED_TEXT = 40
QUOTED_GOLDS = 4

Floats = NDArray[np.float64]
# Answer column, and the reward functions that read it and accepted no gold answer: the run's own
# rewards decide.
Suspects = tuple[str, list[str]]
# A task and a text as its completion; None fills a group up.
Question = tuple[Task, str]


# Tasks from the dataset's rows


def answers_of(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the right answers of a dataset's rows; empty where they hold none."""
    column = gold_column(rows[0])
    return [_answer_in(row, column) if column else "" for row in rows]


def _answer_in(row: dict[str, Any], column: str) -> str:
    return final_answer(gold_text(row.get(column)))


def tasks_of(rows: Iterable[dict[str, Any]], column: str) -> list[Task]:
    """Return a task for each different prompt of a dataset's rows that has an answer."""
    tasks: dict[str, Task] = {}
    for row in rows:
        answer = _answer_in(row, column)
        if not answer:
            continue
        prompt = str(row["prompt"])
        message = Message("user", last_text(row["prompt"]))
        tasks.setdefault(prompt, Task((message,), answer, "", data={"row": row}, id=prompt))
    return list(tasks.values())


def dataset_tasks(trainer: Any, column: str) -> list[Task]:
    """Return tasks from the whole length of the dataset; none where it can only be iterated."""
    dataset = trainer.train_dataset
    if not hasattr(dataset, "__getitem__"):
        return []
    places = np.linspace(0, len(dataset) - 1, COMPARED_ROWS).astype(int)
    return tasks_of([dataset[place] for place in sorted(set(places.tolist()))], column)


def rows_of_function(
    recorded_n: Floats, examples: Sequence[dict[str, Any]]
) -> Callable[[dict[str, Any]], bool]:
    """Return a test for rows of the dataset that a function scores.

    A function returns None for rows that are not its own. The column that says which they are has
    other values in its own rows of the generation than in all others.
    """
    is_own_n = ~np.isnan(recorded_n)
    for key in examples[0]:
        own = {str(row[key]) for row, is_own in zip(examples, is_own_n, strict=True) if is_own}
        others = {str(row.get(key)) for row in examples} - own
        n_rows = len({str(row["prompt"]) for row in examples})
        # A column with another value in every row says nothing of other rows.
        if own and others and len(own) + len(others) < n_rows and not is_own_n.all():
            names = frozenset(own)
            return lambda row, key=key, names=names: str(row.get(key)) in names  # type: ignore[misc]
    return lambda _: True


def row_of(task: Task, text: str) -> Row:
    """Return a text as TRL would pass it as the completion of this task."""
    row = task.data["row"]
    prompt = row["prompt"]
    completion: Any = text
    if not isinstance(prompt, str):
        completion = [{"role": "assistant", "content": text}]
    return prompt, completion, row


# Questions to one function


@dataclass(frozen=True)
class Pair:
    """A right and a wrong answer to one task, side by side in one call."""

    form: Form
    scored: ScoredTask

    @property
    def sign(self) -> float:
        """1 where the right answer earns more, −1 where it earns less; NaN where one of them has no
        reward.
        """
        play = self.scored.others[0]
        return float(np.sign(self.scored.earned - play.total))

    @property
    def questions(self) -> list[Question]:
        """Its two texts."""
        plays = (*self.scored.golds, *self.scored.others)
        return [(self.scored.task, play.last_text) for play in plays]


@dataclass
class Interview:
    """Questions to one reward function, and its answers.

    A function may compare the completions of a group. So calls have as many rows as whole groups
    have, and those of the first call are groups of one prompt. What it says of them, it must say
    again in the next call, at other places and in other company; else nothing is concluded.
    """

    name: str
    caller: RewardCaller
    column: str
    """Column of the right answer."""
    size: int
    """Completions of a group."""
    forms: list[Form]
    """Forms of an answer that are tried, the likeliest first."""
    tasks: list[Task]
    """Tasks that the function scores, of every class of answers."""
    more_tasks: list[Task]
    """Tasks from the whole length of the dataset."""
    may_cut: bool
    """True if the function sees the prompts."""

    pairs: list[Pair] = field(default_factory=list)
    form: Form | None = None
    """Form in which right answers earn more than wrong ones."""
    is_inverted: bool = False
    """True if right answers earn less."""
    cut_form: Form | None = None
    """Form in which they earn more only behind a filler as long as the prompt."""
    moved: int = 0
    """Answers that earn otherwise at another place, and the same there again."""
    is_unsure: bool = False
    """True if the same answer earned otherwise in another call."""
    tried: list[ScoredTask] = field(default_factory=list)
    """Tasks whose right answers were scored in `form`."""
    cheats: dict[str, list[ScoredPlay]] = field(default_factory=dict)

    def run(self) -> None:
        """Ask what the budget allows, the most telling questions first."""
        if not self.tasks:
            return
        self._ask_pairs(max(1, self._room // (2 * self.size)))
        self._choose_form()
        if self.may_cut and not self._is_read_from_start():
            self._ask_behind_fillers()
        if self.cut_form is not None:
            self.form = None
            return
        if self.form is None and not self.is_inverted:
            self._ask_pairs(self._room // self.size)
            self._choose_form()
        if self.form is not None:
            self._ask_again_and_more()

    def _is_read_from_start(self) -> bool:
        """Return True where an answer that is shorter than its prompt matters: nothing cuts the
        prompt's length off it.
        """
        for pair in self.pairs:
            task, text = pair.questions[0]
            is_shorter = len(text) <= len(task.messages[0].content)
            if is_shorter and pair.sign in (1.0, -1.0):
                return True
        return False

    @property
    def _room(self) -> int:
        """Rows of whole groups that the budget still allows."""
        return self.caller.left // self.size * self.size

    def _score(self, questions: Sequence[Question]) -> list[ScoredPlay]:
        """Score texts as completions of their tasks; the last group is filled up."""
        n_missing = -len(questions) % self.size
        filled = [*questions, *[(questions[-1][0], EMPTY_TEXT)] * n_missing]
        totals = self.caller.call([row_of(task, text) for task, text in filled]).tolist()
        plays: list[ScoredPlay] = []
        for (_, text), total in zip(questions, totals, strict=False):
            reward = None if np.isnan(total) else Reward(total, np.nan, np.nan, correct=False)
            plays.append(ScoredPlay(((text,),), reward))
        return plays

    # Right and wrong answers, in groups of one prompt

    def _ask_pairs(self, n_groups: int) -> None:
        """Ask for a right and a wrong answer in forms that were not tried yet, one task per group;
        in the first call every group begins with the same form.
        """
        n_groups = min(n_groups, -(-MAX_OPENING_ROWS // self.size))
        tasks = self.tasks[len({pair.scored.task.id for pair in self.pairs}) :] or self.tasks
        tasks = [tasks[k % len(tasks)] for k in range(n_groups)]
        tried_forms = {pair.form for pair in self.pairs}
        untried = [form for form in self.forms if form not in tried_forms]
        shared = [] if self.pairs else untried[:1]
        others = untried[len(shared) :]
        planned: list[tuple[Form, Task, str, str]] = []
        questions: list[Question] = []
        for k, task in enumerate(tasks):
            wrong_answer = self._wrong_answer(task, tasks[(k + 1) % len(tasks)].answer)
            n_others = max(1, self.size // 2) - len(shared)
            first = k * n_others
            own = [others[i % len(others)] for i in range(first, first + n_others) if others]
            for form in dict.fromkeys((*shared, *own)):
                right_text = form.write(task.answer)
                wrong_text = form.write(wrong_answer)
                planned.append((form, task, right_text, wrong_text))
                questions += [(task, right_text), (task, wrong_text)]
            questions += [(task, EMPTY_TEXT)] * (-len(questions) % self.size)
        if not planned:
            return
        play_by_question = dict(zip(map(_key, questions), self._score(questions), strict=True))
        for form, task, right_text, wrong_text in planned:
            gold = play_by_question[_key((task, right_text))]
            other = play_by_question[_key((task, wrong_text))]
            self.pairs.append(Pair(form, ScoredTask(task, [gold], [other])))

    def _wrong_answer(self, task: Task, preferred: str) -> str:
        """Return another task's answer, as long as this one's where there is any: a reward for
        length must not tell them apart.
        """
        golds = [preferred, *(other.answer for other in (*self.tasks, *self.more_tasks))]
        others = other_answers(task.answer, golds)
        same_length = [answer for answer in others if len(answer) == len(task.answer)]
        return next(iter((*same_length, *others)), near_miss(task.answer))

    def _choose_form(self) -> None:
        """Choose the form in which right answers earn more most often, if there is any."""
        n_best = 0
        for form in self.forms:  # of two that do as often, the likelier one
            n_separated = self._signs(form).count(1.0)
            if n_separated > n_best:
                n_best = n_separated
                self.form = form
        if self.form is None:
            inverted_tasks = {pair.scored.task.id for pair in self._inverted_pairs}
            self.is_inverted = len(inverted_tasks) >= MIN_INVERTED_TASKS

    def _signs(self, form: Form) -> list[float]:
        """Return the signs of all pairs in a form that have rewards."""
        own = [pair.sign for pair in self.pairs if pair.form == form]
        return [sign for sign in own if not np.isnan(sign)]

    # Answers behind the prompt

    def _ask_behind_fillers(self) -> None:
        """Find a function that cuts as many characters off a completion as the prompt has.

        Behind a filler of the prompt's length a right answer is told from a wrong one; behind one
        that is shorter by the answer's own length, and without any, it is not. The border moves
        with the prompt, so it is no least length.
        """
        tasks = self.tasks[:CUT_TASKS]
        shortest_prompt = min(len(task.messages[0].content) for task in tasks)
        for form in self.forms[:CUT_FORMS]:
            if max(len(form.write(task.answer)) for task in tasks) > shortest_prompt:
                continue
            questions: list[Question] = []
            for task in tasks:
                prompt_length = len(task.messages[0].content)
                wrong = self._wrong_answer(task, "")
                for n_cut in (0, 1):
                    for answer in (task.answer, wrong):
                        text = form.write(answer)
                        filler = "x" * (prompt_length - n_cut * len(text))
                        questions.append((task, filler + text))
            if len(questions) + (-len(questions) % self.size) > self._room:
                return
            totals = [play.total for play in self._score(questions)]
            is_cut = True
            for start in range(0, len(totals), 4):
                gold, wrong_total, short_gold, short_wrong = totals[start : start + 4]
                is_cut = is_cut and gold > wrong_total and not short_gold > short_wrong
            if is_cut:
                self.cut_form = form
                return

    # The same again, and more gold answers

    def _ask_again_and_more(self) -> None:
        """Ask for two pairs again at other places, and for gold answers of every class and texts
        without an answer beside them.
        """
        assert self.form is not None
        own = [pair for pair in self.pairs if pair.form == self.form and not np.isnan(pair.sign)]
        separated = [pair for pair in own if pair.sign == 1.0]
        others = sorted((pair for pair in own if pair.sign != 1.0), key=lambda pair: pair.sign)
        self.tried = [pair.scored for pair in own]
        repeated = [others[0], separated[0]] if others else separated[-1:]
        anchors = [question for pair in repeated for question in pair.questions]
        # Places show only in the same rows again: that takes as many.
        n_front = len(anchors) + (-len(anchors) % self.size)
        room = self._room
        if others and room >= 2 * n_front:
            room -= n_front
        if room < n_front:
            return
        golds, cheats = self._plan(room - len(anchors))
        questions = [*anchors, *golds, *cheats]
        plays = self._score(questions)
        again = plays[: len(anchors)]
        if not self._are_as_before(repeated, again):
            self._find_moved(repeated, again, questions[:n_front])
            return
        self._take_golds(golds, plays[len(anchors) :])
        for (_, text), play in zip(cheats, plays[len(anchors) + len(golds) :], strict=True):
            self.cheats.setdefault(text, []).append(play)
        self._confirm_rejections()

    def _plan(self, n_rows: int) -> tuple[list[Question], list[Question]]:
        """Return gold answers and texts without an answer for so many rows."""
        assert self.form is not None
        texts = [NUMBERS_TEXT, EMPTY_TEXT, GARBAGE_TEXT, LONG_TEXT]
        n_tasks = min(CHEATED_TASKS, max(1, int(n_rows * CHEATED_SHARE) // len(texts)))
        if n_rows < MIN_CHEATED_ROWS:
            texts = [NUMBERS_TEXT]
            n_tasks = FEW_CHEATED_TASKS if n_rows >= 2 * FEW_CHEATED_TASKS else 0
        tasks = self._untried_tasks(min(PROBED_ROWS, n_rows - n_tasks * len(texts)))
        golds = [(task, self.form.write(task.answer)) for task in tasks]
        cheated = (self.more_tasks or self.tasks)[:n_tasks]
        cheats = [(task, text) for text in texts for task in cheated]
        return golds, cheats

    def _untried_tasks(self, count: int) -> list[Task]:
        tried = {scored.task.id for scored in self.tried}
        tasks = [task for task in self.more_tasks if task.id not in tried]
        return draw_every_class(tasks, lambda task: task.answer, max(0, count))

    def _take_golds(self, golds: Sequence[Question], plays: Sequence[ScoredPlay]) -> None:
        """Take what gold answers earned; wrong answers to other tasks stand for their own."""
        wrong_plays = [play for pair in self.pairs for play in self.own_others(pair)]
        for (task, _), play in zip(golds, plays, strict=False):
            if play.reward is not None:  # else the row is not this function's
                self.tried.append(ScoredTask(task, [play], wrong_plays))

    def own_others(self, pair: Pair) -> Sequence[ScoredPlay]:
        """Return the wrong answers of a pair that the function told from the right one."""
        return pair.scored.others if pair.form == self.form and pair.sign == 1.0 else ()

    def _confirm_rejections(self) -> None:
        """Ask for rejected gold answers again, and for more gold answers beside them."""
        assert self.form is not None
        _, rejected = split_golds(self.tried)
        room = self._room
        if not rejected or not room:
            return
        asked_again = rejected[: max(1, room // 2)]
        questions = [(each.task, each.golds[0].last_text) for each in asked_again]
        golds = [
            (task, self.form.write(task.answer))
            for task in self._untried_tasks(min(PROBED_ROWS, room - len(questions)))
        ]
        plays = self._score([*questions, *golds])
        for each, play in zip(asked_again, plays, strict=False):
            if not np.isclose(play.total, each.earned, atol=SCORE_TOLERANCE):
                self.is_unsure = True
        self._take_golds(golds, plays[len(questions) :])

    def _are_as_before(self, pairs: Sequence[Pair], plays: Sequence[ScoredPlay]) -> bool:
        before = [play.total for pair in pairs for play in _plays(pair)]
        now = [play.total for play in plays]
        return bool(np.allclose(now, before, atol=SCORE_TOLERANCE, equal_nan=True))

    def _find_moved(
        self, pairs: Sequence[Pair], plays: Sequence[ScoredPlay], front: Sequence[Question]
    ) -> None:
        """Tell a function that judges a row by its place from one that draws: at the same places
        the first says the same again.
        """
        self.is_unsure = True
        signs = [
            float(np.sign(plays[2 * i].total - plays[2 * i + 1].total)) for i in range(len(pairs))
        ]
        # A right answer that was rejected must be accepted at another place, and one that was
        # accepted rejected: other company alone may change figures, but not which of two is more.
        has_swapped = len(pairs) == 2 and pairs[0].sign != 1.0 and signs[0] == 1.0 != signs[1]
        if not has_swapped or len(front) > self._room:
            return
        repeated = self._score(front)
        now = [play.total for play in plays]
        again = [play.total for play in repeated[: len(plays)]]
        if np.allclose(now, again, atol=SCORE_TOLERANCE, equal_nan=True):
            before = [play.total for pair in pairs for play in _plays(pair)]
            self.moved = int((~np.isclose(now, before, atol=SCORE_TOLERANCE)).sum())

    def score_texts(self, task: Task, texts: Sequence[str]) -> list[ScoredPlay]:
        """Score texts as answers to a task, which may have another answer than its row, as many as
        the budget allows.
        """
        row = task.data["row"]
        if _answer_in(row, self.column) != task.answer:
            task = replace(task, data={"row": {**row, self.column: task.answer}})
        n_scored = min(len(texts), self._room)
        plays = self._score([(task, text) for text in texts[:n_scored]]) if n_scored else []
        return [*plays, *(ScoredPlay(((text,),), None) for text in texts[n_scored:])]

    # What it comes to

    @property
    def right(self) -> float:
        """Mean reward of right answers: of those that are accepted, if any is."""
        if self.form is None:
            return float(np.mean([pair.scored.earned for pair in self._inverted_pairs]))
        accepted, _ = split_golds(self.tried)
        return float(np.mean([each.earned for each in accepted or self.tried]))

    @property
    def wrong(self) -> float:
        """Mean reward of wrong answers."""
        pairs = [pair for pair in self.pairs if pair.form == self.form]
        pairs = pairs if self.form is not None else self._inverted_pairs
        totals = [play.total for pair in pairs for play in pair.scored.others]
        return float(np.nanmean(totals))

    @property
    def _inverted_pairs(self) -> list[Pair]:
        return [pair for pair in self.pairs if pair.sign == -1.0]

    @property
    def is_judge(self) -> bool:
        """True if the function surely tells right answers from wrong ones."""
        is_mixed = any(sign == -1.0 for sign in self._signs(self.form)) if self.form else True
        return self.form is not None and not self.is_unsure and not is_mixed


def _plays(pair: Pair) -> list[ScoredPlay]:
    return [*pair.scored.golds, *pair.scored.others]


def _key(question: Question) -> tuple[str, str]:
    task, text = question
    return task.id, text


# Findings


def probe_rewards(
    trainer: Any,
    batch: TrlBatch,
    seconds: dict[int, float],
    reward_calls: int | None,
    reward_range: RewardRange,
    log: FindingsLog,
) -> tuple[Suspects | None, dict[str, float]]:
    """Score right and wrong answers with the user's reward functions; return suspects, and the
    metrics of the extra calls.

    seconds       that the trainer's own first call of each function took, by its place
    reward_calls  completions that each function may be called on; None for as many as the
                  generation has, and then none for functions that are asynchronous or slow
    """
    column = gold_column(batch.examples[0])
    reason = ""
    if getattr(trainer, "environments", None):
        reason = "environments own the rewards"
    elif column is None:
        reason = "the dataset has no column that looks like an answer"
    if reason or column is None:
        _report_unprobed(log, reason)
        return None, {}

    callers: list[RewardCaller] = []
    budget = batch.size if reward_calls is None else reward_calls
    own_row = (batch.prompts[0], batch.completions[0], batch.examples[0])
    for place, name in enumerate(reward_range.names):
        function = trainer.reward_funcs[place]
        is_allowed = reward_calls is not None
        reason = why_not_called(function, seconds.get(place, 0.0), is_allowed=is_allowed)
        if reason:
            _report_unprobed(log, f"{name} is not called again: {reason}")
            _print_uncalled(name, reason, budget)
        else:
            callers.append(RewardCaller(trainer, place, budget, own_row))
    with same_randomness():
        suspects = _judge_rewards(trainer, batch, column, callers, reward_range, log)
    return suspects, _report_calls(log, callers, reward_range.names, budget)


def _report_unprobed(log: FindingsLog, reason: str) -> None:
    for id in ("reward.gold-rejected", "reward.misaligned"):
        log.event("not-probed", id=id, reason=reason)


def _print_uncalled(name: str, reason: str, budget: int) -> None:
    """Say once what is not known of a function, and how to allow it to be called."""
    remedy = f"watch(trainer, reward_calls={budget}) allows it {budget} completions."
    if "uptrend.remote" in reason:
        remedy = "Without the mark it may be called."
    elif "model" in reason:
        remedy = ""
    text = (
        f"uptrend: the reward function {name} is not called again, since {reason}. So nothing says"
        " yet that it accepts right answers, pays no wrong ones, and judges each row by its own"
        f" answer. {remedy}"
    )
    print(text.rstrip(), file=sys.stderr, flush=True)


def _report_calls(
    log: FindingsLog, callers: Sequence[RewardCaller], names: Sequence[str], budget: int
) -> dict[str, float]:
    """Report the extra calls; return their metrics."""
    functions: dict[str, dict[str, float]] = {}
    for caller in callers:
        functions[names[caller.function]] = {
            "calls": caller.spent.calls,
            "completions": caller.spent.completions,
        }
    log.event("rescored", functions=functions, budget=budget)
    calls = sum(caller.spent.calls for caller in callers)
    completions = sum(caller.spent.completions for caller in callers)
    if calls:
        parts = []
        for name, spent in functions.items():
            parts.append(f"{name} {spent['calls']} times on {spent['completions']} completions")
        text = f"uptrend: to test the reward functions they were called again: {', '.join(parts)}."
        print(text, file=sys.stderr, flush=True)
    return {"reward/extra/calls": float(calls), "reward/extra/completions": float(completions)}


def _judge_rewards(
    trainer: Any,
    batch: TrlBatch,
    column: str,
    callers: Sequence[RewardCaller],
    reward_range: RewardRange,
    log: FindingsLog,
) -> Suspects | None:
    """Interview each function that may read a row, and report what it says."""
    tasks = dataset_tasks(trainer, column)
    interviews: list[Interview] = []
    for caller in callers:
        interview = _plan_interview(trainer, batch, column, caller, reward_range.names, tasks)
        if interview is not None:
            interview.run()
            interviews.append(interview)
            _report_failures(log, interview)

    is_explained = False
    for interview in interviews:
        step = batch.step
        is_explained |= _report_cut(log, interview, step)
        is_explained |= _report_moved(log, interview, step)
        weight = reward_range.weights[interview.caller.function]
        is_explained |= _report_sign(log, interview, weight, step)
    if is_explained:
        return None
    judges = [interview for interview in interviews if interview.is_judge]
    if not judges:
        names = [each.name for each in interviews if _is_rejecting(trainer, each, column)]
        return (column, names) if names else None

    bounds = np.full((2, len(reward_range.names)), np.nan)
    for judge in judges:
        _report_golds(log, judge, batch.step)
        _report_cheats(log, judge, batch.step)
        bounds[:, judge.caller.function] = (judge.right, judge.wrong)
        reward_range.right[judge.caller.function] = judge.right
    reward_range.widen(bounds)
    _judge_alignment(trainer, batch, log, column, tasks)
    return None


def _plan_interview(
    trainer: Any,
    batch: TrlBatch,
    column: str,
    caller: RewardCaller,
    names: Sequence[str],
    tasks: Sequence[Task],
) -> Interview | None:
    """Return the interview of a function; None of one that sees neither prompts nor rows."""
    recorded_n = as_float64(batch.rewards)[:, caller.function]
    words = names_in_code(trainer.reward_funcs[caller.function])
    columns = {"prompts", "prompt", *batch.examples[0]}
    if words is not None and columns.isdisjoint(words):
        return None
    is_own_row = rows_of_function(recorded_n, batch.examples)
    is_scored = ~np.isnan(recorded_n)
    own_rows = [row for row, is_own in zip(batch.examples, is_scored, strict=True) if is_own]
    own_tasks = tasks_of(own_rows, column)
    more_tasks = [task for task in tasks if is_own_row(task.data["row"])]
    by_prompt = {task.id: task for task in (*own_tasks, *more_tasks)} if own_tasks else {}
    prompts = [task.messages[0].content for task in own_tasks]
    hints = "\n".join((*(words or ()), *prompts, *_instructions(own_tasks)))
    return Interview(
        name=names[caller.function],
        caller=caller,
        column=column,
        size=trainer.num_generations,
        forms=likely_forms(hints),
        tasks=draw_every_class([*by_prompt.values()], lambda task: task.answer, PROBED_ROWS),
        more_tasks=more_tasks,
        may_cut=words is None or not {"prompts", "prompt"}.isdisjoint(words),
    )


def _instructions(tasks: Sequence[Task]) -> list[str]:
    """Return the system messages of some tasks, which often say how to write an answer."""
    texts: set[str] = set()
    for task in tasks:
        prompt = task.data["row"]["prompt"]
        if not isinstance(prompt, str):
            texts |= {str(message.get("content")) for message in prompt[:-1]}
    return sorted(texts)


def _is_rejecting(trainer: Any, interview: Interview, column: str) -> bool:
    """Return True for a function that reads the answers and accepted none that was tried."""
    words = names_in_code(trainer.reward_funcs[interview.caller.function])
    reads_answer = words is not None and column in words
    signs = [pair.sign for pair in interview.pairs if not np.isnan(pair.sign)]
    return reads_answer and bool(signs) and not any(signs)


def _report_failures(log: FindingsLog, interview: Interview) -> None:
    """Report completions that a function fails on."""
    failures: list[CallFailure] = interview.caller.failures
    if failures:
        first = failures[0]
        summary = (
            f"The reward function {interview.name} fails on some answers, which ends the training:"
            f" {first.error} on {first.completion!r}."
        )
        evidence = Evidence(f"So it did on {len(failures)} of the answers that were tried.")
        log.report("reward.error-scored", Severity.WARNING, summary, [evidence])
    if interview.caller.refusal:
        _report_unprobed(
            log,
            f"{interview.name} fails on fewer completions than a generation has:"
            f" {interview.caller.refusal}",
        )


def _fix_of(interview: Interview, remedy: Remedy) -> Fix:
    """Return the fix for a function that rejects gold answers, with the line of its code."""
    caller = interview.caller
    function = caller.trainer.reward_funcs[caller.function]
    return fix_of(remedy, place_of(function, remedy.words))


def _report_cut(log: FindingsLog, interview: Interview, step: int) -> bool:
    """Report a function that looks behind the prompt in a completion that does not hold it."""
    form = interview.cut_form
    if form is None:
        return False
    summary = (
        f"The reward function {interview.name} cuts the prompt's length off each completion, but"
        " TRL's completions do not hold the prompt: right answers are cut away before they are"
        " looked at."
    )
    text = (
        "Behind a filler as long as the prompt it does; behind one that is shorter by the answer's"
        " own length it does not. The border moves with each task's prompt."
    )
    earned = Evidence(f"A gold answer written as {form} earns no more than a wrong one.", step=step)
    fix = _fix_of(interview, Remedy(BEHIND_PROMPT.remedy, text, BEHIND_PROMPT.words))
    evidence = [earned, Evidence(text)]
    log.report("reward.gold-rejected", Severity.CRITICAL, summary, evidence, fix=fix)
    return True


def _report_moved(log: FindingsLog, interview: Interview, step: int) -> bool:
    """Report a function that judges a row by its place, or that draws."""
    if interview.moved:
        summary = (
            f"The reward function {interview.name} scores completions against other prompts'"
            " answers: rewards change when rows change places."
        )
        text = (
            "At other places of a call a right answer that was rejected is accepted, and one that"
            f" was accepted is rejected; {interview.moved} answers earn otherwise, and the same"
            " when asked again there."
        )
        evidence = Evidence(text, float(interview.moved), step=step)
        log.report("reward.misaligned", Severity.CRITICAL, summary, [evidence])
        return True
    if interview.is_unsure:
        summary = (
            f"The reward function {interview.name} gave other scores to the same completions when"
            " asked again."
        )
        evidence = Evidence(f"Answers to tasks of step {step}, in another call.", step=step)
        log.report("reward.nondeterministic", Severity.NOTE, summary, [evidence], Basis.SIGNAL)
    return False


def _report_sign(log: FindingsLog, interview: Interview, weight: float, step: int) -> bool:
    """Report a function that pays right answers less than wrong ones, or whose weight does."""
    if not interview.is_inverted and (weight > 0 or not interview.is_judge):
        return False
    summary = (
        f"Right answers earn less than wrong ones: {interview.name}, of weight {weight:g}, gives"
        f" them {interview.right:g}, wrong ones {interview.wrong:g}."
    )
    form = interview.form or interview.forms[0]
    text = (
        f"Written as {form}, gold answers get {interview.right:g} and wrong ones"
        f" {interview.wrong:g}."
    )
    id = "advantage.sign" if weight else "reward.component-dead"
    log.report(id, Severity.CRITICAL, summary, [Evidence(text, step=step)])
    return True


def _report_golds(log: FindingsLog, judge: Interview, step: int) -> None:
    """Report gold answers that are rejected, or that none of those tried is."""
    accepted, rejected = split_golds(judge.tried)
    n_tried = len(judge.tried)
    if not rejected and n_tried >= MIN_ACCEPTED_GOLDS:
        reason = (
            f"written as {judge.form}, {n_tried} gold answers earn {judge.right:g}, wrong ones"
            f" {judge.wrong:g}"
        )
        log.event("acquitted", id="reward.gold-rejected", reason=reason)
    if len(rejected) <= max(MAX_ODD_ROWS, MAX_ODD_SHARE * n_tried):
        return
    share = len(rejected) / n_tried
    severity = Severity.CRITICAL if share > CRITICAL_REJECTED_SHARE else Severity.WARNING
    summary = describe_rejections(f"The reward function {judge.name}", accepted, rejected)
    examples = ", ".join(repr(each.task.answer) for each in rejected[:QUOTED_GOLDS])
    text = f"Gold answers such as {examples} earn no more than wrong ones; others {judge.right:g}."
    evidence = [Evidence(text, share, step=step)]
    remedy = explain_rejections(accepted, rejected, judge.score_texts)
    fix = None if remedy is None else _fix_of(judge, remedy)
    if remedy is not None and remedy.example:
        evidence.append(Evidence(remedy.example, step=step))
    log.report("reward.gold-rejected", severity, summary, evidence, fix=fix)


def _report_cheats(log: FindingsLog, judge: Interview, step: int) -> None:
    """Report texts without the answer that earn as much as the answer."""
    wrong_plays = [play for pair in judge.pairs for play in judge.own_others(pair)]
    for text, plays in {"another answer": wrong_plays, **judge.cheats}.items():
        n_paid = sum(pays_cheater(play, judge.right) for play in plays)
        if n_paid and n_paid >= MIN_PAID_CHEATERS_SHARE * len(plays):
            summary = (
                f"The reward function {judge.name} pays {text[:QUOTED_TEXT]!r} as much as the right"
                f" answer: {judge.right:g}."
            )
            evidence = Evidence(f"So it does on {n_paid} of {len(plays)} tasks.", step=step)
            log.report("reward.hackable", Severity.WARNING, summary, [evidence])


# Answers and prompts that do not belong together. Three things would show that they do: completions
# say their own answers more often than those of other prompts; the model finds an answer likelier
# behind its own prompt than behind another; numbers or words of an answer have something to do with
# those of its prompt. Each alone may fail on a healthy run, so the column is called misaligned only
# where all three fail. None of them calls a reward function.
def _judge_alignment(
    trainer: Any, batch: TrlBatch, log: FindingsLog, column: str, tasks: Sequence[Task]
) -> None:
    by_completions = own_against_others(batch, trainer.num_generations)
    if is_positive(by_completions):
        return

    answers = [task.answer for task in tasks]
    if len(answers) < 2 * MIN_DIFFERENT_ANSWERS or len(set(answers)) < MIN_DIFFERENT_ANSWERS:
        return
    if texts_depend([task.messages[0].content for task in tasks], answers):
        return

    spread_tasks = tasks[:: max(1, len(tasks) // PROBED_ROWS)]
    by_model = likelier_behind_its_own(trainer, spread_tasks[:PROBED_ROWS])
    if by_model is None:
        return
    # A small effect must be excluded, by two standard errors.
    if by_model.mean + 2.0 * _error(by_model) >= SMALL_EFFECT * by_model.deviation:
        return

    summary = (
        f"The answers in the column {column!r} do not belong to their prompts: nothing ties them"
        " together."
    )
    text = (
        f"The model finds answers {by_model.mean:+.2f} ± {_error(by_model):.2f} nats likelier"
        f" behind their own prompts than behind others' ({by_model.seeds} rows); with the right"
        " ones it is well above 0."
    )
    unrelated = (
        f"Numbers, words and lengths of {len(answers)} prompts say nothing about their answers."
    )
    evidence = [Evidence(text, by_model.mean, step=batch.step), Evidence(unrelated)]
    if by_completions is not None:
        text = (
            f"Completions say their own answers {by_completions.mean:+.3f} ±"
            f" {_error(by_completions):.3f} times more than those of other prompts."
        )
        evidence.append(Evidence(text, by_completions.mean, step=batch.step))
    log.report("reward.misaligned", Severity.CRITICAL, summary, evidence, Basis.SIGNAL)


def _error(gains: Spread) -> float:
    return float(gains.deviation / gains.seeds**0.5)


def own_against_others(batch: TrlBatch, size: int) -> Spread | None:
    """Compare how often completions say their own answers with how often they say those of other
    prompts, over groups.
    """
    texts = list(map(last_text, batch.completions))
    answers = np.array(batch.answers, object)
    if len(set(batch.answers)) < 2 or batch.size % size or batch.size < 2 * size:
        return None
    own_n = np.array(list(map(says_leniently, texts, answers)), float)
    gains: list[Floats] = []  # by shift; NaN where another group's answer is the same
    for shift in range(1, batch.size // size):
        others = np.roll(answers, -shift * size)
        other_n = np.array(list(map(says_leniently, texts, others)), float)
        gains.append(np.where(others != answers, own_n - other_n, np.nan))

    is_known = ~np.isnan(gains)
    gain_sums = np.nansum(gains, axis=0)
    n_known = is_known.sum(0)
    gain_by_row = np.where(n_known > 0, gain_sums / np.maximum(1, n_known), np.nan)
    gain_by_group: list[float] = []
    for group in gain_by_row.reshape(-1, size):
        if not np.isnan(group).all():
            gain_by_group.append(float(np.nanmean(group)))
    return spread_of(np.array(gain_by_group)) if len(gain_by_group) > 1 else None


def likelier_behind_its_own(trainer: Any, tasks: Sequence[Task]) -> Spread | None:
    """Compare the model's log-probability of answers behind their own prompts and behind others',
    in nats.
    """
    if sharding_of(trainer):  # to ask the model, all processes would have to
        return None
    device = trainer.accelerator.device
    rows = trainer._tokenize_prompts([task.data["row"]["prompt"] for task in tasks])[0]
    prompts = [torch.tensor(ids).to(device) for ids in rows]
    gains: list[float] = []
    with quiet(trainer):
        for i, task in enumerate(tasks):
            other = _next_with_other_answer(tasks, i)
            ids = trainer._tokenizer(task.answer, add_special_tokens=False)["input_ids"]
            if other is not None and ids:
                answer = torch.tensor(ids).to(device)
                own_sum = answer_logprobs(trainer, prompts[i], answer).sum()
                other_sum = answer_logprobs(trainer, prompts[other], answer).sum()
                gains.append(own_sum - other_sum)
    return spread_of(np.array(gains)) if len(gains) > 1 else None


def _next_with_other_answer(tasks: Sequence[Task], start: int) -> int | None:
    """Return the next task, going round, whose answer is not that of task `start`."""
    following: list[int] = [*range(start + 1, len(tasks)), *range(start)]
    for place in following:
        if tasks[place].answer != tasks[start].answer:
            return place
    return None
